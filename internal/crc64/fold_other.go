//go:build !amd64

package crc64

const (
	worthFolding = 0
	canFold      = false
)

func folded(uint64, []byte) uint64 { panic("crc64: no folding on this processor") }
