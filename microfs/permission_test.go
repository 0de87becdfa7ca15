package microfs

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

var (
	root = Cred{}
	user = Cred{UID: 1000, GID: 1000}
)

// mountedAs mounts a file system whose root directory has mode 0777. The function that it returns
// changes the credentials of later calls.
func mountedAs(t *testing.T, c Cred) (*FS, func(Cred)) {
	dev := memory(t, 256*nvmf.MiB, 4096)
	seg := Segment{Length: 256 * nvmf.MiB}
	require.NoError(t, Format(context.Background(), dev, seg, FormatOptions{RootMode: 0o777, Cred: c}))
	fs, err := Mount(context.Background(), dev, seg, Options{Cred: c})
	require.NoError(t, err)
	t.Cleanup(func() { _ = fs.Unmount() })
	return fs, func(c Cred) { fs.opts.Cred = c }
}

// errnoOf returns what the caller of a system call would see.
func errnoOf(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// TestPermissions checks the errno of calls that an unprivileged user may not make. Where several
// errors apply it is the one that the Linux kernel returns.
func TestPermissions(t *testing.T) {
	stat := func(fs *FS, path string) error { _, err := fs.Stat(RootIno, path, true); return err }
	open := func(fs *FS, path string, flags int) error { _, err := fs.Open(RootIno, path, flags, 0o600); return err }
	mode, uid := uint32(0o700), uint32(1000)
	tests := []struct {
		name string
		want error
		call func(fs *FS) error
	}{
		{"unlink a directory", unix.EACCES, func(fs *FS) error { return fs.Unlink(RootIno, "ro/sub") }},
		{"rmdir a file", unix.EACCES, func(fs *FS) error { return fs.Rmdir(RootIno, "ro/f") }},
		{"mkdir over a file", unix.EEXIST, func(fs *FS) error { return fs.Mkdir(RootIno, "ro/f", 0o700) }},
		{"mkdir", unix.EACCES, func(fs *FS) error { return fs.Mkdir(RootIno, "ro/new", 0o700) }},
		{"create", unix.EACCES, func(fs *FS) error { return open(fs, "ro/new", unix.O_CREAT|unix.O_RDWR) }},
		{"create over a file", unix.EEXIST, func(fs *FS) error { return open(fs, "ro/f", unix.O_CREAT|unix.O_EXCL) }},
		{"rmdir in a sticky directory", unix.EPERM, func(fs *FS) error { return fs.Rmdir(RootIno, "sticky/theirs") }},
		{"rename in a sticky directory", unix.EPERM, func(fs *FS) error { return fs.Rename(RootIno, "sticky/theirs", RootIno, "sticky/x", 0) }},
		{"stat without search", unix.EACCES, func(fs *FS) error { return stat(fs, "noexec/f") }},
		{"readlink without search", unix.EACCES, func(fs *FS) error { _, err := fs.Readlink(RootIno, "noexec/f"); return err }},
		{"truncate without search", unix.EACCES, func(fs *FS) error { return fs.Truncate(RootIno, "noexec/f", 0) }},
		{"link without search", unix.EACCES, func(fs *FS) error { return fs.Link(RootIno, "noexec/f", RootIno, "mine/l", false) }},
		{"chmod of theirs", unix.EPERM, func(fs *FS) error { return fs.SetAttr(RootIno, "ro/f", true, SetAttr{Mode: &mode}) }},
		{"chown of theirs", unix.EPERM, func(fs *FS) error { return fs.SetAttr(RootIno, "ro/f", true, SetAttr{UID: &uid}) }},
		{"chown of mine", unix.EPERM, func(fs *FS) error { return fs.SetAttr(RootIno, "mine", true, SetAttr{UID: new(uint32)}) }},
		{"read", unix.EACCES, func(fs *FS) error { return open(fs, "secret", unix.O_RDONLY) }},
		{"write", unix.EACCES, func(fs *FS) error { return open(fs, "ro/f", unix.O_WRONLY) }},
		{"truncate by open", unix.EACCES, func(fs *FS) error { return open(fs, "ro/f", unix.O_RDONLY|unix.O_TRUNC) }},
		{"access mode 3", unix.EACCES, func(fs *FS) error { return open(fs, "ro/f", unix.O_ACCMODE) }},
	}
	fs, as := mountedAs(t, root)
	for _, dir := range []string{"ro", "ro/sub", "sticky", "sticky/theirs", "noexec", "mine"} {
		require.NoError(t, fs.Mkdir(RootIno, dir, 0o755))
	}
	for path, mode := range map[string]uint32{"ro/f": 0o644, "noexec/f": 0o666, "secret": 0o600, "sticky": 0o1777, "noexec": 0o666} {
		if _, err := fs.Stat(RootIno, path, true); err != nil {
			require.NoError(t, openNew(t, fs, path).Close())
		}
		require.NoError(t, fs.SetAttr(RootIno, path, false, SetAttr{Mode: &mode}))
	}
	require.NoError(t, fs.SetAttr(RootIno, "mine", false, SetAttr{UID: &uid}))
	as(user)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, errnoOf(tc.call(fs)))
		})
	}
}

// TestNeitherReadNorWrite checks files opened with O_PATH and with access mode 3: neither can be read,
// written or truncated. O_PATH needs no permission for the file, and ignores O_TRUNC and O_CREAT.
func TestNeitherReadNorWrite(t *testing.T) {
	fs, as := mountedAs(t, root)
	secret := openNew(t, fs, "secret")
	_, err := secret.WriteAt([][]byte{[]byte("secret")}, 0)
	require.NoError(t, err)
	tests := []struct {
		name  string
		cred  Cred
		flags int
	}{
		{"O_PATH", user, unix.O_PATH},
		{"O_PATH for writing", user, unix.O_PATH | unix.O_RDWR},
		{"O_PATH and O_TRUNC", user, unix.O_PATH | unix.O_TRUNC},
		{"access mode 3", root, unix.O_ACCMODE},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			as(tc.cred)
			f, err := fs.Open(RootIno, "secret", tc.flags, 0)
			require.NoError(t, err)
			defer f.Close()
			_, err = f.ReadAt([][]byte{make([]byte, 6)}, 0)
			assert.ErrorIs(t, err, unix.EBADF)
			_, err = f.WriteAt([][]byte{make([]byte, 6)}, 0)
			assert.ErrorIs(t, err, unix.EBADF)
			_, _, err = f.Append([][]byte{make([]byte, 6)})
			assert.ErrorIs(t, err, unix.EBADF)
			assert.Error(t, f.Truncate(0))
			a, err := f.Stat()
			require.NoError(t, err)
			assert.EqualValues(t, 6, a.Size)
		})
	}
	_, err = fs.Open(RootIno, "new", unix.O_PATH|unix.O_CREAT, 0o600)
	assert.ErrorIs(t, err, unix.ENOENT)
}

// TestSetIDBits checks which calls, by which user, clear S_ISUID and S_ISGID of a file.
func TestSetIDBits(t *testing.T) {
	other := uint32(77)
	write := func(f *File) error { _, err := f.WriteAt([][]byte{{1}}, 0); return err }
	truncate := func(f *File) error { return f.Truncate(0) }
	chgrp := func(f *File) error { return f.SetAttr(SetAttr{GID: &user.GID}) }
	chown := func(f *File) error { return f.SetAttr(SetAttr{UID: &other}) }
	chmod := func(f *File) error { m := uint32(0o2775); return f.SetAttr(SetAttr{Mode: &m}) }
	tests := []struct {
		name   string
		by     Cred
		gid    uint32 // of the file
		before uint32
		call   func(f *File) error
		after  uint32
	}{
		{"write by its owner", user, 1000, 0o6777, write, 0o777},
		{"write without group execution", user, 1000, 0o6767, write, 0o2767},
		{"write by root", root, 1000, 0o6777, write, 0o6777},
		{"truncate by its owner", user, 1000, 0o6777, truncate, 0o777},
		{"truncate by root", root, 1000, 0o6777, truncate, 0o6777},
		{"write by its owner outside its group", user, 77, 0o6767, write, 0o767},
		{"chgrp to the group it has", user, 77, 0o640, func(f *File) error { return f.SetAttr(SetAttr{GID: &other}) }, 0o640},
		{"chgrp by its owner", user, 1000, 0o6777, chgrp, 0o777},
		{"chown by root", root, 1000, 0o6777, chown, 0o777},
		{"chmod g+s by its owner", user, 1000, 0o600, chmod, 0o2775},
		{"chmod g+s by its owner outside its group", user, 77, 0o600, chmod, 0o775},
		{"chmod g+s by root", root, 77, 0o600, chmod, 0o2775},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			fs, as := mountedAs(t, root)
			f := openNew(t, fs, "f")
			require.NoError(t, f.SetAttr(SetAttr{UID: &user.UID, GID: &tc.gid}))
			require.NoError(t, f.SetAttr(SetAttr{Mode: &tc.before}))
			as(tc.by)
			require.NoError(t, tc.call(f))
			a, err := f.Stat()
			require.NoError(t, err)
			require.EqualValues(t, tc.after, a.Mode&modePerm, "%o", a.Mode)
		})
	}
}

// TestSetGIDDirectory creates files in a directory with S_ISGID, which get the group of the directory.
// It checks that S_ISGID is cleared from the mode of a new file that its group may execute, unless the
// user is a member of that group or root.
func TestSetGIDDirectory(t *testing.T) {
	for _, tc := range []struct {
		name string
		by   Cred
		mode uint32
		want uint32
	}{
		{"by another", user, 0o2755, 0o755},
		{"by another, for nobody to run", user, 0o2644, 0o2644},
		{"by one of the group", Cred{UID: 1000, GID: 1000, Groups: []uint32{77}}, 0o2755, 0o2755},
		{"by root", root, 0o2755, 0o2755},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs, as := mountedAs(t, root)
			require.NoError(t, fs.Mkdir(RootIno, "d", 0o777))
			group, mode := uint32(77), uint32(0o2777)
			require.NoError(t, fs.SetAttr(RootIno, "d", false, SetAttr{GID: &group}))
			require.NoError(t, fs.SetAttr(RootIno, "d", false, SetAttr{Mode: &mode}))
			as(tc.by)
			f, err := fs.Open(RootIno, "d/f", unix.O_CREAT|unix.O_RDWR, tc.mode)
			require.NoError(t, err)
			defer f.Close()
			a, err := f.Stat()
			require.NoError(t, err)
			require.EqualValues(t, tc.want, a.Mode&modePerm, "%o", a.Mode)
			require.Equal(t, group, a.GID)
		})
	}
}

// TestRenameToItself checks that a rename to another hard link of the same file succeeds without any
// permission, because it changes nothing.
func TestRenameToItself(t *testing.T) {
	fs, as := mountedAs(t, root)
	require.NoError(t, fs.Mkdir(RootIno, "d", 0o755))
	require.NoError(t, openNew(t, fs, "d/a").Close())
	require.NoError(t, fs.Link(RootIno, "d/a", RootIno, "d/b", false))
	as(user)
	require.NoError(t, fs.Rename(RootIno, "d/a", RootIno, "d/b", 0))
	require.NoError(t, fs.Rename(RootIno, "d/a", RootIno, "d/b", unix.RENAME_EXCHANGE))
	require.ErrorIs(t, fs.Rename(RootIno, "d/a", RootIno, "d/c", 0), unix.EACCES)
}

// TestClosedFlag checks that a file counts as closed once its last writer has closed it, not before, and
// not after the writer has crashed.
func TestClosedFlag(t *testing.T) {
	c, fs := mounted(t, variants[0])
	closed := func() bool {
		a, err := fs.Stat(RootIno, "f", false)
		require.NoError(t, err)
		return a.Closed
	}
	openNew(t, fs, "f")
	require.False(t, closed(), "just created")
	fs = c.again(fs)
	require.False(t, closed(), "its writer has died")
	first := openNew(t, fs, "f")
	_, err := first.WriteAt([][]byte{{1}}, 0)
	require.NoError(t, err)
	second := openNew(t, fs, "f")
	require.NoError(t, first.Close())
	require.False(t, closed(), "the other writer has not closed it")
	require.NoError(t, second.Close())
	require.True(t, closed())
	fs = c.again(fs)
	require.True(t, closed(), "after a crash")

	f, err := fs.Open(RootIno, "empty", unix.O_CREAT|unix.O_WRONLY, 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	a, err := fs.Stat(RootIno, "empty", false)
	require.NoError(t, err)
	require.True(t, a.Closed, "created and closed")
}
