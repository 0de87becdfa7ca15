package microfs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/crc64"
)

// TestSuperblockNoticesEveryByte: a changed byte makes a superblock useless, also
// where the number it belongs to would be possible.
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

// TestSuperblockFeatures: media of a later version is left alone.
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
