package posixshim

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// twoMounts returns a process with its partition at /nvmecr and another one at /other, and the two partitions.
func twoMounts(t *testing.T) (p *Process, first, second *partition) {
	first, second = newPartition(t), newPartition(t)
	p = first.process(t)
	p.MountAt("/nvmecr")
	require.NoError(t, p.AddMount("/other", second.open))
	for n := range Handle(2) {
		require.NoError(t, p.Mkdir(PathAt{n, "d"}, 0o700))
		h, err := p.Open(PathAt{n, "d/f"}, create, 0o600)
		require.NoError(t, err)
		_, err = p.Write(Handle(h), []byte{'0' + byte(n)}, NoLimit)
		require.NoError(t, err)
		require.NoError(t, p.Release(Handle(h)))
	}
	return p, first, second
}

// openAt opens a file. The open must not fail.
func openAt(t *testing.T, p *Process, at PathAt, flags int) Handle {
	t.Helper()
	h, err := p.Open(at, flags, 0o600)
	require.NoError(t, err)
	return Handle(h)
}

func content(t *testing.T, p *Process, h Handle) string {
	t.Helper()
	buf := make([]byte, 100)
	n, err := p.Pread(h, buf, 0)
	require.NoError(t, err)
	return string(buf[:n])
}

// TestMountsHaveFilesOfTheirOwn checks that the same path names different files in two mounts, and that there can be
// four mounts.
func TestMountsHaveFilesOfTheirOwn(t *testing.T) {
	p, _, _ := twoMounts(t)
	for n, want := range []string{"0", "1"} {
		d := openAt(t, p, PathAt{Handle(n), "d"}, syscall.O_RDONLY)
		assert.Equal(t, want, content(t, p, openAt(t, p, PathAt{d, "f"}, syscall.O_RDONLY)), "relative to a directory of mount %d", n)
	}
	_, err := p.Open(PathAt{2, "d"}, syscall.O_RDONLY, 0)
	assert.Equal(t, syscall.EBADF, err, "there is no mount 2")

	f := openAt(t, p, PathAt{1, "d/f"}, syscall.O_RDWR)
	require.NoError(t, p.Unlink(PathAt{0, "d/f"}))
	assert.Equal(t, "1", content(t, p, f))
	require.NoError(t, p.AddMount("/third", p.mounts[1].open))
	require.NoError(t, p.AddMount("/fourth", p.mounts[1].open))
	assert.Error(t, p.AddMount("/fifth", p.mounts[1].open))
}

// TestMountsAreDevices checks that st_dev and f_fsid differ between mounts.
func TestMountsAreDevices(t *testing.T) {
	p, _, _ := twoMounts(t)
	var st [2]unix.Stat_t
	var vfs [2]statvfs
	var fs [2]syscall.Statfs_t
	for n := range 2 {
		require.NoError(t, p.Stat(PathAt{Handle(n), "d/f"}, 0, structure(&st[n])))
		require.NoError(t, p.Statvfs(PathAt{Handle(n), "d/f"}, structure(&vfs[n])))
		require.NoError(t, p.Fstatfs(openAt(t, p, PathAt{Handle(n), "d/f"}, syscall.O_RDONLY), structure(&fs[n])))
		assert.Equal(t, vfs[n].Fsid, uint64(fs[n].Fsid.X__val[0]))
	}
	assert.NotEqual(t, st[0].Dev, st[1].Dev)
	assert.NotEqual(t, vfs[0].Fsid, vfs[1].Fsid)

	var x unix.Statx_t
	d := openAt(t, p, PathAt{1, "d"}, syscall.O_RDONLY)
	require.NoError(t, p.Statx(PathAt{d, "f"}, 0, unix.STATX_ALL, structure(&x)))
	assert.Equal(t, st[1].Dev, unix.Mkdev(x.Dev_major, x.Dev_minor))
	assert.Equal(t, st[1].Ino, x.Ino)
	assert.Equal(t, syscall.EBADF, p.Fstatfs(0x7_0000_0005, structure(&fs[0])))
}

// TestNoNameLeadsIntoAnotherMount checks that rename and link fail with EXDEV between two mounts.
func TestNoNameLeadsIntoAnotherMount(t *testing.T) {
	p, _, _ := twoMounts(t)
	d := openAt(t, p, PathAt{1, "d"}, syscall.O_RDONLY)
	f := openAt(t, p, PathAt{1, "d/f"}, syscall.O_RDONLY)
	assert.Equal(t, syscall.EXDEV, p.Rename(at("d/f"), PathAt{1, "g"}, 0))
	assert.Equal(t, syscall.EXDEV, p.Rename(PathAt{1, "d/f"}, at("g"), 0))
	assert.Equal(t, syscall.EXDEV, p.Rename(at("d/f"), PathAt{d, "g"}, 0))
	assert.Equal(t, syscall.EXDEV, p.Link(at("d/f"), PathAt{d, "g"}, 0))
	assert.Equal(t, syscall.EXDEV, p.Link(PathAt{f | Itself, "."}, at("g"), 0))
	require.NoError(t, p.Rename(PathAt{1, "d/f"}, PathAt{d, "g"}, 0))
	require.NoError(t, p.Link(PathAt{d, "g"}, PathAt{1, "h"}, 0))
}

// TestLinksLeadIntoAnotherMount checks that a symbolic link into another mount causes an error with the target's
// path. The shim uses that path to find the mount.
func TestLinksLeadIntoAnotherMount(t *testing.T) {
	p, _, _ := twoMounts(t)
	require.NoError(t, p.Symlink("/other/d/f", at("link")))
	_, err := p.Open(at("link"), syscall.O_RDONLY, 0)
	var escape *microfs.EscapeError
	require.ErrorAs(t, err, &escape)
	assert.Equal(t, "/other/d/f", escape.Path)
}

// TestPathsBeginWithTheirMount checks that paths of open files and results of realpath begin with the path of their
// mount.
func TestPathsBeginWithTheirMount(t *testing.T) {
	p, _, _ := twoMounts(t)
	require.NoError(t, p.Symlink("d/f", PathAt{1, "link"}))
	buf := make([]byte, 100)
	told := func(n int, err error) string {
		require.NoError(t, err)
		return string(buf[:n])
	}
	for n, mount := range []string{"/nvmecr", "/other"} {
		n := Handle(n)
		assert.Equal(t, mount, told(p.Fpath(openAt(t, p, PathAt{n, "."}, syscall.O_RDONLY), buf)))
		assert.Equal(t, mount, told(p.Realpath(PathAt{n, "d/.."}, buf)))
		assert.Equal(t, mount+"/d", told(p.Fpath(openAt(t, p, PathAt{n, "d"}, syscall.O_RDONLY), buf)))
		assert.Equal(t, mount+"/d/f", told(p.Name(openAt(t, p, PathAt{n, "d/f"}, syscall.O_RDONLY), buf)))
	}
	assert.Equal(t, "/other/d/f", told(p.Realpath(PathAt{1, "link"}, buf)))
	f := openAt(t, p, PathAt{1, "d/f"}, syscall.O_RDONLY)
	require.NoError(t, p.Unlink(PathAt{1, "d/f"}))
	assert.Equal(t, "/other/d/f (deleted)", told(p.Name(f, buf)))
}

// TestMountsShareNoInodes checks that files of two mounts with the same inode number share neither locks nor
// mappings.
func TestMountsShareNoInodes(t *testing.T) {
	p, _, _ := twoMounts(t)
	var files [2]Handle
	for n := range files {
		files[n] = openAt(t, p, PathAt{Handle(n), "d/f"}, syscall.O_RDWR)
	}
	first, second := p.mounts[0].mount.FS, p.mounts[1].mount.FS.(numberedFS).FS
	a, err := first.Stat(microfs.RootIno, "d/f", false)
	require.NoError(t, err)
	b, err := second.Stat(microfs.RootIno, "d/f", false)
	require.NoError(t, err)
	require.Equal(t, a.Ino, b.Ino, "or this test shows nothing")
	require.NoError(t, p.Flock(files[0], syscall.LOCK_EX|syscall.LOCK_NB))
	assert.NoError(t, p.Flock(files[1], syscall.LOCK_EX|syscall.LOCK_NB))
	for _, h := range files {
		_, err := p.Map(h, MapShared|MapWrite, 0, page)
		require.NoError(t, err)
	}
	assert.Len(t, p.maps.files, 2)
	for _, h := range files {
		require.NoError(t, p.Unmap(h))
	}

	d := openAt(t, p, PathAt{1, "d"}, syscall.O_RDONLY)
	var st unix.Stat_t
	require.NoError(t, p.Fstat(files[1], structure(&st)))
	f, err := p.files.get(d)
	require.NoError(t, err)
	list, err := f.current().ReadDir("", 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, st.Ino, uint64(list[0].Ino))
	assert.Equal(t, []string{".", "..", "f"}, names(t, p, d, 4096))
}

// TestMountsAreOpenedByThemselves checks that each mount is opened by the first call on its files, and that it is
// given up independently of the other mount.
func TestMountsAreOpenedByThemselves(t *testing.T) {
	p, first, second := twoMounts(t)
	require.NoError(t, p.Finish())
	first.opened, second.opened = nil, nil

	p = first.process(t)
	require.NoError(t, p.AddMount("/other", second.open))
	r := openAt(t, p, PathAt{1, "d/f"}, syscall.O_RDONLY)
	assert.Empty(t, first.opened)
	assert.Equal(t, []string{"read"}, second.opened)
	w := file(t, p, "d/f", syscall.O_RDWR)
	assert.Equal(t, []string{"write"}, first.opened)
	assert.Equal(t, []string{"read"}, second.opened)
	assert.False(t, p.Yield(), "a file of it is open for writing")
	require.NoError(t, p.Release(w))
	assert.True(t, p.Yield())
	assert.Equal(t, "1", content(t, p, r), "files of the other mount stay open")
	assert.Equal(t, []string{"write"}, first.opened, "and nobody needs this one")

	second.refuse = syscall.EROFS
	_, err := p.Open(PathAt{1, "new"}, create, 0o600)
	assert.Equal(t, syscall.EROFS, Errno(err))
	assert.Equal(t, syscall.EROFS, Errno(p.Access(PathAt{1, "d/f"}, unix.W_OK, 0)))
	assert.NoError(t, p.Access(PathAt{1, "d/f"}, unix.R_OK, 0))
	second.refuse = nil
	require.NoError(t, p.Syncfs())
}
