package tree

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

// Readers gives access to the partitions of a store, for reading.
type Readers interface {
	// Reader returns a mount of a partition that shows everything acknowledged before since. It returns the same
	// mount while nothing has changed; files in earlier mounts stay open.
	Reader(place uint32, since time.Time) (*microfs.FS, error)
}

// Options are the parts of a process's file system other than the index.
type Options struct {
	// Own is the partition named in Hello, mounted for writing; nil if there is none. The caller unmounts it.
	Own     *microfs.FS
	Readers Readers
	// Available returns how much the process could write once it has a partition, given the total and free space of
	// the store. nil: the process will not get a partition.
	Available func(total, free nvmf.Bytes) nvmf.Bytes
	// Logf prints a message to the user, on one line. It may be nil.
	Logf func(format string, args ...any)
}

// FS is the tree of a job in one process. It is a vfs.FS.
type FS struct {
	client *Client
	own    *microfs.FS // nil: data is written through the index
	place  uint32      // number of own
	opts   Options
	ranges int  // maximum number in a message
	sums   bool // data is checksummed
	cred   atomic.Pointer[microfs.Cred]

	mu     sync.Mutex
	inodes map[identity]*inode
	shards map[wire.Shard]struct{} // open for writing
}

var _ vfs.FS = (*FS)(nil)

// New returns the tree of the index. It removes unused shards of the process's own partition.
func New(client *Client, o Options) (*FS, error) {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	fs := &FS{
		client: client, own: o.Own, place: client.hello.Partition, opts: o, ranges: wire.MaxRanges, sums: client.welcome.DataCRC,
		inodes: make(map[identity]*inode), shards: make(map[wire.Shard]struct{}),
	}
	cred := client.hello.Cred
	fs.cred.Store(&cred)
	client.fs.Store(fs)
	if fs.own == nil {
		fs.place = wire.NoPartition
		return fs, nil
	}
	return fs, fs.tellShards()
}

// tellShards tells the index the shards of the own partition, so that it releases the unused ones.
func (fs *FS) tellShards() error {
	root, err := fs.own.Open(microfs.RootIno, "/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("looking for what the partition has of the job's files: %w", err)
	}
	after := ""
	for err == nil {
		var names []microfs.Dirent
		if names, err = root.ReadDir(after, wire.MaxShards); err != nil || len(names) == 0 {
			break
		}
		after = names[len(names)-1].Name
		var known wire.Shards
		for _, e := range names {
			if s, ok := wire.ParseShard(e.Name); ok {
				known.List = append(known.List, s)
			}
		}
		err = fs.client.Call(wire.OpShards, &known, nil)
	}
	return errors.Join(err, root.Close())
}

// remove removes shards that the index has released. It is called during a call of the client.
func (fs *FS) remove(list []wire.Shard) {
	if fs.own == nil {
		return
	}
	for _, s := range list {
		fs.mu.Lock()
		_, open := fs.shards[s]
		fs.mu.Unlock()
		if open {
			fs.opts.Logf("the index has released %s, which is being written: it is kept", s.Name())
			continue
		}
		if err := fs.own.Unlink(microfs.RootIno, s.Name()); err != nil && !errors.Is(err, syscall.ENOENT) {
			fs.opts.Logf("removing %s, whose file is gone: %v", s.Name(), err)
		}
	}
}

// Open opens a file.
func (fs *FS) Open(dir microfs.Ino, path string, flags int, mode uint32) (vfs.File, error) {
	if flags&unix.O_TRUNC != 0 && flags&unix.O_PATH == 0 {
		if err := fs.publishAt(dir, path, flags&unix.O_NOFOLLOW == 0); err != nil {
			return nil, err
		}
	}
	var answer wire.File
	request := wire.Open{Name: wire.Name{Dir: dir, Path: path}, Flags: uint32(flags), Mode: mode}
	if err := fs.client.Call(wire.OpOpen, &request, &answer); err != nil {
		return nil, err
	}
	return fs.opened(&answer, path, flags)
}

// OpenIno opens a file by its inode number.
func (fs *FS) OpenIno(ino microfs.Ino, flags int) (vfs.File, error) {
	var answer wire.File
	if err := fs.client.Call(wire.OpOpenIno, &wire.OpenIno{Ino: ino, Flags: uint32(flags)}, &answer); err != nil {
		return nil, err
	}
	return fs.opened(&answer, fmt.Sprintf("the file of inode %d", ino), flags)
}

func (fs *FS) opened(answer *wire.File, path string, flags int) (vfs.File, error) {
	n := node{fs: fs, ino: answer.Attr.Ino, mode: answer.Attr.Mode}
	if n.mode&unix.S_IFMT != unix.S_IFREG || flags&unix.O_PATH != 0 {
		return &n, nil
	}
	how := flags & unix.O_ACCMODE // 3, an extension of Linux, permits neither reading nor writing
	f := &file{
		node: n, readable: how == unix.O_RDONLY || how == unix.O_RDWR, writable: how == unix.O_WRONLY || how == unix.O_RDWR,
		sync: flags&unix.O_DSYNC != 0, // O_SYNC has that bit, too
	}
	in, others := fs.take(answer, path)
	f.in = in
	in.lock()
	defer in.mu.Unlock()
	if f.writable {
		in.writers++
	}
	if !others {
		return f, nil
	}
	// The answer may be older than data that this process has published since.
	if err := in.refresh(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, in.closeOldShard()
}

// take returns the inode of a file that was opened, and whether this process had it open already.
func (fs *FS) take(answer *wire.File, path string) (in *inode, others bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	id := identity{answer.Attr.Ino, answer.Attr.Birth}
	in, others = fs.inodes[id]
	if !others {
		in = newInode(fs, id, path, answer)
		fs.inodes[id] = in
	}
	in.files++
	return in, others
}

// leave records that a file was closed, and reports whether it was the last one of this process.
func (fs *FS) leave(in *inode) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if in.files--; in.files > 0 {
		return false
	}
	delete(fs.inodes, in.identity)
	return true
}

// opens returns the inode with these attributes, if this process has it open.
func (fs *FS) opens(a *wire.Attr) *inode {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.inodes[identity{a.Ino, a.Birth}]
}

// open returns the files that this process has open.
func (fs *FS) open() []*inode {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Collect(maps.Values(fs.inodes))
}

// unpublished reports whether there is data that has not been published.
func (fs *FS) unpublished() bool {
	return slices.ContainsFunc(fs.open(), func(in *inode) bool {
		end, _ := in.noted()
		return end > 0
	})
}

// publishAt publishes data of the file at a path before the file is truncated. Errors about the path are left to the
// call that follows.
func (fs *FS) publishAt(dir microfs.Ino, path string, follow bool) error {
	if !fs.unpublished() {
		return nil
	}
	a, err := fs.stat(dir, path, follow)
	if err != nil {
		return nil
	}
	if in := fs.opens(&a); in != nil {
		return in.lockAndPublish()
	}
	return nil
}

// Publish makes all written data durable, and visible to other processes that open its files or call Refresh.
func (fs *FS) Publish() error {
	var errs []error
	for _, in := range fs.open() {
		errs = append(errs, in.lockAndPublish())
	}
	return errors.Join(errs...)
}

// Refresh makes open files show the data that others have published.
func (fs *FS) Refresh() error {
	var errs []error
	for _, in := range fs.open() {
		in.lock()
		errs = append(errs, in.refresh())
		in.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Sync publishes the data of all files, and makes data and names durable. Open files then show data that others have
// published before.
func (fs *FS) Sync() error {
	errs := []error{fs.Publish()}
	for _, in := range fs.open() {
		in.lock()
		errs = append(errs, in.refresh(), in.closeOldShard())
		in.mu.Unlock()
	}
	if fs.own != nil {
		errs = append(errs, fs.own.Sync())
	}
	return errors.Join(append(errs, fs.client.Call(wire.OpSync, nil, nil))...)
}

// Vacate publishes all data, and leaves the own partition to another process. A later write takes the partition back.
func (fs *FS) Vacate() error {
	err := fs.Publish()
	if fs.own != nil {
		err = errors.Join(err, fs.own.Vacate())
	}
	return err
}

// Close publishes the data of files that are still open, and announces the end of the process to the index. Data that
// could not be published is adopted by the index, as after the death of a process.
func (fs *FS) Close() error {
	var errs []error
	for _, in := range fs.open() {
		errs = append(errs, in.lockAndPublish(), in.lockAndCloseShard())
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, fs.client.Close())
	}
	return fs.client.Goodbye()
}
