package tree

import (
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// A file is an open regular file. It is a vfs.File.
type file struct {
	node
	in                       *inode
	readable, writable, sync bool
	closed                   atomic.Bool // set with in.mu locked exclusively
}

var _ vfs.File = (*file)(nil)

// use fails if the file is closed. The caller holds in.mu.
func (f *file) use() error {
	if f.closed.Load() {
		return syscall.EBADF
	}
	return nil
}

// lock locks in.mu for a call on the file. The caller unlocks it.
func (f *file) lock() (*inode, error) {
	f.in.lock()
	err := f.use()
	if err != nil {
		f.in.mu.Unlock()
	}
	return f.in, err
}

// Size returns the size that reads of this process see.
func (f *file) Size() (int64, error) {
	f.in.mu.RLock()
	defer f.in.mu.RUnlock()
	return f.in.size(), f.use()
}

// Stat requests the attributes from the index. If others have changed the file since the layout was requested, the
// layout is requested again, so that all bytes up to the returned size can be read.
func (f *file) Stat() (microfs.Attr, error) {
	a, err := f.fs.stat(f.ino, "", true)
	if err != nil {
		return microfs.Attr{}, err
	}
	in := f.in
	in.mu.RLock()
	shown, same := in.shown(&a), in.attr.Size == a.Size && in.attr.Cut == a.Cut && in.attr.Mtime.Equal(a.Mtime)
	in.mu.RUnlock()
	if same {
		return shown, nil
	}
	if in, err = f.lock(); err != nil {
		return microfs.Attr{}, err
	}
	defer in.mu.Unlock()
	if err := in.refresh(); err != nil {
		return microfs.Attr{}, err
	}
	return in.shown(&in.attr), nil
}

// SetAttr changes attributes. A time that it sets is not replaced by the time of an earlier write that is published
// later.
func (f *file) SetAttr(s microfs.SetAttr) error {
	in, err := f.lock()
	if err != nil {
		return err
	}
	defer in.mu.Unlock()
	if err := f.node.SetAttr(s); err != nil {
		return err
	}
	in.touch(s.Mtime)
	return nil
}

// touch records that the time of modification was set, if it was. The caller holds in.mu.
func (in *inode) touch(mtime *time.Time) {
	if mtime == nil {
		return
	}
	in.writtenMu.Lock()
	in.touched = *mtime
	in.writtenMu.Unlock()
}

// Truncate sets the size.
func (f *file) Truncate(size int64) error {
	if !f.writable {
		return syscall.EINVAL
	}
	return f.change(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: f.ino}, Size: size})
}

// Allocate makes the file as long as the end of the range, unless its size is to be kept. No space is reserved: no process
// knows who will write there.
func (f *file) Allocate(off, n int64, keepSize bool) error {
	switch {
	case !f.writable:
		return syscall.EBADF
	case keepSize:
		return nil
	}
	return f.allocate(wire.Extend, off, n)
}

// Punch makes the range a hole.
func (f *file) Punch(off, n int64) error { return f.allocate(wire.Punch, off, n) }

// ZeroRange zeroes the range, and extends the file to its end unless the size is to be kept.
func (f *file) ZeroRange(off, n int64, keepSize bool) error {
	mode := wire.Zero
	if keepSize {
		mode = wire.ZeroKeepSize
	}
	return f.allocate(mode, off, n)
}

func (f *file) allocate(mode wire.Mode, off, n int64) error {
	if !f.writable {
		return syscall.EBADF
	}
	return f.change(wire.OpAllocate, &wire.Allocate{Ino: f.ino, Mode: mode, Off: off, Len: n})
}

// change makes the index change the file. The data that this process has written before is published first.
func (f *file) change(op wire.Op, request wire.Body) error {
	in, err := f.lock()
	if err != nil {
		return err
	}
	defer in.mu.Unlock()
	if err := in.publish(); err != nil {
		return err
	}
	var answer wire.AttrAnswer
	in.layout.forget()
	if err := f.fs.client.Call(op, request, &answer); err != nil {
		return err
	}
	in.attr = answer.Attr
	return in.closeOldShard()
}

// Keep makes the index keep the file until another process opens it by its inode number.
func (f *file) Keep() error { return f.fs.client.Call(wire.OpKeep, &wire.Keep{Ino: f.ino}, nil) }

// Sync makes the written data durable and publishes it. Afterwards this process sees the data that other processes had
// published before.
func (f *file) Sync() error {
	in, err := f.lock()
	if err != nil {
		return err
	}
	defer in.mu.Unlock()
	if end, _ := in.noted(); end > 0 {
		return in.publish() // this also discards the layout
	}
	if err := f.fs.client.Call(wire.OpSync, nil, nil); err != nil {
		return err
	}
	if err := in.refresh(); err != nil {
		return err
	}
	return in.closeOldShard()
}

// SeekData returns the first offset from off on where there is no hole.
func (f *file) SeekData(off int64) (int64, error) { return f.seek(off, false) }

// SeekHole returns the first offset from off on that is in a hole; the end of the file counts as a hole.
func (f *file) SeekHole(off int64) (int64, error) { return f.seek(off, true) }

func (f *file) seek(off int64, hole bool) (int64, error) {
	in, err := f.lock()
	if err != nil {
		return 0, err
	}
	defer in.mu.Unlock()
	size := in.size()
	if off < 0 || off >= size {
		return 0, syscall.ENXIO
	}
	if err := in.fetchLayout(size); err != nil {
		return 0, err
	}
	for off < size {
		p := in.piece(off, size)
		if hole == (p.from.kind == wire.Hole) {
			return off, nil
		}
		off = p.end
	}
	if hole {
		return size, nil
	}
	return 0, syscall.ENXIO
}

// Advise reads ahead from off.
func (f *file) Advise(off, n int64, advice int) error {
	in := f.in
	in.mu.RLock()
	defer in.mu.RUnlock()
	if err := f.use(); err != nil || off < 0 || off >= in.size() {
		return err
	}
	if shard := in.has(in.piece(off, in.size()).from); shard != nil {
		return shard.Advise(off, n, advice)
	}
	return nil
}

// Close publishes the written data and closes the file.
func (f *file) Close() error {
	in, err := f.lock()
	if err != nil {
		return err
	}
	defer in.mu.Unlock()
	return f.close()
}

// close is Close for a caller that holds in.mu alone.
func (f *file) close() error {
	f.closed.Store(true)
	err := f.in.finish(f.writable)
	if f.fs.leave(f.in) {
		f.in.closeSources()
	}
	return err
}

// ReadDir fails: the file is no directory.
func (f *file) ReadDir(string, int) ([]microfs.Dirent, error) { return nil, unix.ENOTDIR }
