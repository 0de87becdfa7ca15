package tree

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// TestNames checks that changes of names by one process are visible to all others at once, also in directories that
// these have open.
func TestNames(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	require.NoError(t, a.Mkdir(root, "/d", 0o755))
	d := b.open("/d", unix.O_RDONLY|unix.O_DIRECTORY)
	f, err := b.Open(d.Ino(), "f", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o640)
	require.NoError(t, err)
	put(t, f, 0, "hello")
	require.NoError(t, f.Close())
	_, err = a.Open(root, "/d/f", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o640)
	assert.ErrorIs(t, err, syscall.EEXIST)

	require.NoError(t, a.Link(root, "/d/f", root, "/link", false))
	require.NoError(t, a.Symlink("d/f", root, "/s"))
	require.NoError(t, a.Rename(root, "/d", root, "/e", 0))
	path, err := b.PathOf(d.Ino())
	require.NoError(t, err)
	assert.Equal(t, "/e", path)
	_, err = b.Stat(root, "/s", true)
	assert.ErrorIs(t, err, syscall.ENOENT)
	target, err := b.Readlink(root, "/s")
	require.NoError(t, err)
	assert.Equal(t, "d/f", target)
	require.NoError(t, b.Rename(root, "/e", root, "/d", 0))
	path, err = b.RealPath(root, "/s")
	require.NoError(t, err)
	assert.Equal(t, "/d/f", path)

	attr, err := b.Stat(root, "/s", true)
	require.NoError(t, err)
	assert.EqualValues(t, 2, attr.Nlink)
	assert.EqualValues(t, 5, attr.Size)
	mode := uint32(0o400)
	require.NoError(t, a.SetAttr(root, "/link", true, microfs.SetAttr{Mode: &mode}))
	assert.NoError(t, b.Access(root, "/d/f", unix.R_OK, true))
	assert.ErrorIs(t, b.AccessAs(microfs.Cred{UID: 1, GID: 1}, root, "/d/f", unix.R_OK, true), syscall.EACCES)
	require.NoError(t, b.SetCred(microfs.Cred{UID: 1, GID: 1}))
	_, err = b.Open(root, "/d/f", unix.O_RDONLY, 0)
	assert.ErrorIs(t, err, syscall.EACCES)
	require.NoError(t, b.SetCred(microfs.Cred{}))

	assert.ErrorIs(t, b.Rmdir(root, "/d"), syscall.ENOTEMPTY)
	require.NoError(t, b.Unlink(root, "/d/f"))
	require.NoError(t, a.Rmdir(root, "/d"))
	a1, err := d.Stat()
	require.NoError(t, err)
	assert.EqualValues(t, 0, a1.Nlink)
	require.NoError(t, d.Close())
	assert.Equal(t, "hello", a.read("/link"))
	var escape *microfs.EscapeError
	require.NoError(t, a.Symlink("/elsewhere", root, "/out"))
	_, err = b.Stat(root, "/out", true)
	assert.ErrorAs(t, err, &escape)
	require.NoError(t, a.Sync())
	assert.NotZero(t, a.StatFS().Free)
	assert.True(t, r.join(wire.NoPartition).DataCRC())
}

// TestReadDir reads more names than fit into an answer, and a part of them.
func TestReadDir(t *testing.T) {
	r := newRig(t, 0)
	p := r.join(wire.NoPartition)
	for i := range wire.MaxEntries + 10 {
		require.NoError(t, p.Symlink("x", root, fmt.Sprintf("/%05d", i)))
	}
	d := p.open("/", unix.O_RDONLY|unix.O_DIRECTORY)
	for _, c := range []struct {
		after string
		n     int
		want  int
	}{{"", 0, wire.MaxEntries + 10}, {"", 5, 5}, {"02056", 0, 1}, {"02057", 7, 0}, {"00003", wire.MaxEntries + 1, wire.MaxEntries + 1}} {
		list, err := d.ReadDir(c.after, c.n)
		require.NoError(t, err)
		assert.Len(t, list, c.want, "%+v", c)
	}
	require.NoError(t, d.Close())
}

// TestNoFile makes calls that the type or the flags of an open file do not permit.
func TestNoFile(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	p.write("/f", "hello")
	one := [][]byte{{0}}
	for name, c := range map[string]struct {
		open func() vfs.File
		read error
	}{
		"directory": {func() vfs.File { return p.open("/", unix.O_RDONLY) }, syscall.EISDIR},
		"O_PATH":    {func() vfs.File { return p.open("/f", unix.O_PATH) }, syscall.EBADF},
		"read":      {func() vfs.File { return p.open("/f", unix.O_RDONLY) }, nil},
		"closed": {func() vfs.File {
			f := p.open("/f", unix.O_RDONLY)
			require.NoError(t, f.Close())
			return f
		}, syscall.EBADF},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.open()
			_, err := f.ReadAt(one, 0)
			assert.ErrorIs(t, err, c.read)
			_, err = f.WriteAt(one, 0)
			assert.ErrorIs(t, err, syscall.EBADF)
			_, _, err = f.AppendBelow(one, 10)
			assert.ErrorIs(t, err, syscall.EBADF)
			assert.ErrorIs(t, f.Truncate(0), syscall.EINVAL)
			for _, err := range []error{f.Allocate(0, 1, false), f.Punch(0, 1), f.ZeroRange(0, 1, true)} {
				assert.ErrorIs(t, err, syscall.EBADF)
			}
		})
	}
	assert.Equal(t, "hello", p.read("/f"))
	f := p.open("/f", unix.O_WRONLY)
	_, err := f.ReadAt(one, 0)
	assert.ErrorIs(t, err, syscall.EBADF)
	_, err = f.WriteAt(one, -1)
	assert.ErrorIs(t, err, syscall.EINVAL)
	n, err := f.WriteAt(nil, 3)
	assert.NoError(t, err)
	assert.Zero(t, n)
	require.NoError(t, f.Close())
}

// TestSeek checks that ranges without data are holes, also among unpublished data.
func TestSeek(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	fa, fb := a.open("/f", unix.O_CREAT|unix.O_RDWR), b.open("/f", unix.O_RDWR)
	put(t, fa, 100, "a")
	require.NoError(t, fa.Sync())
	put(t, fb, 101, strings.Repeat("b", 9))
	require.NoError(t, fb.Sync())
	require.NoError(t, fb.Truncate(200))
	put(t, fb, 150, "not published")
	for _, c := range []struct{ off, data, hole int64 }{{0, 100, 0}, {99, 100, 99}, {100, 100, 110}, {105, 105, 110}, {120, 150, 120}, {155, 155, 163}, {170, -1, 170}, {200, -1, -1}, {-1, -1, -1}} {
		requireOffset(t, c.data, c.off, fb.SeekData)
		requireOffset(t, c.hole, c.off, fb.SeekHole)
	}
	require.NoError(t, fb.Advise(0, 0, unix.FADV_WILLNEED))
	require.NoError(t, fa.Close())
	require.NoError(t, fb.Close())
}

// requireOffset requires that seek finds want, or ENXIO if that is -1.
func requireOffset(t *testing.T, want, off int64, seek func(int64) (int64, error)) {
	t.Helper()
	got, err := seek(off)
	if want < 0 {
		require.ErrorIs(t, err, syscall.ENXIO, "at %d", off)
		return
	}
	require.NoError(t, err, "at %d", off)
	require.Equal(t, want, got, "at %d", off)
}
