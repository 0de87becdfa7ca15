package fuseview

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"nvmecr/posixshim"
)

// A file is an open file description of the kernel.
type file struct {
	node    *node
	handle  posixshim.Handle
	mapped  bool        // opened by the preload library, to map it
	written atomic.Bool // since the last sync

	borrowed sync.RWMutex // shared by withOpen while it uses handle, exclusive for Release; the lock after node.mu
}

var _ interface {
	fs.FileReader
	fs.FileWriter
	fs.FileFlusher
	fs.FileFsyncer
	fs.FileReleaser
	fs.FileAllocater
	fs.FileLseeker
} = (*file)(nil)

// openFlags tell the kernel not to cache data of the file, and not to serialise writes.
const openFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES

// kernelOnly are flags of open(2) that the kernel itself implements.
const kernelOnly = unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_DIRECT | unix.O_NOATIME | unix.O_NOCTTY

// openMapped returns the flags of a file that the preload library opens in order to map it; it marks these by
// posixshim.ViewFlags, which other programs have no reason to use. The kernel keeps the pages of such a file for
// later mappings as long as the file is unchanged, as its ctime shows, which nobody can set. Other readers of a file
// opened with these flags see current data, too, since the kernel then fetches the attributes first.
func (n *node) openMapped(f *file) (flags uint32) {
	attr, err := n.tree.process.FileAttr(f.handle)
	if err != nil {
		return openFlags // read will return the error
	}
	f.mapped = true
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cachedCtime.Equal(attr.Ctime) {
		flags = fuse.FOPEN_KEEP_CACHE
	}
	n.cachedCtime = attr.Ctime
	return flags
}

// add returns a new file for a handle of posixshim.
func (n *node) add(h int) *file {
	f := &file{node: n, handle: posixshim.Handle(h)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = make(map[*file]struct{})
	}
	n.open[f] = struct{}{}
	return f
}

// withOpen calls do with the handle of an open file of the node. It returns false without calling do if no file is
// open. The handle stays valid meanwhile, even if the last process closes the file.
func (n *node) withOpen(do func(posixshim.Handle) error) (bool, error) {
	f := n.borrow()
	if f == nil {
		return false, nil
	}
	defer f.borrowed.RUnlock()
	return true, do(f.handle)
}

// borrow returns an open file whose Release waits for borrowed.RUnlock, nil if there is none.
func (n *node) borrow() *file {
	n.mu.Lock()
	defer n.mu.Unlock()
	for f := range n.open {
		// Never waits: Release removes the file from open before it locks borrowed.
		f.borrowed.RLock()
		return f
	}
	return nil
}

// Open opens the file.
func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, err := n.tree.process.Open(n.pathAt(""), int(flags)&^kernelOnly, 0)
	if err != nil {
		return nil, 0, n.tree.errno(err)
	}
	f := n.add(h)
	if flags&(unix.O_ACCMODE|posixshim.ViewFlags) == unix.O_RDONLY|posixshim.ViewFlags {
		return f, n.openMapped(f), 0
	}
	return f, openFlags, 0
}

// Create creates a file and opens it.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	h, err := n.tree.process.Open(n.pathAt(name), int(flags)&^kernelOnly|unix.O_CREAT, mode&0o7777)
	if err != nil {
		return nil, nil, 0, n.tree.errno(err)
	}
	n.chownToCaller(ctx, name)
	inode, errno := n.child(ctx, name, out)
	if errno != 0 {
		_ = n.tree.process.Release(posixshim.Handle(h)) // the error of the lookup matters
		return nil, nil, 0, errno
	}
	made, ok := inode.Operations().(*node)
	if !ok {
		return nil, nil, 0, syscall.EIO
	}
	return inode, made.add(h), openFlags, 0
}

// Read fills dest unless the file ends before, because the kernel takes a short read for the end of the file. On a
// mapped file an error after some bytes is returned as an error.
func (f *file) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	total := 0
	for total < len(dest) {
		n, err := f.node.tree.process.Pread(f.handle, dest[total:], off+int64(total))
		if err != nil && (total == 0 || f.mapped) {
			return nil, f.node.tree.errno(err)
		}
		if err != nil || n == 0 {
			break
		}
		total += n
	}
	return fuse.ReadResultData(dest[:total]), 0
}

// Write writes data. On a file opened with O_APPEND the offset of the kernel is meaningless.
func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if !f.written.Swap(true) {
		f.dropPrivileges(ctx)
	}
	n, err := f.node.tree.process.Pwrite(f.handle, data, off, math.MaxInt64)
	return uint32(n), f.node.tree.errno(err)
}

// dropPrivileges clears the set-user-ID and set-group-ID bits of a file that another user than root writes to.
func (f *file) dropPrivileges(ctx context.Context) {
	caller, ok := fuse.FromContext(ctx)
	if !ok || caller.Uid == 0 {
		return
	}
	attr, err := f.node.tree.process.FileAttr(f.handle)
	if err != nil {
		return
	}
	privileges := attr.Mode & syscall.S_ISUID
	if attr.Mode&unix.S_IXGRP != 0 {
		privileges |= attr.Mode & syscall.S_ISGID
	}
	if privileges != 0 {
		// Ignore an error: the write itself reports errors of the file.
		_ = f.node.tree.process.Fchmod(f.handle, attr.Mode&^privileges)
	}
}

// Flush is called by each close(2), which returns its result.
func (f *file) Flush(ctx context.Context) syscall.Errno {
	if !f.written.Swap(false) {
		return 0
	}
	return f.Fsync(ctx, 0)
}

// Fsync makes written data durable.
func (f *file) Fsync(context.Context, uint32) syscall.Errno {
	return f.node.tree.errno(f.node.tree.process.Fsync(f.handle))
}

// Release closes the file. The kernel ignores its result.
func (f *file) Release(context.Context) syscall.Errno {
	f.node.mu.Lock()
	delete(f.node.open, f)
	f.node.mu.Unlock()
	f.borrowed.Lock()
	defer f.borrowed.Unlock()
	return f.node.tree.errno(f.node.tree.process.Release(f.handle))
}

// Allocate implements fallocate(2).
func (f *file) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	f.written.Store(true)
	return f.node.tree.errno(f.node.tree.process.Fallocate(f.handle, int(mode), int64(off), int64(size), math.MaxInt64))
}

// Lseek implements SEEK_DATA and SEEK_HOLE of lseek(2).
func (f *file) Lseek(_ context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	n, err := f.node.tree.process.Seek(f.handle, int64(off), int(whence))
	return uint64(n), f.node.tree.errno(err)
}
