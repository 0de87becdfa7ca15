package microfs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
)

// TestSuperblockNoticesEveryByte checks that a superblock is refused if any one of its bytes is changed.
func TestSuperblockNoticesEveryByte(t *testing.T) {
	b := make([]byte, blockSize)
	goldenGeometry(t).encode(b)
	for i := range b {
		b[i] ^= 0x5a
		_, err := decodeSuperblock(b)
		require.Error(t, err, "byte %d", i)
		b[i] ^= 0x5a
	}
	_, err := decodeSuperblock(b)
	require.NoError(t, err)
}

// TestSuperblockFeatures checks that a superblock with an unknown feature bit, as a later version may
// write it, is refused with ErrVersion.
func TestSuperblockFeatures(t *testing.T) {
	for _, at := range []int{sbIncompat, sbROCompat} {
		b := make([]byte, blockSize)
		goldenGeometry(t).encode(b)
		b[at+7] |= 0x80
		le.PutUint64(b[sbCRC:], crc64.Checksum(b[:sbCRC]))
		_, err := decodeSuperblock(b)
		require.ErrorIs(t, err, ErrVersion, "offset %d", at)
	}
}
