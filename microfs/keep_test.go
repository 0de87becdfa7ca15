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

// TestKeepNameless checks that a file without a name that is open at an Unmount can be opened by inode
// number after a mount with Options.Keep for that inode, and that a mount without it frees the file.
func TestKeepNameless(t *testing.T) {
	ctx := context.Background()
	dev, err := memdev.New(64<<20, 4096, memdev.Options{})
	require.NoError(t, err)
	seg := Segment{Length: 64 << 20}
	require.NoError(t, Format(ctx, dev, seg, FormatOptions{Generation: 1, Size: 1}))
	mount := func(keep ...Ino) *FS {
		fs, err := Mount(ctx, dev, seg, Options{Generation: 1, Keep: keep})
		require.NoError(t, err)
		return fs
	}
	fs := mount()
	free := fs.StatFS().Free
	f, err := fs.Open(RootIno, "/f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt([][]byte{[]byte("text")}, 0)
	require.NoError(t, err)
	require.NoError(t, fs.Unlink(RootIno, "/f"))
	ino := f.Ino()
	require.NoError(t, fs.Unmount())

	fs = mount(ino)
	f, err = fs.OpenIno(ino, unix.O_RDWR|unix.O_APPEND)
	require.NoError(t, err)
	_, _, err = f.AppendBelow([][]byte{[]byte(" and more")}, 1<<40)
	require.NoError(t, err)
	b := make([]byte, 20)
	n, err := f.ReadAt([][]byte{b}, 0)
	require.NoError(t, err)
	assert.Equal(t, "text and more", string(b[:n]))
	_, err = fs.OpenIno(RootIno, unix.O_RDWR)
	assert.Equal(t, syscall.EISDIR, err)
	_, err = fs.OpenIno(ino+100, unix.O_RDONLY)
	assert.Equal(t, syscall.ESTALE, err)
	require.NoError(t, fs.Unmount())

	fs = mount()
	_, err = fs.OpenIno(ino, unix.O_RDONLY)
	assert.Equal(t, syscall.ESTALE, err)
	assert.Equal(t, free, fs.StatFS().Free)
	require.NoError(t, fs.Unmount())

	fs, err = Mount(ctx, dev, seg, Options{Generation: 1, ReadOnly: true})
	require.NoError(t, err)
	_, err = fs.OpenIno(RootIno, unix.O_RDONLY)
	assert.NoError(t, err)
	require.NoError(t, fs.Unmount())
}
