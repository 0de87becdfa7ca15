package crc64

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
)

// powers is in fold_amd64.s.
var powers [8]uint64

// TestConstants computes what the assembler multiplies with.
func TestConstants(t *testing.T) {
	const polynomial = 0xAD93D23594C93659 // without x^64
	residue := func(n int) uint64 {       // x^n modulo the polynomial, reflected
		r := uint64(1)
		for range n {
			r = r<<1 ^ polynomial&-(r>>63)
		}
		return bits.Reverse64(r)
	}
	// A product of reflected halves lies one bit too low: hence the -1.
	for i, distance := range []int{8 * stripe, 256, 128} {
		assert.Equal(t, residue(distance+64-1), powers[2*i], "low half, %d bits on", distance)
		assert.Equal(t, residue(distance-1), powers[2*i+1], "high half, %d bits on", distance)
	}
	var quotient, r uint64 // of x^128, which has 65 bits, the first of them 1
	for i := range 129 {
		digit := r >> 63
		r <<= 1
		if i == 0 {
			r |= 1
		}
		r ^= polynomial & -digit
		quotient = quotient<<1 | digit
	}
	assert.Equal(t, bits.Reverse64(quotient)<<1|1, powers[6])
	assert.Equal(t, bits.Reverse64(polynomial)<<1|1, powers[7])
}

func TestFoldIsUsed(t *testing.T) {
	if !canFold {
		t.Skip("this processor has no VPCLMULQDQ, or AVX-512: the library is used")
	}
	p := make([]byte, 3*stripe)
	for i := range p {
		p[i] = byte(i)
	}
	assert.Equal(t, bitwise(7, p), ^fold(^uint64(7), &p[0], 3))
	assert.Equal(t, bitwise(7, p[:stripe]), ^fold(^uint64(7), &p[0], 1))
}
