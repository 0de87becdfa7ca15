package crc64

import "github.com/minio/crc64nvme"

// Checksum returns the CRC-64 of p.
func Checksum(p []byte) uint64 { return Update(0, p) }

// Update returns the CRC-64 of the data of crc followed by p. The CRC-64 of no data is 0.
func Update(crc uint64, p []byte) uint64 {
	if len(p) >= worthFolding && canFold {
		return folded(crc, p)
	}
	return crc64nvme.Update(crc, p)
}
