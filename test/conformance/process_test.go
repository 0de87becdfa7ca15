package conformance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/posixshim"
)

// runtime is the Go half of the shim over a partition in memory. Its
// descriptors are handles; a duplicate is the same handle, retained.
type runtime struct {
	*posixshim.Process
	dev  nvmf.Device
	self microfs.Cred
	dir  posixshim.Handle // the directory of the case
	name string
}

const partition = 64 << 20

func newRuntime(t *testing.T, self int) *runtime {
	t.Helper()
	dev, err := memdev.New(partition, 4096, memdev.Options{})
	require.NoError(t, err)
	r := &runtime{dev: dev, self: microfs.Cred{UID: uint32(self), GID: uint32(self)}}
	require.NoError(t, microfs.Format(context.Background(), dev, microfs.Segment{Length: partition},
		microfs.FormatOptions{Generation: 1, Size: 1, Cred: r.self}))
	r.start(t, r.self)
	t.Cleanup(func() { assert.NoError(t, r.Finish()) })
	return r
}

// start starts a process of this user.
func (r *runtime) start(t *testing.T, cred microfs.Cred) {
	r.Process = posixshim.New(func(write bool) (*vfs.Mount, error) {
		fs, err := microfs.Mount(context.Background(), r.dev, microfs.Segment{Length: partition},
			microfs.Options{Generation: 1, ReadOnly: !write, MountPoint: mount, Cred: cred})
		if err != nil {
			return nil, err
		}
		return &vfs.Mount{FS: vfs.Microfs(fs), Writable: write, Close: fs.Unmount}, nil
	}, t.Logf)
	r.Identify = func() (microfs.Cred, error) { return cred, nil }
	require.NoError(t, r.OpenForWriting())
}

// errno returns the errno that an application gets for an error.
func errno(err error) error {
	if err == nil {
		return nil
	}
	return posixshim.Errno(err)
}

func (r *runtime) at(path string) posixshim.PathAt { return posixshim.PathAt{Dir: r.dir, Path: path} }

func (r *runtime) enter(t *testing.T, dir string, owner int) {
	t.Helper()
	if r.dir != 0 {
		require.NoError(t, r.Release(r.dir))
	}
	r.dir = 0
	r.restart(t, r.self)
	r.name = dir
	require.NoError(t, r.Mkdir(r.at(dir), 0o755))
	if owner != int(r.self.UID) {
		require.NoError(t, r.Chown(r.at(dir), uint32(owner), uint32(owner), 0))
		require.NoError(t, r.Chmod(r.at("."), 0o755, 0))
		r.restart(t, microfs.Cred{UID: uint32(owner), GID: uint32(owner)})
	}
	r.reopen(t)
}

func (r *runtime) restart(t *testing.T, cred microfs.Cred) {
	t.Helper()
	require.NoError(t, r.Finish())
	r.start(t, cred)
}

func (r *runtime) reopen(t *testing.T) {
	t.Helper()
	h, err := r.Open(posixshim.PathAt{Path: r.name}, unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	r.dir = posixshim.Handle(h)
}

// become starts another process as that user.
func (r *runtime) become(t *testing.T, uid int) {
	t.Helper()
	require.NoError(t, r.Chmod(posixshim.PathAt{Path: "."}, 0o755, 0))
	r.restart(t, microfs.Cred{UID: uint32(uid), GID: uint32(uid)})
	r.reopen(t)
}

func handle(fd int) posixshim.Handle { return posixshim.Handle(fd) }

func (r *runtime) open(path string, flags int, mode uint32) (int, error) {
	fd, err := r.Open(r.at(path), flags, mode)
	return fd, errno(err)
}

func (r *runtime) dup(fd int) (int, error) { return fd, errno(r.Retain(handle(fd))) }

func (r *runtime) read(fd int, p []byte) (int, error) {
	n, err := r.Read(handle(fd), p)
	return n, errno(err)
}

func (r *runtime) write(fd int, p []byte) (int, error) {
	n, err := r.Write(handle(fd), p, posixshim.NoLimit)
	return n, errno(err)
}

func (r *runtime) pread(fd int, p []byte, off int64) (int, error) {
	n, err := r.Pread(handle(fd), p, off)
	return n, errno(err)
}

func (r *runtime) pwrite(fd int, p []byte, off int64) (int, error) {
	n, err := r.Pwrite(handle(fd), p, off, posixshim.NoLimit)
	return n, errno(err)
}

func (r *runtime) seek(fd int, off int64, whence int) (int64, error) {
	n, err := r.Seek(handle(fd), off, whence)
	return int64(n), errno(err)
}

func (r *runtime) flags(fd int) (int, error) {
	flags, err := r.Getfl(handle(fd))
	return flags, errno(err)
}

func (r *runtime) close(fd int) error { return errno(r.Release(handle(fd))) }
func (r *runtime) sync(fd int) error  { return errno(r.Fsync(handle(fd))) }
func (r *runtime) ftruncate(fd int, size int64) error {
	return errno(r.Ftruncate(handle(fd), size, posixshim.NoLimit))
}
func (r *runtime) setFlags(fd, flags int) error { return errno(r.Setfl(handle(fd), flags)) }
func (r *runtime) truncate(path string, size int64) error {
	return errno(r.Truncate(r.at(path), size, posixshim.NoLimit))
}
func (r *runtime) access(path string, mode int) error   { return errno(r.Access(r.at(path), mode, 0)) }
func (r *runtime) mkdir(path string, mode uint32) error { return errno(r.Mkdir(r.at(path), mode)) }
func (r *runtime) rmdir(path string) error              { return errno(r.Rmdir(r.at(path))) }
func (r *runtime) unlink(path string) error             { return errno(r.Unlink(r.at(path))) }
func (r *runtime) link(from, to string) error           { return errno(r.Link(r.at(from), r.at(to), 0)) }
func (r *runtime) symlink(target, path string) error    { return errno(r.Symlink(target, r.at(path))) }

func (r *runtime) rename(from, to string, flags uint) error {
	return errno(r.Rename(r.at(from), r.at(to), uint32(flags)))
}

// bytesOf returns the memory of a structure, as the C half passes it.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// follow returns the flags for calls that follow a symbolic link, or not.
func follow(does bool) int {
	if does {
		return 0
	}
	return unix.AT_SYMLINK_NOFOLLOW
}

func (r *runtime) stat(path string, follows bool) (st unix.Stat_t, err error) {
	err = errno(r.Stat(r.at(path), follow(follows), bytesOf(&st)))
	return st, err
}

func (r *runtime) fstat(fd int) (st unix.Stat_t, err error) {
	err = errno(r.Fstat(handle(fd), bytesOf(&st)))
	return st, err
}

func (r *runtime) chmod(path string, mode uint32) error {
	return errno(r.Chmod(r.at(path), mode, 0))
}

func (r *runtime) chown(path string, uid, gid int, follows bool) error {
	return errno(r.Chown(r.at(path), uint32(uid), uint32(gid), follow(follows)))
}

func (r *runtime) utimens(path string, times *[2]unix.Timespec) error {
	if times == nil {
		return errno(r.Utimes(r.at(path), nil, 1, 0))
	}
	return errno(r.Utimes(r.at(path), bytesOf(times), 1, 0))
}

func (r *runtime) readlink(path string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := r.Readlink(r.at(path), buf)
	return string(buf[:n]), errno(err)
}

func (r *runtime) list(path string) ([]string, error) {
	fd, err := r.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	names, err := entries(func(buf []byte) (int, error) {
		n, err := r.Getdents(handle(fd), buf)
		return n, errno(err)
	})
	return names, errors.Join(err, r.close(fd))
}

// entries reads a directory's entries: struct dirent64.
func entries(getdents func([]byte) (int, error)) ([]string, error) {
	var names []string
	for buf := make([]byte, 8192); ; {
		n, err := getdents(buf)
		if n == 0 || err != nil {
			return names, err
		}
		for b := buf[:n]; len(b) > 0; b = b[binary.NativeEndian.Uint16(b[16:]):] {
			name, _, _ := bytes.Cut(b[19:], []byte{0})
			names = append(names, string(name)+map[byte]string{syscall.DT_DIR: "/", syscall.DT_LNK: "@", syscall.DT_REG: ""}[b[18]])
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
