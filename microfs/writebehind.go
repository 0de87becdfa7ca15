package microfs

import (
	"fmt"
	"syscall"

	"nvmecr/nvmf"
)

// Write-behind (Options.WriteBehind): small consecutive writes to a file are acknowledged when they
// are in a buffer, and written later as one operation, at the latest before any other call. After a
// crash the state is still that after some prefix of the operations, but the last writes to one
// file may be missing, up to one buffer of them. The log and the queue do not know of the buffer.
//
// The data is copied, so the device never needs the application's memory after a
// write has returned, and the operation is repeated after a lost connection like
// any other. Writes of the buffer's size or more are written at once.

// behindSize is the size of the buffer. With this size the copy and the operation together take the
// least time for each byte: a buffer twice as large does not fit the L2 cache.
const behindSize = 256 * nvmf.KiB

// behind holds acknowledged data that is not written yet. Guarded by FS.mu.
type behind struct {
	buf   []byte // nil: there is no write-behind
	in    *inode // valid while n > 0
	start nvmf.Bytes
	n     nvmf.Bytes
	one   [1][]byte
}

func (b *behind) end() nvmf.Bytes  { return b.start + b.n }
func (b *behind) size() nvmf.Bytes { return nvmf.Bytes(len(b.buf)) }

// init allocates the buffer and writes to it: the first use of memory takes longer than the write.
func (b *behind) init(size nvmf.Bytes) {
	b.buf = make([]byte, size)
	for i := 0; i < len(b.buf); i += blockSize {
		b.buf[i] = 1
	}
}

// size returns the size of an inode, buffered data included.
func (fs *FS) size(in *inode) int64 {
	if b := &fs.behind; b.n > 0 && b.in == in {
		return max(in.size, int64(b.end()))
	}
	return in.size
}

// write is writeAt for an open file. The data is buffered, written, or, with O_SYNC, made durable.
func (f *File) write(bufs [][]byte, off int64) (int, error) {
	if total(bufs) > maxBatch {
		f.begin(true)
		defer f.end(true)
	}
	n, err := f.bufferWrite(bufs, off)
	if f.sync && n > 0 && f.fs.log.Unflushed() {
		if serr := f.fs.sync(); serr != nil {
			return 0, serr // with a count above 0 the caller would ignore the error
		}
	}
	return n, err
}

func (f *File) bufferWrite(bufs [][]byte, off int64) (int, error) {
	fs := f.fs
	if fs.behind.buf == nil {
		return f.writeAt(bufs, off)
	}
	n := total(bufs)
	if !f.mayBuffer(n, off) {
		fs.writeBehind()
		if err := f.failed(); err != nil {
			return 0, err
		}
		return f.writeAt(bufs, off)
	}
	b := &fs.behind
	if b.n > 0 && (b.in != f.in || b.end() != nvmf.Bytes(off) || b.n+n > b.size()) {
		fs.writeBehind()
	}
	if err := f.failed(); err != nil {
		return 0, err
	}
	if b.n == 0 {
		b.in, b.start = f.in, nvmf.Bytes(off)
	}
	for _, p := range bufs {
		b.n += nvmf.Bytes(copy(b.buf[b.n:], p))
	}
	// Buffered writes of a stream end at multiples of the buffer's size.
	if b.n == b.size() || b.end()%b.size() == 0 {
		fs.writeBehind()
		if err := f.failed(); err != nil {
			return 0, err
		}
	}
	return int(n), nil
}

// mayBuffer reports whether a write of n bytes may be acknowledged before it is
// written: it is small, and can fail only with the device.
func (f *File) mayBuffer(n nvmf.Bytes, off int64) bool {
	fs, size := f.fs, f.fs.behind.size()
	return !f.sync && f.in.ranges.len() == 0 && n > 0 && n < size && off >= 0 && uint64(off)+uint64(n) <= fs.g.maxFileSize() &&
		(fs.opts.Cred.UID == 0 || f.in.mode&modePerm == fs.unprivileged(f.in)) &&
		nvmf.Bytes(fs.available())*fs.g.hugeblock > 2*size+4*fs.g.hugeblock
}

// writeBehind writes the buffered data. It is called before every operation except a write that
// fits the buffer. An error is kept for the open files of the inode (losses) and for the next Sync.
func (fs *FS) writeBehind() {
	b := &fs.behind
	if b.n == 0 {
		return
	}
	in, data := b.in, b.buf[:b.n]
	b.in, b.n = nil, 0
	b.one[0] = data
	n, err := fs.writeAt(in, b.one[:], int64(b.start))
	if err == nil {
		return
	}
	err = fmt.Errorf("inode %d: bytes %d to %d were acknowledged and could not be written: %w",
		in.ino, b.start+nvmf.Bytes(n), b.start+nvmf.Bytes(len(data))-1, err)
	fs.logf("%v", err)
	fs.losses.add(in.ino, err)
	fs.unreportedWrite = err
}

// losses has the buffered writes that failed, by inode. Guarded by FS.mu.
type losses map[Ino]loss

type loss struct {
	count int
	last  error // nil: the file has been truncated to 0 since
}

func (l *losses) add(ino Ino, err error) {
	if *l == nil {
		*l = make(losses)
	}
	(*l)[ino] = loss{(*l)[ino].count + 1, err}
}

// of returns the error of a file that lacks a buffered write. Such a file does not count as
// complete (Attr.Closed).
func (l losses) of(ino Ino) error { return l[ino].last }

// clear records that the file has been truncated to 0, so that no bytes are missing any more.
func (l losses) clear(ino Ino) {
	if x, ok := l[ino]; ok {
		l[ino] = loss{count: x.count}
	}
}

// failed returns the error of a buffered write that failed since the file was
// opened. The error stays: later data would follow a gap.
func (f *File) failed() error {
	x := f.fs.losses[f.ino]
	switch {
	case x.count == f.losses:
		return f.fs.broken
	case x.last == nil:
		return syscall.EIO
	}
	return x.last
}
