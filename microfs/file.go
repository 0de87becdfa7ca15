package microfs

import (
	"fmt"
	"math"
	"syscall"

	"nvmecr/oplog"
)

// File is an open file: an inode and an access mode, without an offset.
// Safe for concurrent use. Reads at or past the end return 0, nil.
type File struct {
	fs       *FS
	ino      Ino
	in       *inode // nil once closed
	readable bool
	writable bool
	dir      bool
	sync     bool // O_DSYNC: a write is durable when it returns
	losses   int  // of the inode, when it was opened
	long     int  // long operations in progress; Close waits for their end
	ahead    readAhead
}

// Ino returns the inode number.
func (f *File) Ino() Ino { return f.ino }

// IsDir says whether it is a directory.
func (f *File) IsDir() bool { return f.dir }

// use takes the lock for an operation on an open file.
func (f *File) use() error { return f.useAfter((*FS).enter) }

func (f *File) useAfter(enter func(*FS) error) error {
	if err := enter(f.fs); err != nil {
		return err
	}
	if f.in == nil {
		f.fs.mu.Unlock()
		return syscall.EBADF
	}
	return nil
}

// change takes the lock for an operation that changes the content of the file. It waits for the end
// of a long write, so that writes do not mix and an append has one position.
func (f *File) change(enter func(*FS) error) error {
	for {
		if err := f.useAfter(enter); err != nil {
			return err
		}
		if !f.in.open.long {
			return nil
		}
		f.fs.idle.Wait()
		f.fs.mu.Unlock()
	}
}

// begin and end enclose an operation that gives the lock up before its end. The file stays open
// meanwhile.
func (f *File) begin(write bool) {
	f.long++
	f.in.open.long = f.in.open.long || write
}

func (f *File) end(write bool) {
	f.long--
	f.in.open.long = f.in.open.long && !write
	f.fs.idle.Broadcast()
}

// ReadAt reads into bufs in turn. It may see a part of a write of more than 8 MiB that is in
// progress. Errors: EBADF, EISDIR, EINVAL, EIO, and *RemoteRangeError if some of the bytes are in
// other partitions.
func (f *File) ReadAt(bufs [][]byte, off int64) (int, error) {
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.fs.leave()
	switch {
	case !f.readable:
		return 0, syscall.EBADF
	case f.in.isDir():
		return 0, syscall.EISDIR
	}
	if err := f.in.remoteRange(off, off+int64(total(bufs))); err != nil {
		return 0, err
	}
	if total(bufs) > maxBatch {
		f.begin(false)
		defer f.end(false)
	}
	n, err := f.read(bufs, off)
	return n, f.fs.reportDamage(err)
}

// WriteAt writes bufs in turn. A write of more than 8 MiB takes several operations, between which
// other calls may run, except other writes to the file. If WriteAt returns a short count it also
// returns the error that ended the write. Errors: EBADF, EINVAL, EFBIG, ENOSPC, EIO, EROFS, and with
// Options.WriteBehind the error of an earlier write.
func (f *File) WriteAt(bufs [][]byte, off int64) (int, error) {
	if err := f.change((*FS).enterBehind); err != nil {
		return 0, err
	}
	defer f.fs.leave()
	if !f.writable {
		return 0, syscall.EBADF
	}
	return f.write(bufs, off)
}

// Append writes at the end of the file, atomically with regard to other appends. end is the new end
// of the file. The errors are those of WriteAt.
func (f *File) Append(bufs [][]byte) (n int, end int64, err error) {
	return f.AppendBelow(bufs, math.MaxInt64)
}

// AppendBelow is Append to a file that may not become larger than limit bytes (RLIMIT_FSIZE). It
// writes the part of bufs that Below returns.
func (f *File) AppendBelow(bufs [][]byte, limit int64) (n int, end int64, err error) {
	if err := f.change((*FS).enterBehind); err != nil {
		return 0, 0, err
	}
	defer f.fs.leave()
	if !f.writable {
		return 0, 0, syscall.EBADF
	}
	off := f.fs.size(f.in)
	if bufs, err = Below(bufs, off, limit); err != nil {
		return 0, off, err
	}
	n, err = f.write(bufs, off)
	return n, off + int64(n), err
}

// ErrFileTooLarge: a write begins at or past the largest size that the caller allows.
var ErrFileTooLarge = fmt.Errorf("the file would become larger than the limit of the process (ulimit -f): %w", syscall.EFBIG)

// Below returns the part of bufs that lies before offset limit, for a write of bufs at off. It fails
// with ErrFileTooLarge if bufs has bytes and all of them lie behind limit.
func Below(bufs [][]byte, off, limit int64) ([][]byte, error) {
	fits := max(0, limit-off)
	for i, b := range bufs {
		if int64(len(b)) <= fits {
			fits -= int64(len(b))
			continue
		}
		if off >= limit {
			return nil, ErrFileTooLarge
		}
		bufs[i] = b[:fits]
		return bufs[:i+1], nil
	}
	return bufs, nil
}

// Truncate sets the size. Errors: EINVAL, also if the file is not open for writing, EBADF, EFBIG.
func (f *File) Truncate(size int64) error {
	if err := f.change((*FS).enter); err != nil {
		return err
	}
	defer f.fs.leave()
	if !f.writable {
		return syscall.EINVAL
	}
	return f.fs.truncate(f.in, size)
}

// Sync makes the file durable, and everything else that was acknowledged.
func (f *File) Sync() error {
	if err := f.use(); err != nil {
		return err
	}
	defer f.fs.leave()
	if f.fs.opts.ReadOnly {
		return nil
	}
	if err := f.fs.sync(); err != nil {
		return err
	}
	return f.failed()
}

// Stat returns the attributes.
func (f *File) Stat() (Attr, error) {
	if err := f.use(); err != nil {
		return Attr{}, err
	}
	defer f.fs.leave()
	return f.in.attr(f.fs.g), nil
}

// Size returns the size.
func (f *File) Size() (int64, error) {
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.fs.leave()
	return f.in.size, nil
}

// SetAttr changes attributes. Errors: EPERM, EACCES, EROFS.
func (f *File) SetAttr(s SetAttr) error {
	if err := f.use(); err != nil {
		return err
	}
	defer f.fs.leave()
	return f.fs.setAttr(f.in, s)
}

// ReadDir returns up to n names that follow the name `after` in order ("" is the start; n <= 0 is
// all), without "." and "..". Errors: ENOTDIR.
func (f *File) ReadDir(after string, n int) ([]Dirent, error) {
	if err := f.use(); err != nil {
		return nil, err
	}
	defer f.fs.leave()
	if !f.in.isDir() {
		return nil, syscall.ENOTDIR
	}
	t := f.fs.tree
	list := make([]Dirent, 0, min(f.in.entries(), max(n, 64)))
	for e := range t.names.from(f.in.ino, after) {
		if e.dir != f.in.ino || (n > 0 && len(list) == n) {
			break
		}
		if e.name != after || after == "" {
			list = append(list, Dirent{Name: e.name, Ino: e.ino, Mode: t.inodes.get(e.ino).mode & modeType})
		}
	}
	return list, nil
}

// SeekData returns the first offset >= off that has data, as SEEK_DATA of lseek(2). It fails with
// ENXIO behind the last data.
func (f *File) SeekData(off int64) (int64, error) { return f.seek(off, true) }

// SeekHole returns the first offset >= off that lies in a hole, as SEEK_HOLE of lseek(2). The end of
// the file counts as a hole. SeekHole fails with ENXIO at or behind the end.
func (f *File) SeekHole(off int64) (int64, error) { return f.seek(off, false) }

func (f *File) seek(off int64, data bool) (int64, error) {
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.fs.leave()
	in := f.in
	if off < 0 || off >= in.size {
		return 0, syscall.ENXIO
	}
	for off < in.size {
		s := in.spanAt(f.fs.g, off, in.size)
		if data == (s.Kind != SpanHole) {
			return off, nil
		}
		off = s.End()
	}
	if data {
		return 0, syscall.ENXIO
	}
	return in.size, nil
}

// Close closes the file. The last close by a writer makes the file durable and sets Attr.Closed.
// After an error the file may be neither durable nor closed in this sense.
func (f *File) Close() error {
	_, err := f.close(true, true)
	return err
}

// CloseUnsynced is Close without a flush. owing says that Close would have flushed. Then the caller
// has to call FS.Flush before it reports to the application that the file is closed.
func (f *File) CloseUnsynced() (owing bool, err error) { return f.close(true, false) }

// CloseIncomplete closes the file for a writer that has died: it does not set Attr.Closed.
func (f *File) CloseIncomplete() error {
	_, err := f.close(false, false)
	return err
}

func (f *File) close(complete, durable bool) (owing bool, err error) {
	f.fs.mu.Lock()
	defer f.fs.leave()
	for f.long > 0 {
		f.fs.idle.Wait()
	}
	in := f.in
	if in == nil {
		return false, syscall.EBADF
	}
	if f.fs.broken == nil && f.fs.claim.Released {
		_ = f.fs.resume() // if it fails, the file system is out of service
	}
	if f.fs.broken == nil {
		f.fs.writeBehind()
	}
	failed := f.failed()
	f.in = nil
	f.dropBuffer()
	f.ahead = readAhead{}
	f.fs.opens--
	in.done(f.writable)
	if f.fs.broken != nil {
		return false, f.fs.broken
	}
	if in.nlink == 0 && in.open == nil {
		f.fs.tree.forget(in, f.fs.freed)
		f.fs.release()
		failed = nil // the file has no name: the error does not matter
	}
	if !complete || !f.writable || in.writers() > 0 || in.nlink > 0 && f.fs.losses.of(in.ino) != nil {
		return false, failed
	}
	// A file without a name does not survive, but changes before its close do, such as the rename
	// that has replaced the file.
	if in.nlink > 0 && in.written && (in.changed || !f.fs.closeCreated(in)) {
		if err := f.fs.closeWritten(in); err != nil {
			return false, err
		}
	} else if !f.fs.log.Unflushed() { // else the file may just have been created
		return false, failed
	}
	if !durable {
		return true, failed
	}
	if err := f.fs.sync(); err != nil {
		return false, err
	}
	return false, failed
}

// closeCreated closes a file that was created and never written, without a round trip: the Close
// record is deferred to the next group, so that create and close together cost one round trip. It
// returns false, and does nothing, if a flush has to follow.
func (fs *FS) closeCreated(in *inode) bool {
	fs.rec = oplog.Record{Type: oplog.Close, Ino: uint64(in.ino), Time: now()}
	if fs.log.Unflushed() || !fs.log.Defer(&fs.rec) {
		return false
	}
	in.closed, in.written = true, false
	return true
}

// closeWritten logs the close of a file that was written. A sync has to follow.
func (fs *FS) closeWritten(in *inode) error {
	fs.rec = oplog.Record{Type: oplog.Close, Ino: uint64(in.ino), Time: now()}
	if err := fs.record(); err != nil {
		return err
	}
	in.written = false
	in.dropTail()
	return nil
}
