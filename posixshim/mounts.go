package posixshim

import (
	"fmt"
	"sync/atomic"
	"time"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A mountPoint is one of the mounts of a process. Process.mu guards what is not atomic.
type mountPoint struct {
	p      *Process
	path   string // where it is; "" if paths are told from its root on
	number microfs.Ino
	open   func(write bool) (*vfs.Mount, error)

	mount  *vfs.Mount    // nil until something needs it
	opened time.Time     // when mount was
	maxAge time.Duration // how long a mount for reading is good for
	tree   atomic.Bool   // mount.Tree

	stale atomic.Bool // another process may have written since opened
	// redirected is set when another process makes the calls of this one that
	// change something: what is read here has to show them at once.
	redirected atomic.Bool
}

// NV_MOUNTS of shim/wire.h is how many mounts a process can have.
const maxMounts = 4

// MountAt says where the first mount is, before the first call. Paths that are told begin with that.
func (p *Process) MountAt(path string) { p.mounts[0].path = path }

// AddMount adds a mount at a path, before the first call. Its number is that of those before it, of which there is one; a
// PathAt.Dir names its root by the number. What has it open for writing is this process alone: open may refuse that with EROFS.
func (p *Process) AddMount(path string, open func(write bool) (*vfs.Mount, error)) error {
	number := microfs.Ino(len(p.mounts))
	if number == maxMounts {
		return fmt.Errorf("%s would be mount %d, and a process has at most %d", path, number+1, maxMounts)
	}
	p.mounts = append(p.mounts, &mountPoint{p: p, path: path, number: number, open: func(write bool) (*vfs.Mount, error) {
		m, err := open(write)
		if err == nil {
			m.FS = numberedFS{m.FS, number}
		}
		return m, err
	}})
	return nil
}

// mountOf returns the mount that a path begins in: of an open file, or by its number.
func (p *Process) mountOf(h Handle) (*mountPoint, error) {
	if h >= 0 && h < Handle(len(p.mounts)) {
		return p.mounts[h], nil
	}
	f, err := p.files.get(h &^ Itself)
	if err != nil {
		return nil, err
	}
	return f.at, nil
}

// whole is a path that begins at the root of the mount as the process has it.
func (m *mountPoint) whole(path string) string {
	if path == "/" && m.path != "" {
		return m.path
	}
	return m.path + path
}

// The inodes of a mount have its number in their upper bits: so locks, mappings and what is handed over tell the
// files of two mounts apart by their inodes. Those of the first mount stay what they are. Numbers of
// internal/unionfs do not reach mountShift.
const mountShift = 61

func mountNumber(ino microfs.Ino) microfs.Ino { return ino >> mountShift }

func inside(ino microfs.Ino) microfs.Ino { return ino & (1<<mountShift - 1) }

// numberedFS is the file system of a mount with its number in the inodes.
type numberedFS struct {
	vfs.FS
	number microfs.Ino
}

func (n numberedFS) outside(ino microfs.Ino) microfs.Ino { return n.number<<mountShift | ino }

func (n numberedFS) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	if l, ok := f.(vfs.Locker); ok {
		return struct {
			numberedFile
			vfs.Locker
		}{numberedFile{f, n}, l}, nil
	}
	return numberedFile{f, n}, nil
}

func (n numberedFS) Open(dir microfs.Ino, path string, flags int, mode uint32) (vfs.File, error) {
	return n.file(n.FS.Open(inside(dir), path, flags, mode))
}

func (n numberedFS) OpenIno(ino microfs.Ino, flags int) (vfs.File, error) {
	return n.file(n.FS.OpenIno(inside(ino), flags))
}

func (n numberedFS) Stat(dir microfs.Ino, path string, follow bool) (microfs.Attr, error) {
	a, err := n.FS.Stat(inside(dir), path, follow)
	a.Ino = n.outside(a.Ino)
	return a, err
}

func (n numberedFS) Access(dir microfs.Ino, path string, mode uint32, follow bool) error {
	return n.FS.Access(inside(dir), path, mode, follow)
}

func (n numberedFS) AccessAs(who microfs.Cred, dir microfs.Ino, path string, mode uint32, follow bool) error {
	return n.FS.AccessAs(who, inside(dir), path, mode, follow)
}

func (n numberedFS) Mkdir(dir microfs.Ino, path string, mode uint32) error {
	return n.FS.Mkdir(inside(dir), path, mode)
}

func (n numberedFS) Rmdir(dir microfs.Ino, path string) error { return n.FS.Rmdir(inside(dir), path) }

func (n numberedFS) Unlink(dir microfs.Ino, path string) error { return n.FS.Unlink(inside(dir), path) }

func (n numberedFS) Rename(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, flags uint) error {
	return n.FS.Rename(inside(odir), opath, inside(ndir), npath, flags)
}

func (n numberedFS) Link(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, follow bool) error {
	return n.FS.Link(inside(odir), opath, inside(ndir), npath, follow)
}

func (n numberedFS) Symlink(target string, dir microfs.Ino, path string) error {
	return n.FS.Symlink(target, inside(dir), path)
}

func (n numberedFS) Readlink(dir microfs.Ino, path string) (string, error) {
	return n.FS.Readlink(inside(dir), path)
}

func (n numberedFS) Truncate(dir microfs.Ino, path string, size int64) error {
	return n.FS.Truncate(inside(dir), path, size)
}

func (n numberedFS) SetAttr(dir microfs.Ino, path string, follow bool, s microfs.SetAttr) error {
	return n.FS.SetAttr(inside(dir), path, follow, s)
}

func (n numberedFS) PathOf(dir microfs.Ino) (string, error) { return n.FS.PathOf(inside(dir)) }

func (n numberedFS) RealPath(dir microfs.Ino, path string) (string, error) {
	return n.FS.RealPath(inside(dir), path)
}

// numberedFile is an open file of a numberedFS.
type numberedFile struct {
	vfs.File
	fs numberedFS
}

func (f numberedFile) inner() vfs.File { return f.File }

func (f numberedFile) Ino() microfs.Ino { return f.fs.outside(f.File.Ino()) }

func (f numberedFile) Stat() (microfs.Attr, error) {
	a, err := f.File.Stat()
	a.Ino = f.fs.outside(a.Ino)
	return a, err
}

func (f numberedFile) ReadDir(after string, n int) ([]microfs.Dirent, error) {
	list, err := f.File.ReadDir(after, n)
	for i := range list {
		list[i].Ino = f.fs.outside(list[i].Ino)
	}
	return list, err
}
