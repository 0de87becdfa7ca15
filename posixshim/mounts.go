package posixshim

import (
	"fmt"
	"sync/atomic"
	"time"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A mountPoint is one of the mounts of a process. The first four fields do not change after the first call. Process.mu guards those
// that are not atomic.
type mountPoint struct {
	p      *Process
	path   string // its path; "": paths are returned as they are below its root
	number microfs.Ino
	open   func(write bool) (*vfs.Mount, error)

	mount  *vfs.Mount    // nil: not open
	opened time.Time     // when mount was opened or found up to date
	maxAge time.Duration // how long a mount for reading is used without a check
	tree   atomic.Bool   // mount.Tree

	stale atomic.Bool // another process may have written since opened
	// redirected is set when another process makes those calls of this process that change something. Reads here have to see the
	// changes at once.
	redirected atomic.Bool
}

// maxMounts is NV_MOUNTS of shim/wire.h.
const maxMounts = 4

// MountAt sets the path of the first mount, with which paths that are returned then begin. It is called before the first call.
func (p *Process) MountAt(path string) { p.mounts[0].path = path }

// AddMount adds a mount at a path, before the first call. The mounts are numbered in this order; the first, number 0, is that of
// New. The number is PathAt.Dir for the root of the mount. open may refuse to open the mount for writing, with EROFS.
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

// mountOf returns the mount of an open file, or the mount of that number.
func (p *Process) mountOf(h Handle) (*mountPoint, error) {
	if h >= 0 && h < Handle(len(p.mounts)) {
		return p.mounts[h], nil
	}
	f, err := p.files.get(h &^ Itself)
	if err != nil {
		return nil, err
	}
	return f.mountPoint, nil
}

// absolute returns the path, in the name space of the process, of a path from the root of the mount.
func (m *mountPoint) absolute(path string) string {
	if path == "/" && m.path != "" {
		return m.path
	}
	return m.path + path
}

// Inode numbers of a mount have the mount's number in their upper bits, so that they are unique in the process: locks, mappings
// and the handover identify files by them. Those of the first mount, number 0, do not change. Inode numbers of internal/unionfs
// are smaller than 1<<mountShift.
const mountShift = 61

func mountNumber(ino microfs.Ino) microfs.Ino { return ino >> mountShift }

func localIno(ino microfs.Ino) microfs.Ino { return ino & (1<<mountShift - 1) }

// numberedFS is the file system of a mount, with the mount's number in its inode numbers.
type numberedFS struct {
	vfs.FS
	number microfs.Ino
}

func (n numberedFS) globalIno(ino microfs.Ino) microfs.Ino { return n.number<<mountShift | ino }

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
	return n.file(n.FS.Open(localIno(dir), path, flags, mode))
}

func (n numberedFS) OpenIno(ino microfs.Ino, flags int) (vfs.File, error) {
	return n.file(n.FS.OpenIno(localIno(ino), flags))
}

func (n numberedFS) Stat(dir microfs.Ino, path string, follow bool) (microfs.Attr, error) {
	a, err := n.FS.Stat(localIno(dir), path, follow)
	a.Ino = n.globalIno(a.Ino)
	return a, err
}

func (n numberedFS) Access(dir microfs.Ino, path string, mode uint32, follow bool) error {
	return n.FS.Access(localIno(dir), path, mode, follow)
}

func (n numberedFS) AccessAs(who microfs.Cred, dir microfs.Ino, path string, mode uint32, follow bool) error {
	return n.FS.AccessAs(who, localIno(dir), path, mode, follow)
}

func (n numberedFS) Mkdir(dir microfs.Ino, path string, mode uint32) error {
	return n.FS.Mkdir(localIno(dir), path, mode)
}

func (n numberedFS) Rmdir(dir microfs.Ino, path string) error { return n.FS.Rmdir(localIno(dir), path) }

func (n numberedFS) Unlink(dir microfs.Ino, path string) error {
	return n.FS.Unlink(localIno(dir), path)
}

func (n numberedFS) Rename(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, flags uint) error {
	return n.FS.Rename(localIno(odir), opath, localIno(ndir), npath, flags)
}

func (n numberedFS) Link(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, follow bool) error {
	return n.FS.Link(localIno(odir), opath, localIno(ndir), npath, follow)
}

func (n numberedFS) Symlink(target string, dir microfs.Ino, path string) error {
	return n.FS.Symlink(target, localIno(dir), path)
}

func (n numberedFS) Readlink(dir microfs.Ino, path string) (string, error) {
	return n.FS.Readlink(localIno(dir), path)
}

func (n numberedFS) Truncate(dir microfs.Ino, path string, size int64) error {
	return n.FS.Truncate(localIno(dir), path, size)
}

func (n numberedFS) SetAttr(dir microfs.Ino, path string, follow bool, s microfs.SetAttr) error {
	return n.FS.SetAttr(localIno(dir), path, follow, s)
}

func (n numberedFS) PathOf(dir microfs.Ino) (string, error) { return n.FS.PathOf(localIno(dir)) }

func (n numberedFS) RealPath(dir microfs.Ino, path string) (string, error) {
	return n.FS.RealPath(localIno(dir), path)
}

// numberedFile is an open file of a numberedFS.
type numberedFile struct {
	vfs.File
	fs numberedFS
}

func (f numberedFile) inner() vfs.File { return f.File }

func (f numberedFile) Ino() microfs.Ino { return f.fs.globalIno(f.File.Ino()) }

func (f numberedFile) Stat() (microfs.Attr, error) {
	a, err := f.File.Stat()
	a.Ino = f.fs.globalIno(a.Ino)
	return a, err
}

func (f numberedFile) ReadDir(after string, n int) ([]microfs.Dirent, error) {
	list, err := f.File.ReadDir(after, n)
	for i := range list {
		list[i].Ino = f.fs.globalIno(list[i].Ino)
	}
	return list, err
}
