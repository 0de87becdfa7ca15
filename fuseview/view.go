// Package fuseview exports file systems of ranks through FUSE, so that programs which
// are not started with the preloaded library see them: shells, statically linked programs,
// system calls made without the C library.
//
// A View is a mounted file system that exports trees of posixshim.Process: one at its
// root, or one in each of several directories. It promises what posixshim.Process promises, and that close(2)
// returns when the data written through the view is durable. A file may be marked complete
// (microfs.Attr.Closed) a moment later: FUSE sends RELEASE after the last close has returned.
//
// The kernel caches no names, attributes or data, because a
// rank changes its files without the kernel. The exception is the page cache of files that a preloaded library maps (posixshim.View). Its pages
// stay until the file changes: the writer then calls fstat through the view, on which the kernel drops them. The kernel checks permissions (default_permissions). It
// also keeps locks (fcntl, flock), which exclude only users of the same view.
//
// A process must not serve a View whose files it uses itself: at the end of the process the kernel would wait for an answer
// from that process. All methods are safe for concurrent use.
package fuseview

import (
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"nvmecr/internal/panics"
	"nvmecr/posixshim"
)

// maxWrite is the size of the largest write request, the maximum of Linux and of the FUSE library.
const maxWrite = 1 << 20

// A Tree is a directory of a view.
type Tree struct {
	Name    string // name of the directory; "" for the only tree of a view, which is at the root
	Process *posixshim.Process
	// Number distinguishes the inodes of several trees: each tree has another number from 1 to maxNumber. The only
	// tree of a view has 0.
	Number uint64
}

// maxNumber is the greatest number of a tree.
const maxNumber = 1<<(64-treeShift) - 1

// Trees are the trees of a view that can grow while it is mounted. The functions are called concurrently, for each
// name that the kernel looks up.
type Trees struct {
	// Tree returns the tree of a name, always the same one; false if there is none.
	Tree func(name string) (Tree, bool)
	// Self returns the name of the tree of a process or thread, which the symbolic link "self" leads to.
	Self func(pid int) (name string, err error)
	// Names lists the trees, without "self".
	Names func() []string
}

// Options are the options of a mount.
type Options struct {
	// ReadOnly makes the kernel refuse all changes (EROFS).
	ReadOnly bool
	// AllowOther lets other users access the files, as the modes of the files permit. It requires root, or
	// user_allow_other in /etc/fuse.conf.
	AllowOther bool
	// Logf reports a call that has panicked and returned EIO. nil is the default logger.
	Logf func(format string, args ...any)
}

// A View is a mounted view.
type View struct {
	server *fuse.Server
	dir    string
}

// Mount mounts a view of trees at dir, an existing directory. It calls mount(2), or fusermount3 if that is not
// permitted. The error names dir.
func Mount(dir string, trees []Tree, o Options) (*View, error) {
	root, err := newRoot(trees)
	if err != nil {
		return nil, err
	}
	return mount(dir, root, o)
}

// MountTrees mounts a view of trees that can grow while it is mounted.
func MountTrees(dir string, trees Trees, o Options) (*View, error) {
	return mount(dir, &dynamicRoot{trees: trees, since: time.Now()}, o)
}

func mount(dir string, root fs.InodeEmbedder, o Options) (*View, error) {
	options := []string{"default_permissions"}
	if o.ReadOnly {
		options = append(options, "ro")
	}
	var never time.Duration
	fo := &fs.Options{
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
	}
	if o.Logf != nil {
		fo.PanicHandler = func(recovered any) fuse.Status {
			o.Logf("%v", panics.Error("a call by way of the kernel", recovered))
			return fuse.EIO
		}
	}
	// fs.Mount and WaitMount are not used because they open a file of the view: a server that is killed while it
	// waits for itself never ends, and the view hangs for everybody. Requests that arrive before the server runs wait
	// in the kernel.
	server, err := fuse.NewServer(fs.NewNodeFS(root, fo), dir, &fo.MountOptions)
	if err != nil {
		return nil, fmt.Errorf("mounting a view at %s by FUSE: %w", dir, err)
	}
	go server.Serve()
	return &View{server, dir}, nil
}

// Dir returns the directory that the view is mounted at.
func (v *View) Dir() string { return v.dir }

// Wait returns when the view has been unmounted, by Close or by umount(8).
func (v *View) Wait() { v.server.Wait() }

// Detach unmounts the view at once. Processes that have a file of it open, or their working directory in it, can use
// it until this process ends.
func (v *View) Detach() error { return Detach(v.dir) }

// Detach unmounts the view at dir, also one whose process was killed.
func Detach(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == unix.EPERM {
		var said []byte
		if said, err = exec.Command("fusermount3", "-u", "-z", "--", dir).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
		}
	}
	if err != nil {
		return fmt.Errorf("unmounting the view at %s: %w", dir, err)
	}
	return nil
}

// Close unmounts the view. It fails with EBUSY if a process has a file of it open, or its working directory in it.
func (v *View) Close() error {
	if err := v.server.Unmount(); err != nil {
		return fmt.Errorf("unmounting the view: %w", err)
	}
	return nil
}
