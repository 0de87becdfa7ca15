package fuseview

import (
	"context"
	"math"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/posixshim"
)

// A tree is a Tree of a mounted view.
type tree struct {
	process *posixshim.Process
	number  uint64    // 0 for the only tree
	root    *fs.Inode // nil if it is the root of the view
}

// The bits of an inode number from treeShift on are the number of its tree. Inode numbers within a tree are smaller.
const treeShift = posixshim.ViewShift

// stable identifies an inode to the kernel. All names of a file have the same identity.
func (t *tree) stable(mode uint32, ino uint64) fs.StableAttr {
	return fs.StableAttr{Mode: mode & syscall.S_IFMT, Ino: ino | t.number<<treeShift, Gen: 1}
}

// errno returns the result of a call.
func (t *tree) errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return t.process.Errno(err)
}

// A node is a file or directory. It is found by the path that the kernel has for it now; an unlinked file is found by
// an open file.
type node struct {
	fs.Inode
	tree *tree

	mu          sync.Mutex
	open        map[*file]struct{}
	cachedCtime time.Time // ctime of the file when the kernel cached its pages
}

var _ interface {
	fs.NodeLookuper
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeOpendirHandler
	fs.NodeReadlinker
	fs.NodeMkdirer
	fs.NodeMknoder
	fs.NodeSymlinker
	fs.NodeLinker
	fs.NodeUnlinker
	fs.NodeRmdirer
	fs.NodeRenamer
	fs.NodeStatfser
	fs.NodeOpener
	fs.NodeCreater
} = (*node)(nil)

// pathAt returns the path of the node, or of name in it.
func (n *node) pathAt(name string) posixshim.PathAt {
	root := n.tree.root
	if root == nil {
		root = n.Root()
	}
	return posixshim.PathAt{Path: path.Join("/", n.Path(root), name)}
}

// child returns the node of an existing name.
func (n *node) child(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	attr, err := n.tree.process.Attr(n.pathAt(name), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, n.tree.errno(err)
	}
	n.tree.fill(&attr, &out.Attr)
	return n.NewInode(ctx, &node{tree: n.tree}, n.tree.stable(attr.Mode, uint64(attr.Ino))), 0
}

// chownToCaller makes the caller the owner of a new file, if the server runs as root.
func (n *node) chownToCaller(ctx context.Context, name string) {
	caller, ok := fuse.FromContext(ctx)
	if !ok || os.Geteuid() != 0 || caller.Uid == 0 && caller.Gid == 0 {
		return
	}
	set := microfs.SetAttr{UID: &caller.Uid}
	if dir, err := n.tree.process.Attr(n.pathAt(""), unix.AT_SYMLINK_NOFOLLOW); err == nil && dir.Mode&syscall.S_ISGID == 0 {
		set.GID = &caller.Gid
	}
	// Ignore an error: the file exists, though root owns it.
	_ = n.tree.process.SetAttr(n.pathAt(name), unix.AT_SYMLINK_NOFOLLOW, set)
}

// Lookup finds a name.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.child(ctx, name, out)
}

// Getattr implements stat(2) and fstat(2), which the kernel does not distinguish. If the file is open it uses the
// open file: in a tree, later reads then see data that other ranks have written.
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var attr microfs.Attr
	open, err := n.withOpen(func(h posixshim.Handle) (err error) {
		attr, err = n.tree.process.FileAttr(h)
		return err
	})
	if !open {
		attr, err = n.tree.process.Attr(n.pathAt(""), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return n.tree.errno(err)
	}
	n.tree.fill(&attr, &out.Attr)
	return 0
}

// Setattr implements chmod(2), chown(2), utimensat(2), truncate(2), and the same calls on descriptors.
func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	own, ofFile := h.(*file)
	p := n.tree.process
	size, cut := in.GetSize()
	if cut {
		var err error
		if ofFile {
			err = p.Ftruncate(own.handle, int64(size), math.MaxInt64)
		} else {
			err = p.Truncate(n.pathAt(""), int64(size), math.MaxInt64)
		}
		if err != nil {
			return n.tree.errno(err)
		}
	}
	// A request without changes, from chown(path, -1, -1), updates the ctime.
	if set := change(in); set != (microfs.SetAttr{}) || !cut {
		err := p.SetAttr(n.pathAt(""), unix.AT_SYMLINK_NOFOLLOW, set)
		switch {
		case err == nil:
		case ofFile:
			err = p.SetFileAttr(own.handle, set)
		default:
			open, e := n.withOpen(func(h posixshim.Handle) error { return p.SetFileAttr(h, set) })
			if open {
				err = e
			}
		}
		if err != nil {
			return n.tree.errno(err)
		}
	}
	return n.Getattr(ctx, h, out)
}

// change returns the changes of a request, except the size.
func change(in *fuse.SetAttrIn) (set microfs.SetAttr) {
	if mode, ok := in.GetMode(); ok {
		mode &= 0o7777
		set.Mode = &mode
	}
	if uid, ok := in.GetUID(); ok {
		set.UID = &uid
	}
	if gid, ok := in.GetGID(); ok {
		set.GID = &gid
	}
	if t, ok := in.GetATime(); ok {
		set.Atime = &t
	}
	if t, ok := in.GetMTime(); ok {
		set.Mtime = &t
	}
	const now = fuse.FATTR_ATIME_NOW | fuse.FATTR_MTIME_NOW
	set.TimesNow = in.Valid&now == now
	return set
}

// fill converts attributes for the kernel.
func (t *tree) fill(from *microfs.Attr, to *fuse.Attr) {
	*to = fuse.Attr{
		Ino: t.stable(from.Mode, uint64(from.Ino)).Ino, Size: uint64(from.Size), Blocks: uint64(from.Blocks), Blksize: 32 << 10,
		Mode: from.Mode, Nlink: from.Nlink, Owner: fuse.Owner{Uid: from.UID, Gid: from.GID},
	}
	to.SetTimes(&from.Atime, &from.Mtime, &from.Ctime)
}

// Readlink returns the target of a symbolic link.
func (n *node) Readlink(context.Context) ([]byte, syscall.Errno) {
	buf := make([]byte, unix.PathMax)
	m, err := n.tree.process.Readlink(n.pathAt(""), buf)
	return buf[:m], n.tree.errno(err)
}

// Mkdir creates a directory.
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.tree.process.Mkdir(n.pathAt(name), mode); err != nil {
		return nil, n.tree.errno(err)
	}
	n.chownToCaller(ctx, name)
	return n.child(ctx, name, out)
}

// Mknod creates a regular file; other types are not supported.
func (n *node) Mknod(ctx context.Context, name string, mode, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.tree.process.Mknod(n.pathAt(name), mode); err != nil {
		return nil, n.tree.errno(err)
	}
	n.chownToCaller(ctx, name)
	return n.child(ctx, name, out)
}

// Symlink creates a symbolic link.
func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.tree.process.Symlink(target, n.pathAt(name)); err != nil {
		return nil, n.tree.errno(err)
	}
	n.chownToCaller(ctx, name)
	return n.child(ctx, name, out)
}

// Link creates a hard link.
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	from, ok := target.(*node)
	if !ok || from.tree != n.tree {
		return nil, syscall.EXDEV
	}
	if err := n.tree.process.Link(from.pathAt(""), n.pathAt(name), 0); err != nil {
		return nil, n.tree.errno(err)
	}
	return n.child(ctx, name, out)
}

// Unlink removes a name.
func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	return n.tree.errno(n.tree.process.Unlink(n.pathAt(name)))
}

// Rmdir removes a directory.
func (n *node) Rmdir(_ context.Context, name string) syscall.Errno {
	return n.tree.errno(n.tree.process.Rmdir(n.pathAt(name)))
}

// Rename implements renameat2(2).
func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	dir, ok := to.(*node)
	if !ok || dir.tree != n.tree {
		return syscall.EXDEV
	}
	return n.tree.errno(n.tree.process.Rename(n.pathAt(name), dir.pathAt(newName), flags))
}

// Statfs implements statfs(2).
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	s, err := n.tree.process.Space()
	if err != nil {
		return n.tree.errno(err)
	}
	*out = fuse.StatfsOut{
		Blocks: uint64(s.Blocks), Bfree: uint64(s.Free), Bavail: uint64(s.Avail), Files: s.Files + s.FilesFree, Ffree: s.FilesFree,
		Bsize: uint32(s.Hugeblock), Frsize: uint32(s.Hugeblock), NameLen: 255,
	}
	return 0
}
