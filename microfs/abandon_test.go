package microfs

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf/memdev"
)

// TestAbandon checks that a file whose last writer has called CloseIncomplete does not count as
// closed, also after another mount, until a later writer closes it with Close.
func TestAbandon(t *testing.T) {
	ctx := context.Background()
	dev, err := memdev.New(64<<20, 4096, memdev.Options{})
	require.NoError(t, err)
	seg := Segment{Length: 64 << 20}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{}))
	fs, err := Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	open := func(flags int) *File {
		f, err := fs.Open(RootIno, "/f", flags, 0o600)
		require.NoError(t, err)
		_, err = f.WriteAt([][]byte{[]byte("text")}, 0)
		require.NoError(t, err)
		return f
	}
	closed := func() bool {
		a, err := fs.Stat(RootIno, "/f", true)
		require.NoError(t, err)
		return a.Closed
	}
	f := open(unix.O_CREAT | unix.O_RDWR)
	require.NoError(t, f.CloseIncomplete())
	assert.False(t, closed())
	assert.Equal(t, syscall.EBADF, f.CloseIncomplete())
	require.NoError(t, fs.Unmount())
	fs, err = Mount(ctx, dev, seg, Options{})
	require.NoError(t, err)
	defer fs.Unmount()
	assert.False(t, closed())
	f, g := open(unix.O_RDWR), open(unix.O_RDWR)
	require.NoError(t, f.CloseIncomplete())
	require.NoError(t, g.Close())
	assert.True(t, closed())
}
