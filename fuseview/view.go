// Package fuseview exports file systems of ranks through FUSE, so that programs which
// are not started with the preloaded library see them: shells, statically linked programs,
// system calls made without the C library.
//
// A View is a mounted file system whose trees are those of posixshim.Process: one at its
// root, or one in each of several directories. It promises what these promise, and: close(2)
// returns when what was written through the view is durable. That a file is complete
// (microfs.Attr.Closed) may follow a moment later, since the kernel tells of the last close
// when that has returned.
//
// Nothing is kept in the kernel's cache: names, attributes and bytes are asked for each time, because a
// rank changes its files past the kernel. The kernel checks permissions (default_permissions), and keeps
// locks (fcntl, flock), which hold between the users of one view only.
//
// A View must not run in a process that uses its own files: the kernel would wait at that process's end for an answer
// from the process. All methods are safe for concurrent use.
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

// maxWrite is the size of the largest request to write, the most that Linux and the library take.
const maxWrite = 1 << 20

// A Tree is a directory of a view.
type Tree struct {
	Name    string // of the directory; "" for a view's only tree, which is at its root
	Process *posixshim.Process
}

// Options say how a view is mounted.
type Options struct {
	// ReadOnly has the kernel refuse all changes (EROFS).
	ReadOnly bool
	// AllowOther lets processes of other users in, who have the rights that the modes of the files
	// give them. It takes root, or user_allow_other in /etc/fuse.conf.
	AllowOther bool
}

// A View is a mounted view.
type View struct{ server *fuse.Server }

// Mount mounts a view of trees at dir, an existing directory. It calls mount(2), or where that is not permitted
// fusermount3. The error names dir.
func Mount(dir string, trees []Tree, o Options) (*View, error) {
	root, err := newRoot(trees)
	if err != nil {
		return nil, err
	}
	options := []string{"default_permissions"}
	if o.ReadOnly {
		options = append(options, "ro")
	}
	var never time.Duration
	server, err := fs.Mount(dir, root, &fs.Options{
		EntryTimeout:    &never,
		AttrTimeout:     &never,
		NegativeTimeout: &never,
		NullPermissions: true,
		MountOptions: fuse.MountOptions{
			AllowOther:        o.AllowOther,
			Options:           options,
			FsName:            "nvmecr",
			Name:              "nvmecr",
			MaxWrite:          maxWrite,
			DirectMount:       true,
			DisableXAttrs:     true,
			ExtraCapabilities: fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_ATOMIC_O_TRUNC,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mounting a view at %s by FUSE: %w", dir, err)
	}
	return &View{server}, nil
}

// Wait returns when the view has been unmounted, by Close or by umount(8).
func (v *View) Wait() { v.server.Wait() }

// Close unmounts the view. EBUSY if a process has a file of it open, or is in it.
func (v *View) Close() error {
	if err := v.server.Unmount(); err != nil {
		return fmt.Errorf("unmounting the view: %w", err)
	}
	return nil
}

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
	for i, t := range r.trees {
		n := &node{tree: &tree{process: t.Process, number: uint64(i) + 1}}
		child := r.NewPersistentInode(ctx, n, n.tree.stable(syscall.S_IFDIR, 1))
		n.tree.root = child
		r.AddChild(t.Name, child, true)
	}
}

// Getattr tells the attributes of the root: it is the user's, who may look at it.
func (r *top) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFDIR | 0o500
	out.Nlink = uint32(2 + len(r.trees))
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	out.SetTimes(&r.since, &r.since, &r.since)
	return 0
}
