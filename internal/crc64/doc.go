// Package crc64 is CRC-64/NVME (NVM Command Set Specification 1.0, section
// 5.2.1.3.4; polynomial 0xAD93D23594C93659, reflected), as fast as the
// processor multiplies without carry.
//
// It is minio/crc64nvme, but where there is VPCLMULQDQ on 256 bits and no
// AVX-512 (AMD Zen 3, Intel's client processors): that library has 128 and 512
// bits only, and 256 are twice as fast as 128.
//
// Any number of callers may use it at once.
package crc64
