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

// newRoot makes the root directory of a view.
func newRoot(trees []Tree) (fs.InodeEmbedder, error) {
	if len(trees) == 1 && trees[0].Name == "" {
		return &node{tree: &tree{process: trees[0].Process}}, nil
	}
	for _, t := range trees {
		if t.Name == "" {
			return nil, fmt.Errorf("one of %d trees of a view has no name: %w", len(trees), syscall.EINVAL)
		}
	}
	return &top{trees: trees, since: time.Now()}, nil
}

// top is the root directory of a view of several trees. Its directories never change.
type top struct {
	fs.Inode
	trees []Tree
	since time.Time
}

var _ interface {
	fs.NodeOnAdder
	fs.NodeGetattrer
} = (*top)(nil)

// OnAdd makes the directories.
func (r *top) OnAdd(ctx context.Context) {
	for _, t := range r.trees {
		n := &node{tree: &tree{process: t.Process, number: t.Number}}
		child := r.NewPersistentInode(ctx, n, n.tree.stable(syscall.S_IFDIR, 1))
		n.tree.root = child
		r.AddChild(t.Name, child, true)
	}
}

// Getattr tells the attributes of the root.
func (r *top) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fillTop(out, r.since)
	return 0
}

// fillTop tells the attributes of a root: it is the user's, who may look at it.
func fillTop(out *fuse.AttrOut, since time.Time) {
	out.Mode = syscall.S_IFDIR | 0o500
	out.Nlink = 1 // says nothing about how many directories there are
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	out.SetTimes(&since, &since, &since)
}

// selfName is the link to a process's own tree.
const selfName = "self"

// changing is the root directory of a view whose trees come to be.
type changing struct {
	fs.Inode
	trees Trees
	since time.Time
}

var _ interface {
	fs.NodeLookuper
	fs.NodeReaddirer
	fs.NodeGetattrer
} = (*changing)(nil)

// Lookup finds a tree, or the link to that of the caller.
func (r *changing) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
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
func (r *changing) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	list := []fuse.DirEntry{{Name: selfName, Mode: syscall.S_IFLNK}}
	for _, name := range r.trees.Names() {
		list = append(list, fuse.DirEntry{Name: name, Mode: syscall.S_IFDIR})
	}
	return fs.NewListDirStream(list), 0
}

// Getattr tells the attributes of the root.
func (r *changing) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fillTop(out, r.since)
	return 0
}

// self is the link that leads each process to its own tree, as /proc/self does.
type self struct {
	fs.Inode
	root *changing
}

var _ interface {
	fs.NodeReadlinker
	fs.NodeGetattrer
} = (*self)(nil)

// Readlink returns the name of the tree of who asks.
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

// Getattr tells the attributes of the link.
func (s *self) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fillTop(out, s.root.since)
	out.Mode = syscall.S_IFLNK | 0o777
	return 0
}
