package microfs

import (
	"errors"
	"slices"
	"strings"
	"syscall"
)

const (
	maxName     = 255
	maxPath     = 4096
	maxTarget   = 3500 // a Create record with target and name fits a log page
	maxSymlinks = 40
)

// goodName reports whether name is valid as a name in a directory.
func goodName(name string) bool {
	return name != "" && len(name) <= maxName && name != "." && name != ".." &&
		strings.IndexByte(name, '/') < 0 && strings.IndexByte(name, 0) < 0
}

// walk resolves the path of one operation. It lives on the stack.
type walk struct {
	fs    *FS
	links int
	// entry: the call concerns the name at the end of the path, not its target. Even a slash behind
	// the name does not make it follow a symbolic link.
	entry bool
}

// place is the end of a path: its last directory, the name there ("." for the directory itself) and
// the inode of the name, if there is one.
type place struct {
	dir  *inode
	name string
	in   *inode // nil: does not exist
	// slash: the path ended in '/', so it can only be a directory.
	slash bool
}

// start returns the directory a relative path starts from.
func (fs *FS) start(dir Ino) (*inode, error) {
	d := fs.tree.inodes.get(dir)
	if d == nil {
		return nil, syscall.ENOENT
	}
	if !d.isDir() {
		return nil, syscall.ENOTDIR
	}
	return d, nil
}

// resolve follows path from dir. A symbolic link at the end is followed if
// follow. Errors: ENOENT for a missing directory (not for the last name),
// ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, *EscapeError.
func (fs *FS) resolve(dir Ino, path string, follow bool) (place, error) {
	if len(path) >= maxPath {
		return place{}, syscall.ENAMETOOLONG
	}
	d, err := fs.start(dir)
	if err != nil {
		return place{}, err
	}
	w := walk{fs: fs}
	return w.from(d, path, follow)
}

// resolveEntry follows path up to the directory of its last name, for calls that create, remove or
// move that name.
func (fs *FS) resolveEntry(dir Ino, path string) (place, error) {
	if len(path) >= maxPath {
		return place{}, syscall.ENAMETOOLONG
	}
	if path == "" {
		return place{}, syscall.ENOENT
	}
	d, err := fs.start(dir)
	if err != nil {
		return place{}, err
	}
	w := walk{fs: fs, entry: true}
	return w.from(d, path, false)
}

func (w *walk) from(d *inode, path string, follow bool) (place, error) {
	path = strings.TrimLeft(path, "/")
	p := place{dir: d, name: ".", in: d}
	for path != "" {
		name, rest, more := strings.Cut(path, "/")
		rest = strings.TrimLeft(rest, "/")
		p.slash = more && rest == ""
		if err := w.step(&p, name); err != nil {
			if errors.Is(err, errAboveRoot) {
				err = &EscapeError{Path: parentOf(w.fs.opts.MountPoint) + rest}
			}
			return p, err
		}
		if rest == "" && !(p.in != nil && p.in.isSymlink() && (follow || p.slash && !w.entry)) {
			return p, nil
		}
		if p.in == nil {
			return p, syscall.ENOENT
		}
		if p.in.isSymlink() {
			return w.link(p, rest, follow)
		}
		path = rest
	}
	return p, nil
}

// errAboveRoot: ".." of the root. walk.from turns it into an EscapeError.
var errAboveRoot = errors.New("above the root")

// parentOf returns the directory of a mount point, with a trailing slash.
func parentOf(mount string) string {
	mount = strings.TrimRight(mount, "/")
	return mount[:strings.LastIndexByte(mount, '/')+1]
}

// step looks up one name in the directory of p.
func (w *walk) step(p *place, name string) error {
	d := p.in
	if !d.isDir() {
		return syscall.ENOTDIR
	}
	if !w.fs.may(d, permX) {
		return syscall.EACCES
	}
	if len(name) > maxName {
		return syscall.ENAMETOOLONG
	}
	if strings.IndexByte(name, 0) >= 0 { // paths of C programs have no NUL, but a symbolic link on forged media may
		return syscall.EINVAL
	}
	p.dir, p.name = d, name
	switch name {
	case ".":
		p.in = d
	case "..":
		if d.ino == RootIno {
			return errAboveRoot
		}
		p.in = w.fs.tree.inodes.get(d.parent())
	default:
		p.in, _ = w.fs.tree.lookup(d.ino, name)
	}
	return nil
}

// link continues behind a symbolic link with the rest of the path.
func (w *walk) link(p place, rest string, follow bool) (place, error) {
	if w.links++; w.links > maxSymlinks {
		return p, syscall.ELOOP
	}
	target := p.in.target()
	if p.slash {
		rest = "."
	}
	if rest != "" {
		target = strings.TrimRight(target, "/") + "/" + rest
		if len(target) >= maxPath {
			return p, syscall.ENAMETOOLONG
		}
	}
	if !strings.HasPrefix(target, "/") {
		return w.from(p.dir, target, follow)
	}
	inside, ok := cutMount(target, w.fs.opts.MountPoint)
	if !ok {
		return p, &EscapeError{Path: target}
	}
	return w.from(w.fs.tree.inodes.get(RootIno), inside, follow)
}

// cutMount returns the part of an absolute path behind the mount point.
func cutMount(path, mount string) (string, bool) {
	mount = strings.TrimRight(mount, "/")
	inside, ok := strings.CutPrefix(path, mount)
	return inside, ok && (inside == "" || inside[0] == '/')
}

// existing resolves a path that must exist.
func (fs *FS) existing(dir Ino, path string, follow bool) (*inode, error) {
	p, err := fs.resolve(dir, path, follow)
	if err != nil {
		return nil, err
	}
	if p.in == nil {
		return nil, syscall.ENOENT
	}
	if p.slash && !p.in.isDir() {
		return nil, syscall.ENOTDIR
	}
	return p.in, nil
}

// Permission bits, as in a mode's lowest three.
const (
	permX = 1
	permW = 2
	permR = 4
)

// may checks permissions by the rules of POSIX: owner, else group, else others. Root may do
// anything, but execute only a file with an execute bit.
func (fs *FS) may(in *inode, want uint32) bool {
	c := &fs.opts.Cred
	if c.UID == 0 {
		return want&permX == 0 || in.isDir() || in.mode&0o111 != 0
	}
	bits := in.mode
	switch {
	case c.UID == in.uid:
		bits >>= 6
	case c.inGroup(in.gid):
		bits >>= 3
	}
	return bits&want == want
}

// mayChange checks that a name in directory d may be added or removed: write and search permission,
// and in a sticky directory ownership of the file.
func (fs *FS) mayChange(d, in *inode) error {
	if !fs.may(d, permW|permX) {
		return syscall.EACCES
	}
	if in != nil && d.mode&syscall.S_ISVTX != 0 {
		if c := &fs.opts.Cred; c.UID != 0 && c.UID != in.uid && c.UID != d.uid {
			return syscall.EPERM
		}
	}
	return nil
}

// isAncestor reports whether a is d or an ancestor of d.
func (t *tree) isAncestor(a, d *inode) bool {
	for {
		if d == a {
			return true
		}
		if d.ino == RootIno {
			return false
		}
		if d = t.inodes.get(d.parent()); d == nil {
			return false
		}
	}
}

// pathOf returns the absolute path of a directory in the file system.
func (t *tree) pathOf(d *inode) (string, error) {
	if d.ino == RootIno {
		return "/", nil
	}
	var parts []string
	for d.ino != RootIno {
		up := t.inodes.get(d.parent())
		if up == nil || d.nlink == 0 {
			return "", syscall.ENOENT
		}
		parts = append(parts, d.special.name)
		d = up
	}
	slices.Reverse(parts)
	return "/" + strings.Join(parts, "/"), nil
}

// PathOf returns the absolute path of a directory in the file system.
func (fs *FS) PathOf(dir Ino) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	d, err := fs.start(dir)
	if err != nil {
		return "", err
	}
	return fs.tree.pathOf(d)
}

// AnyPath returns a path of an inode, "" if it has none. It searches all names.
func (fs *FS) AnyPath(ino Ino) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	if in := fs.tree.inodes.get(ino); in == nil || in.nlink == 0 {
		return "", nil
	}
	return fs.tree.path(ino), nil
}

// RealPath resolves every symbolic link and dot of path, which must exist.
func (fs *FS) RealPath(dir Ino, path string) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	p, err := fs.resolve(dir, path, true)
	switch {
	case err != nil:
		return "", err
	case p.in == nil:
		return "", syscall.ENOENT
	case p.in.isDir():
		return fs.tree.pathOf(p.in)
	case p.slash:
		return "", syscall.ENOTDIR
	}
	up, err := fs.tree.pathOf(p.dir)
	if err != nil {
		return "", err
	}
	if up == "/" {
		up = ""
	}
	return up + "/" + p.name, nil
}
