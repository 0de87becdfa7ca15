package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// kernel makes system calls on the files of a local directory. Its thread is locked, since credentials are a property of a thread.
type kernel struct {
	base string
	dir  int // the directory of the case
}

func (k *kernel) enter(t *testing.T, dir string, owner int) {
	t.Helper()
	if k.dir > 0 {
		require.NoError(t, unix.Close(k.dir))
	}
	if os.Getuid() == 0 {
		k.become(t, 0)
	}
	path := filepath.Join(k.base, dir)
	require.NoError(t, os.Mkdir(path, 0o755))
	if owner != os.Getuid() {
		require.NoError(t, os.Chown(path, owner, owner))
		k.become(t, owner)
	}
	var err error
	k.dir, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
}

// become changes the user of this thread's file calls, without supplementary groups.
func (k *kernel) become(t *testing.T, uid int) {
	t.Helper()
	if uid != 0 {
		_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		require.Zero(t, errno)
	}
	require.NoError(t, unix.Setfsgid(uid))
	require.NoError(t, unix.Setfsuid(uid))
}

func (k *kernel) open(path string, flags int, mode uint32) (int, error) {
	return unix.Openat(k.dir, path, flags, mode)
}

func (k *kernel) close(fd int) error                   { return unix.Close(fd) }
func (k *kernel) dup(fd int) (int, error)              { return unix.Dup(fd) }
func (k *kernel) read(fd int, p []byte) (int, error)   { return unix.Read(fd, p) }
func (k *kernel) write(fd int, p []byte) (int, error)  { return unix.Write(fd, p) }
func (k *kernel) sync(fd int) error                    { return unix.Fsync(fd) }
func (k *kernel) ftruncate(fd int, size int64) error   { return unix.Ftruncate(fd, size) }
func (k *kernel) mkdir(path string, mode uint32) error { return unix.Mkdirat(k.dir, path, mode) }
func (k *kernel) rmdir(path string) error              { return unix.Unlinkat(k.dir, path, unix.AT_REMOVEDIR) }
func (k *kernel) unlink(path string) error             { return unix.Unlinkat(k.dir, path, 0) }
func (k *kernel) link(from, to string) error           { return unix.Linkat(k.dir, from, k.dir, to, 0) }
func (k *kernel) symlink(target, path string) error    { return unix.Symlinkat(target, k.dir, path) }
func (k *kernel) chmod(path string, mode uint32) error { return unix.Fchmodat(k.dir, path, mode, 0) }
func (k *kernel) setFlags(fd, flags int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return err
}
func (k *kernel) flags(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0) }
func (k *kernel) seek(fd int, off int64, whence int) (int64, error) {
	return unix.Seek(fd, off, whence)
}

func (k *kernel) pread(fd int, p []byte, off int64) (int, error)  { return unix.Pread(fd, p, off) }
func (k *kernel) pwrite(fd int, p []byte, off int64) (int, error) { return unix.Pwrite(fd, p, off) }

func (k *kernel) rename(from, to string, flags uint) error {
	return unix.Renameat2(k.dir, from, k.dir, to, flags)
}

// truncate(2) has no form relative to a directory, and the working directory is shared by threads.
func (k *kernel) truncate(path string, size int64) error {
	if path == "" {
		return unix.ENOENT
	}
	dir, err := os.Readlink(filepath.Join("/proc/self/fd", itoa(k.dir)))
	if err != nil {
		return err
	}
	return unix.Truncate(dir+"/"+path, size)
}

func (k *kernel) stat(path string, follow bool) (st unix.Stat_t, err error) {
	flags := 0
	if !follow {
		flags = unix.AT_SYMLINK_NOFOLLOW
	}
	return st, unix.Fstatat(k.dir, path, &st, flags)
}

func (k *kernel) fstat(fd int) (st unix.Stat_t, err error) { return st, unix.Fstat(fd, &st) }

func (k *kernel) access(path string, mode int) error {
	return unix.Faccessat(k.dir, path, uint32(mode), unix.AT_EACCESS)
}

func (k *kernel) chown(path string, uid, gid int, follow bool) error {
	flags := 0
	if !follow {
		flags = unix.AT_SYMLINK_NOFOLLOW
	}
	return unix.Fchownat(k.dir, path, uid, gid, flags)
}

// utimens makes the system call directly, since unix.UtimesNanoAt does not accept nil.
func (k *kernel) utimens(path string, times *[2]unix.Timespec) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(k.dir), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (k *kernel) readlink(path string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(k.dir, path, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (k *kernel) list(path string) ([]string, error) {
	fd, err := k.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	names, err := entries(func(buf []byte) (int, error) { return unix.Getdents(fd, buf) })
	return names, errors.Join(err, unix.Close(fd))
}
