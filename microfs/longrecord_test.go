package microfs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestLongFileWithoutChecksums appends so much that the checksums of the bytes would not fit one log
// page. It checks that a file system without checksums, whose Write records may cover any number of
// bytes, reads all of it after another mount.
func TestLongFileWithoutChecksums(t *testing.T) {
	ctx := context.Background()
	dev, err := memdev.New(128*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	defer dev.Close()
	seg := Segment{Length: dev.Identity().Capacity()}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{NoDataCRC: true}))
	fs, err := Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	f, err := fs.Open(RootIno, "f", 0o102, 0o600) // O_RDWR|O_CREAT
	require.NoError(t, err)
	piece := pattern(1<<20, 1)
	const pieces = 40
	for i := range pieces {
		_, err := f.WriteAt([][]byte{piece}, int64(i)<<20)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unmount())

	fs, err = Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	f, err = fs.Open(RootIno, "f", 0, 0)
	require.NoError(t, err)
	got := make([]byte, len(piece))
	for i := range pieces {
		n, err := f.ReadAt([][]byte{got}, int64(i)<<20)
		require.NoError(t, err)
		require.Equal(t, piece, got[:n])
	}
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unmount())
}
