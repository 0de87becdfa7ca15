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

// A tree is one of a view.
type tree struct {
	process *posixshim.Process
	number  uint64    // 0 if it is the only one
	root    *fs.Inode // nil if that is the view's
}

// Inode numbers of several trees are told apart by the bits from here on, which those of a tree do not reach.
const treeShift = posixshim.ViewShift

// stable identifies an inode of the tree to the kernel: one that has several names is one.
func (t *tree) stable(mode uint32, ino uint64) fs.StableAttr {
	return fs.StableAttr{Mode: mode & syscall.S_IFMT, Ino: ino | t.number<<treeShift, Gen: 1}
}

// errno is what a call comes to.
func (t *tree) errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return t.process.Errno(err)
}

// A node is a file or directory. The kernel names it by the path that leads to it now; one without a name
// any more is found by a file that is open.
type node struct {
	fs.Inode
	tree *tree

	mu   sync.Mutex
	open map[*file]struct{}
	kept time.Time // when the file had changed last that the kernel has pages of
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

// pathAt is the path of the node, or of name in it.
func (n *node) pathAt(name string) posixshim.PathAt {
	root := n.tree.root
	if root == nil {
		root = n.Root()
	}
	return posixshim.PathAt{Path: path.Join("/", n.Path(root), name)}
}

// child returns the node of what is at a place in the tree.
func (n *node) child(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	attr, err := n.tree.process.Attr(n.pathAt(name), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, n.tree.errno(err)
	}
	n.tree.fill(&attr, &out.Attr)
	return n.NewInode(ctx, &node{tree: n.tree}, n.tree.stable(attr.Mode, uint64(attr.Ino))), 0
}

// own makes what the caller has made the caller's, where the view is that of root.
func (n *node) own(ctx context.Context, name string) {
	caller, ok := fuse.FromContext(ctx)
	if !ok || os.Geteuid() != 0 || caller.Uid == 0 && caller.Gid == 0 {
		return
	}
	set := microfs.SetAttr{UID: &caller.Uid}
	if dir, err := n.tree.process.Attr(n.pathAt(""), unix.AT_SYMLINK_NOFOLLOW); err == nil && dir.Mode&syscall.S_ISGID == 0 {
		set.GID = &caller.Gid
	}
	// It exists, as root's: a failure is no reason to say that it does not.
	_ = n.tree.process.SetAttr(n.pathAt(name), unix.AT_SYMLINK_NOFOLLOW, set)
}

// Lookup finds a name.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.child(ctx, name, out)
}

// Getattr is stat(2) and fstat(2): the kernel does not say by which descriptor. An open file is asked itself, since in a tree what
// others have written to it is read from then on.
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var attr microfs.Attr
	var err error
	if f := n.anyOpen(); f != nil {
		attr, err = n.tree.process.FileAttr(f.handle)
	} else {
		attr, err = n.tree.process.Attr(n.pathAt(""), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return n.tree.errno(err)
	}
	n.tree.fill(&attr, &out.Attr)
	return 0
}

// Setattr is chmod(2), chown(2), utimensat(2) and truncate(2), and those on descriptors.
func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f, ok := h.(*file)
	if !ok {
		f = n.anyOpen()
	}
	p := n.tree.process
	size, cut := in.GetSize()
	if cut {
		var err error
		if own, writable := h.(*file); writable {
			err = p.Ftruncate(own.handle, int64(size), math.MaxInt64)
		} else {
			err = p.Truncate(n.pathAt(""), int64(size), math.MaxInt64)
		}
		if err != nil {
			return n.tree.errno(err)
		}
	}
	// A request to change nothing, of chown(path, -1, -1), changes the time of the change.
	if set := change(in); set != (microfs.SetAttr{}) || !cut {
		err := p.SetAttr(n.pathAt(""), unix.AT_SYMLINK_NOFOLLOW, set)
		if f != nil && err != nil {
			err = p.SetFileAttr(f.handle, set)
		}
		if err != nil {
			return n.tree.errno(err)
		}
	}
	return n.Getattr(ctx, h, out)
}

// change is the part of a request that is not about the size.
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

// fill gives the kernel the attributes of a file.
func (t *tree) fill(from *microfs.Attr, to *fuse.Attr) {
	*to = fuse.Attr{
		Ino: t.stable(from.Mode, uint64(from.Ino)).Ino, Size: uint64(from.Size), Blocks: uint64(from.Blocks), Blksize: 32 << 10,
		Mode: from.Mode, Nlink: from.Nlink, Owner: fuse.Owner{Uid: from.UID, Gid: from.GID},
	}
	to.SetTimes(&from.Atime, &from.Mtime, &from.Ctime)
}

// Readlink returns what a symbolic link says.
func (n *node) Readlink(context.Context) ([]byte, syscall.Errno) {
	buf := make([]byte, unix.PathMax)
	m, err := n.tree.process.Readlink(n.pathAt(""), buf)
	return buf[:m], n.tree.errno(err)
}

// Mkdir makes a directory.
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.tree.process.Mkdir(n.pathAt(name), mode); err != nil {
		return nil, n.tree.errno(err)
	}
	n.own(ctx, name)
	return n.child(ctx, name, out)
}

// Mknod makes a regular file; there are no others.
func (n *node) Mknod(ctx context.Context, name string, mode, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.tree.process.Mknod(n.pathAt(name), mode); err != nil {
		return nil, n.tree.errno(err)
	}
	n.own(ctx, name)
	return n.child(ctx, name, out)
}

// Symlink makes a symbolic link.
func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if err := n.tree.process.Symlink(target, n.pathAt(name)); err != nil {
		return nil, n.tree.errno(err)
	}
	n.own(ctx, name)
	return n.child(ctx, name, out)
}

// Link makes a further name.
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

// Rename is renameat2(2).
func (n *node) Rename(_ context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	dir, ok := to.(*node)
	if !ok || dir.tree != n.tree {
		return syscall.EXDEV
	}
	return n.tree.errno(n.tree.process.Rename(n.pathAt(name), dir.pathAt(newName), flags))
}

// Statfs tells how much space there is.
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
