package unionfs

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A Layer is the file system of a rank, mounted for reading.
type Layer struct {
	Rank int
	FS   vfs.FS
	// Mount differs between two mounts of the same file system.
	Mount uint64
}

// FS is the union. It is a vfs.FS.
type FS struct {
	vfs.FS // the own file system; implements StatFS, Vacate and Sync

	own    vfs.FS
	mount  string
	layers func() ([]Layer, error)
}

// New returns the union of a file system and of the layers that layers returns at each call. mount is the mount point.
func New(fs vfs.FS, mount string, layers func() ([]Layer, error)) *FS {
	return &FS{FS: fs, own: fs, mount: mount, layers: layers}
}

// A ReadOnlyError means that this process, which is not a rank, cannot change a file of a rank. It is syscall.EROFS.
type ReadOnlyError struct {
	Path string // with the mount point
	Rank int
}

// Error names the file and the rank.
func (e *ReadOnlyError) Error() string {
	return fmt.Sprintf("%s is rank %d's, which alone can change it; this process, which is no rank of its job, can read it: %v",
		e.Path, e.Rank, syscall.EROFS)
}

// Unwrap returns syscall.EROFS.
func (e *ReadOnlyError) Unwrap() error { return syscall.EROFS }

// readOnly returns the error for changing n, which a rank has.
func (u *FS) readOnly(n *node) error {
	rank := n.top().rank
	for i := range n.parts {
		if n.parts[i].rank != own {
			rank = n.parts[i].rank
			break
		}
	}
	return &ReadOnlyError{Path: strings.TrimRight(u.mount, "/") + n.path, Rank: rank}
}

// walk starts to resolve a path. It returns nil if there are no ranks: then the own file system handles the call.
func (u *FS) walk() (*walk, error) {
	layers, err := u.layers()
	if err != nil || len(layers) == 0 {
		return nil, err
	}
	return &walk{u: u, layers: layers}, nil
}

// find resolves a path that must exist. If none is true the own file system handles the call.
func (u *FS) find(dir microfs.Ino, path string, follow bool) (f found, none bool, err error) {
	w, err := u.walk()
	if err != nil || w == nil {
		return f, err == nil, err
	}
	f, err = w.resolve(dir, path, follow, false)
	switch {
	case err != nil:
	case !f.exists():
		err = syscall.ENOENT
	case f.slash && !f.isDir():
		err = syscall.ENOTDIR
	}
	return f, false, err
}

// makeParents creates, in the own file system, the directories above a path that only ranks have, so that the call can create its file.
func (w *walk) makeParents(n *node) error {
	at := w.root()
	for name := range strings.SplitSeq(strings.Trim(n.parent(), "/"), "/") {
		if name == "" {
			return nil
		}
		next, err := w.step(&at, name)
		if err != nil {
			return err
		}
		if !next.isDir() {
			return syscall.ENOENT
		}
		if !next.own() {
			err := w.u.own.Mkdir(microfs.RootIno, next.path, next.top().attr.Mode&0o1777)
			if err != nil && !errors.Is(err, syscall.EEXIST) {
				return err
			}
		}
		at = next
	}
	return nil
}

// missing resolves a path that must not exist, for a call that creates it, and creates the directories above it. It returns the path in
// the own file system.
func (w *walk) missing(dir microfs.Ino, path string) (string, error) {
	f, err := w.resolve(dir, path, false, true)
	switch {
	case err != nil:
		return "", err
	case f.exists():
		return "", syscall.EEXIST
	}
	return f.inOwn(), w.makeParents(&f.node)
}

// inOwn returns the path in the own file system, with a trailing slash if the path had one.
func (f *found) inOwn() string {
	if f.slash {
		return f.path + "/"
	}
	return f.path
}

// SetCred changes the credentials of the calls.
func (u *FS) SetCred(c microfs.Cred) error {
	layers, err := u.layers()
	errs := []error{err, u.own.SetCred(c)}
	for _, l := range layers {
		errs = append(errs, l.FS.SetCred(c))
	}
	return errors.Join(errs...)
}

// changes reports whether the flags of open(2) permit or make changes.
func changes(flags int) bool {
	return flags&unix.O_PATH == 0 && (flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0)
}

// Open opens a file.
func (u *FS) Open(dir microfs.Ino, name string, flags int, mode uint32) (vfs.File, error) {
	w, err := u.walk()
	if err != nil {
		return nil, err
	}
	if w == nil {
		return u.own.Open(dir, name, flags, mode)
	}
	creat := flags&unix.O_CREAT != 0 && flags&unix.O_PATH == 0
	excl := creat && flags&unix.O_EXCL != 0
	f, err := w.resolve(dir, name, flags&unix.O_NOFOLLOW == 0 && !excl, false)
	if err != nil {
		return nil, err
	}
	switch {
	case !f.exists() && !creat:
		return nil, syscall.ENOENT
	case !f.exists():
		if err := w.makeParents(&f.node); err != nil {
			return nil, err
		}
		return u.own.Open(microfs.RootIno, f.inOwn(), flags, mode)
	case excl:
		return nil, syscall.EEXIST
	case !f.isDir() && !f.own() && changes(flags):
		return nil, u.readOnly(&f.node)
	}
	file, err := f.top().fs.Open(microfs.RootIno, f.inOwn(), flags, mode)
	switch {
	case err != nil:
		return nil, err
	case f.isDir():
		return &directory{File: file, u: u, rank: f.top().rank}, nil
	case f.own():
		return file, nil
	}
	return newRankFile(u, file, &f.node, w.mountOf(f.top().rank), flags), nil
}

// Stat returns the attributes of a path.
func (u *FS) Stat(dir microfs.Ino, path string, follow bool) (microfs.Attr, error) {
	f, none, err := u.find(dir, path, follow)
	if none {
		return u.own.Stat(dir, path, follow)
	}
	if err != nil {
		return microfs.Attr{}, err
	}
	return f.top().shown(), nil
}

// Access implements access(2).
func (u *FS) Access(dir microfs.Ino, path string, mode uint32, follow bool) error {
	return u.access(dir, path, mode, follow, func(fs vfs.FS, dir microfs.Ino, path string, follow bool) error {
		return fs.Access(dir, path, mode, follow)
	})
}

// AccessAs is Access for other credentials.
func (u *FS) AccessAs(who microfs.Cred, dir microfs.Ino, path string, mode uint32, follow bool) error {
	return u.access(dir, path, mode, follow, func(fs vfs.FS, dir microfs.Ino, path string, follow bool) error {
		return fs.AccessAs(who, dir, path, mode, follow)
	})
}

func (u *FS) access(dir microfs.Ino, path string, mode uint32, follow bool, ask func(vfs.FS, microfs.Ino, string, bool) error) error {
	f, none, err := u.find(dir, path, follow)
	if none {
		return ask(u.own, dir, path, follow)
	}
	if err != nil {
		return err
	}
	err = ask(f.top().fs, microfs.RootIno, f.inOwn(), false)
	if errors.Is(err, syscall.EROFS) && f.isDir() && !f.own() {
		// Files can still be created in it if the own file system is writable.
		return u.own.Access(microfs.RootIno, "/", mode&2, true)
	}
	return err
}

// Mkdir creates a directory.
func (u *FS) Mkdir(dir microfs.Ino, path string, mode uint32) error {
	return u.make(dir, path, func(dir microfs.Ino, path string) error { return u.own.Mkdir(dir, path, mode) })
}

// Symlink creates a symbolic link.
func (u *FS) Symlink(target string, dir microfs.Ino, path string) error {
	return u.make(dir, path, func(dir microfs.Ino, path string) error { return u.own.Symlink(target, dir, path) })
}

func (u *FS) make(dir microfs.Ino, path string, do func(microfs.Ino, string) error) error {
	w, err := u.walk()
	if err != nil {
		return err
	}
	if w == nil {
		return do(dir, path)
	}
	at, err := w.missing(dir, path)
	if err != nil {
		return err
	}
	return do(microfs.RootIno, at)
}

// Rmdir removes a directory that no rank has.
func (u *FS) Rmdir(dir microfs.Ino, path string) error { return u.remove(dir, path, u.own.Rmdir) }

// Unlink removes a name of a file.
func (u *FS) Unlink(dir microfs.Ino, path string) error { return u.remove(dir, path, u.own.Unlink) }

func (u *FS) remove(dir microfs.Ino, name string, do func(microfs.Ino, string) error) error {
	w, err := u.walk()
	if err != nil {
		return err
	}
	if w == nil || path.Base(name) == "." || path.Base(name) == ".." {
		return do(dir, name)
	}
	f, err := w.resolve(dir, name, false, true)
	switch {
	case err != nil:
		return err
	case !f.exists():
		return syscall.ENOENT
	case !f.only():
		return u.readOnly(&f.node)
	}
	return do(microfs.RootIno, f.inOwn())
}

// Rename renames a file of the own file system, over a name that no rank has.
func (u *FS) Rename(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, flags uint) error {
	return u.transfer(odir, opath, ndir, npath, true, false, func(odir microfs.Ino, opath string, ndir microfs.Ino, npath string) error {
		return u.own.Rename(odir, opath, ndir, npath, flags)
	})
}

// Link creates another name of a file of the own file system.
func (u *FS) Link(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, follow bool) error {
	return u.transfer(odir, opath, ndir, npath, false, follow, func(odir microfs.Ino, opath string, ndir microfs.Ino, npath string) error {
		return u.own.Link(odir, opath, ndir, npath, follow)
	})
}

// transfer implements Rename and Link. over is true if the new name may exist.
func (u *FS) transfer(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, over, follow bool,
	do func(microfs.Ino, string, microfs.Ino, string) error) error {
	w, err := u.walk()
	if err != nil {
		return err
	}
	if w == nil {
		return do(odir, opath, ndir, npath)
	}
	from, err := w.resolve(odir, opath, follow, !follow)
	switch {
	case err != nil:
		return err
	case !from.exists():
		return syscall.ENOENT
	case !from.only():
		return u.readOnly(&from.node)
	}
	to, err := w.resolve(ndir, npath, false, true)
	switch {
	case err != nil:
		return err
	case to.exists() && !over:
		return syscall.EEXIST
	case to.exists() && !to.only():
		return u.readOnly(&to.node)
	}
	if err := w.makeParents(&to.node); err != nil {
		return err
	}
	return do(microfs.RootIno, from.inOwn(), microfs.RootIno, to.inOwn())
}

// Readlink returns the target of a symbolic link.
func (u *FS) Readlink(dir microfs.Ino, path string) (string, error) {
	f, none, err := u.find(dir, path, false)
	if none {
		return u.own.Readlink(dir, path)
	}
	if err != nil {
		return "", err
	}
	return f.top().fs.Readlink(microfs.RootIno, f.path)
}

// Truncate sets the size of a file.
func (u *FS) Truncate(dir microfs.Ino, path string, size int64) error {
	return u.change(dir, path, true, func(dir microfs.Ino, path string) error { return u.own.Truncate(dir, path, size) })
}

// SetAttr changes attributes of a path. If ranks have the same directory, its attributes change only for processes that are not ranks.
func (u *FS) SetAttr(dir microfs.Ino, path string, follow bool, s microfs.SetAttr) error {
	return u.change(dir, path, follow, func(dir microfs.Ino, path string) error { return u.own.SetAttr(dir, path, follow, s) })
}

func (u *FS) change(dir microfs.Ino, path string, follow bool, do func(microfs.Ino, string) error) error {
	f, none, err := u.find(dir, path, follow)
	switch {
	case none:
		return do(dir, path)
	case err != nil:
		return err
	case !f.own():
		return u.readOnly(&f.node)
	}
	return do(microfs.RootIno, f.inOwn())
}

// PathOf returns the path of a directory below the mount.
func (u *FS) PathOf(dir microfs.Ino) (string, error) {
	rank, ino := untag(dir)
	if rank == own {
		return u.own.PathOf(ino)
	}
	layers, err := u.layers()
	if err != nil {
		return "", err
	}
	w := walk{u: u, layers: layers}
	fs := w.layer(rank)
	if fs == nil {
		return "", syscall.ENOENT
	}
	return fs.PathOf(ino)
}

// RealPath resolves every symbolic link and dot of a path.
func (u *FS) RealPath(dir microfs.Ino, path string) (string, error) {
	f, none, err := u.find(dir, path, true)
	if none {
		return u.own.RealPath(dir, path)
	}
	if err != nil {
		return "", err
	}
	return f.path, nil
}
