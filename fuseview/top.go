package fuseview

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"nvmecr/posixshim"
)

// newRoot creates the root directory of a view.
func newRoot(trees []Tree) (fs.InodeEmbedder, error) {
	if len(trees) == 1 && trees[0].Name == "" {
		return &node{tree: &tree{process: trees[0].Process}}, nil
	}
	for _, t := range trees {
		if t.Name == "" {
			return nil, fmt.Errorf("one of %d trees of a view has no name: %w", len(trees), syscall.EINVAL)
		}
	}
	return &staticRoot{trees: trees, since: time.Now()}, nil
}

// staticRoot is the root directory of a view of several trees. Its directories never change.
type staticRoot struct {
	fs.Inode
	trees []Tree
	since time.Time
}

var _ interface {
	fs.NodeOnAdder
	fs.NodeGetattrer
} = (*staticRoot)(nil)

// OnAdd adds the directories.
func (r *staticRoot) OnAdd(ctx context.Context) {
	for _, t := range r.trees {
		n := &node{tree: &tree{process: t.Process, number: t.Number}}
		child := r.NewPersistentInode(ctx, n, n.tree.stable(syscall.S_IFDIR, 1))
		n.tree.root = child
		r.AddChild(t.Name, child, true)
	}
}

// Getattr returns the attributes of the root.
func (r *staticRoot) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fillRoot(out, r.since)
	return 0
}

// fillRoot sets the attributes of a root directory, which this user owns and everybody may read.
func fillRoot(out *fuse.AttrOut, since time.Time) {
	out.Mode = syscall.S_IFDIR | 0o500
	out.Nlink = 1 // 1: the number of directories is unknown
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	out.SetTimes(&since, &since, &since)
}

// selfName is the link to the tree of the calling process.
const selfName = "self"

// dynamicRoot is the root directory of a view with a varying set of trees.
type dynamicRoot struct {
	fs.Inode
	trees Trees
	since time.Time
}

var _ interface {
	fs.NodeLookuper
	fs.NodeReaddirer
	fs.NodeGetattrer
} = (*dynamicRoot)(nil)

// Lookup finds a tree, or the link to that of the caller.
func (r *dynamicRoot) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if known := r.GetChild(name); known != nil {
		attr := fuse.AttrOut{}
		errno := known.Operations().(fs.NodeGetattrer).Getattr(ctx, nil, &attr)
		out.Attr = attr.Attr
		return known, errno
	}
	if name == selfName {
		out.Mode = syscall.S_IFLNK | 0o777
		return r.NewPersistentInode(ctx, &self{root: r}, fs.StableAttr{Mode: syscall.S_IFLNK}), 0
	}
	t, ok := r.trees.Tree(name)
	if !ok {
		return nil, syscall.ENOENT
	}
	n := &node{tree: &tree{process: t.Process, number: t.Number}}
	attr, err := t.Process.Attr(posixshim.PathAt{Path: "/"}, 0)
	if err != nil {
		return nil, n.tree.errno(err)
	}
	n.tree.fill(&attr, &out.Attr)
	child := r.NewPersistentInode(ctx, n, n.tree.stable(attr.Mode, uint64(attr.Ino)))
	n.tree.root = child
	return child, 0
}

// Readdir lists the trees.
func (r *dynamicRoot) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	list := []fuse.DirEntry{{Name: selfName, Mode: syscall.S_IFLNK}}
	for _, name := range r.trees.Names() {
		list = append(list, fuse.DirEntry{Name: name, Mode: syscall.S_IFDIR})
	}
	return fs.NewListDirStream(list), 0
}

// Getattr returns the attributes of the root.
func (r *dynamicRoot) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fillRoot(out, r.since)
	return 0
}

// self is a symbolic link that each process sees with its own tree as the target, like /proc/self.
type self struct {
	fs.Inode
	root *dynamicRoot
}

var _ interface {
	fs.NodeReadlinker
	fs.NodeGetattrer
} = (*self)(nil)

// Readlink returns the name of the caller's tree.
func (s *self) Readlink(ctx context.Context) ([]byte, syscall.Errno) {
	caller, ok := fuse.FromContext(ctx)
	if !ok {
		return nil, syscall.EIO
	}
	name, err := s.root.trees.Self(int(caller.Pid))
	if err != nil {
		return nil, syscall.ENOENT
	}
	return []byte(name), 0
}

// Getattr returns the attributes of the link.
func (s *self) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fillRoot(out, s.root.since)
	out.Mode = syscall.S_IFLNK | 0o777
	return 0
}
