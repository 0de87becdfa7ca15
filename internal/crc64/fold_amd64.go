package crc64

import (
	"github.com/klauspost/cpuid/v2"
	"github.com/minio/crc64nvme"
)

// stripe is the number of bytes folded at once: eight registers of 32 bytes.
const stripe = 256

// worthFolding is the length from which folding is faster.
const worthFolding = 2 * stripe

var canFold = cpuid.CPU.Supports(cpuid.AVX2, cpuid.VPCLMULQDQ) &&
	!cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512VL)

// fold returns the remainder of n stripes at p, n at least 1, after state.
//
//go:noescape
func fold(state uint64, p *byte, n int) uint64

// folded is Update for a stripe and more.
func folded(crc uint64, p []byte) uint64 {
	n := len(p) / stripe
	crc = ^fold(^crc, &p[0], n)
	return crc64nvme.Update(crc, p[n*stripe:])
}
