package unionfs

import (
	"errors"
	"strings"
	"syscall"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

const (
	maxPath     = 4096
	maxSymlinks = 40
)

// part is a file in one of the layers.
type part struct {
	rank int // or own
	fs   vfs.FS
	attr microfs.Attr // attributes in that layer
}

// node has the files of a path, in order of precedence. Several of them only if they are directories; none if the path does not exist.
type node struct {
	path  string // below the mount, without symbolic links; "/" is the root
	parts []part
}

func (n *node) exists() bool { return len(n.parts) > 0 }
func (n *node) top() *part   { return &n.parts[0] }
func (n *node) isDir() bool  { return n.exists() && isDir(n.top().attr.Mode) }
func (n *node) own() bool    { return n.exists() && n.top().rank == own }

// only reports whether no rank has the path.
func (n *node) only() bool { return n.own() && len(n.parts) == 1 }

// parent returns the path of the directory that the node is in.
func (n *node) parent() string {
	if i := strings.LastIndexByte(n.path, '/'); i > 0 {
		return n.path[:i]
	}
	return "/"
}

func isDir(mode uint32) bool     { return mode&syscall.S_IFMT == syscall.S_IFDIR }
func isSymlink(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFLNK }

// walk resolves one path.
type walk struct {
	u      *FS
	layers []Layer
	links  int
}

// found is the end of a path. slash is true if the path ended in "/".
type found struct {
	node
	slash bool
}

// resolve resolves path from a directory. A symbolic link at its end is followed with follow, or if a slash is behind it and entry is
// false. The last name need not exist.
func (w *walk) resolve(dir microfs.Ino, path string, follow, entry bool) (found, error) {
	if path == "" {
		return found{}, syscall.ENOENT
	}
	if len(path) >= maxPath {
		return found{}, syscall.ENAMETOOLONG
	}
	stack, err := w.directory(dir)
	if err != nil {
		return found{}, err
	}
	for {
		var f found
		f, path, err = w.from(&stack, path, follow, entry)
		if err != nil || path == "" {
			return f, err
		}
	}
}

// directory returns the directories from the root to the one with that number.
func (w *walk) directory(dir microfs.Ino) ([]node, error) {
	stack := []node{w.root()}
	if dir == microfs.RootIno {
		return stack, nil
	}
	rank, ino := untag(dir)
	fs := w.layer(rank)
	if fs == nil {
		return nil, syscall.ENOENT
	}
	path, err := fs.PathOf(ino)
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name == "" {
			break
		}
		n, err := w.step(&stack[len(stack)-1], name)
		if err != nil {
			return nil, err
		}
		if !n.isDir() {
			return nil, syscall.ENOENT
		}
		stack = append(stack, n)
	}
	return stack, nil
}

func (w *walk) layer(rank int) vfs.FS {
	if rank == own {
		return w.u.own
	}
	for i := range w.layers {
		if w.layers[i].Rank == rank {
			return w.layers[i].FS
		}
	}
	return nil
}

// root returns the root directory, which all layers have.
func (w *walk) root() node {
	n := node{path: "/"}
	add := func(rank int, fs vfs.FS) {
		if a, err := fs.Stat(microfs.RootIno, "/", false); err == nil {
			n.parts = append(n.parts, part{rank, fs, a})
		}
	}
	add(own, w.u.own)
	for _, l := range w.layers {
		add(l.Rank, l.FS)
	}
	return n
}

// from resolves path from the last directory of stack, up to its end or to a symbolic link. In the latter case it returns the path to
// continue with.
func (w *walk) from(stack *[]node, path string, follow, entry bool) (found, string, error) {
	path = strings.TrimLeft(path, "/")
	f := found{node: (*stack)[len(*stack)-1]}
	for path != "" {
		name, rest, more := strings.Cut(path, "/")
		rest = strings.TrimLeft(rest, "/")
		f.slash = more && rest == ""
		switch {
		case !f.exists():
			return f, "", syscall.ENOENT
		case !f.isDir():
			return f, "", syscall.ENOTDIR
		case name == "..":
			if len(*stack) == 1 {
				return f, "", &microfs.EscapeError{Path: parentOf(w.u.mount) + rest}
			}
			*stack = (*stack)[:len(*stack)-1]
			f.node = (*stack)[len(*stack)-1]
		case name != ".":
			n, err := w.step(&f.node, name)
			if err != nil {
				return f, "", err
			}
			if n.exists() && isSymlink(n.top().attr.Mode) && (rest != "" || follow || f.slash && !entry) {
				path, err := w.link(stack, &n, rest, f.slash)
				return f, path, err
			}
			f.node = n
			if n.isDir() {
				*stack = append(*stack, n)
			}
		}
		path = rest
	}
	return f, "", nil
}

// step looks up one name in a directory.
func (w *walk) step(d *node, name string) (node, error) {
	n := node{path: strings.TrimRight(d.path, "/") + "/" + name}
	for i := range d.parts {
		p := &d.parts[i]
		a, err := p.fs.Stat(p.attr.Ino, name, false)
		switch {
		case errors.Is(err, syscall.ENOENT):
			continue
		case err != nil && !n.exists():
			return n, err
		case err != nil || n.exists() && !isDir(a.Mode):
			continue
		}
		n.parts = append(n.parts, part{p.rank, p.fs, a})
		if !isDir(a.Mode) {
			break
		}
	}
	return n, nil
}

// link returns the path to continue with behind a symbolic link in the last directory of stack. For an absolute link it cuts stack to
// the root.
func (w *walk) link(stack *[]node, n *node, rest string, slash bool) (string, error) {
	if w.links++; w.links > maxSymlinks {
		return "", syscall.ELOOP
	}
	target, err := n.top().fs.Readlink(microfs.RootIno, n.path)
	if err != nil {
		return "", err
	}
	if slash {
		rest = "."
	}
	if rest != "" {
		if target = strings.TrimRight(target, "/") + "/" + rest; len(target) >= maxPath {
			return "", syscall.ENAMETOOLONG
		}
	}
	if !strings.HasPrefix(target, "/") {
		return target, nil
	}
	mount := strings.TrimRight(w.u.mount, "/")
	inside, ok := strings.CutPrefix(target, mount)
	if !ok || inside != "" && inside[0] != '/' {
		return "", &microfs.EscapeError{Path: target}
	}
	*stack = (*stack)[:1]
	return "/" + strings.TrimLeft(inside, "/"), nil
}

// parentOf returns the directory that contains a mount point, with a slash behind it.
func parentOf(mount string) string {
	mount = strings.TrimRight(mount, "/")
	return mount[:strings.LastIndexByte(mount, '/')+1]
}
