package crc64

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/minio/crc64nvme"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bitwise computes the CRC by its definition, bit by bit.
func bitwise(crc uint64, p []byte) uint64 {
	crc = ^crc
	for _, b := range p {
		crc ^= uint64(b)
		for range 8 {
			crc = crc>>1 ^ 0x9a6c9329ac4bc9b5&-(crc&1)
		}
	}
	return ^crc
}

func TestCheckValue(t *testing.T) {
	assert.Equal(t, uint64(0xAE8B14860A799888), Checksum([]byte("123456789")))
	assert.Equal(t, uint64(0), Checksum(nil))
	assert.Equal(t, uint64(0x6482D367EB22B64E), Checksum(make([]byte, 4096)), "NVM Command Set Specification, figure of 4 KiB of zeros")
}

// TestLengths tests lengths and alignments near the limits of the implementations.
func TestLengths(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	buf := make([]byte, 40<<10)
	for i := range buf {
		buf[i] = byte(r.Uint32())
	}
	check := func(from, n int) {
		crc := r.Uint64()
		require.Equal(t, bitwise(crc, buf[from:from+n]), Update(crc, buf[from:from+n]), "%d bytes from %d on, after %#x", n, from, crc)
	}
	for n := range 300 {
		check(n%64, n)
		check(n%33, 900+n)
		check(n%64, 32<<10-150+n)
	}
	for range 200 {
		check(r.IntN(4096), r.IntN(32<<10))
	}
}

// TestParts checks that Update continues a checksum.
func TestParts(t *testing.T) {
	buf := make([]byte, 64<<10)
	for i := range buf {
		buf[i] = byte(i * i >> 3)
	}
	for _, cut := range []int{0, 1, 8, 1023, 1024, 1025, 5000, 40_000, len(buf)} {
		assert.Equal(t, crc64nvme.Checksum(buf), Update(Checksum(buf[:cut]), buf[cut:]), "cut at %d", cut)
	}
}

func TestNoAllocation(t *testing.T) {
	buf := make([]byte, 32<<10)
	assert.Zero(t, testing.AllocsPerRun(10, func() { Checksum(buf) }))
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{512, 1 << 10, 4 << 10, 32 << 10, 64 << 20} {
		buf := make([]byte, n)
		for _, c := range []struct {
			name string
			sum  func([]byte) uint64
		}{{"ours", Checksum}, {"library", crc64nvme.Checksum}} {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					c.sum(buf)
				}
			})
		}
	}
}
