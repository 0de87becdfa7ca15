package microfs

import (
	"fmt"
	"syscall"

	"nvmecr/nvmf"
)

// Writing behind (Options.WriteBehind): small writes that continue each other
// are acknowledged when they are in a buffer of ours, and become one operation
// later, at the latest in front of any other call. A crash then leaves the
// state after some first part of the operations, as always, but the last writes
// may be missing: up to a buffer of them, of one file. Nothing else changes:
// neither the log nor the queue knows of it.
//
// The buffer is copied into, so the device never needs the application's
// memory after a write has returned, and what a lost connection cut off is
// repeated as any other operation. Writes of a buffer's size or more are not
// worth a copy and go out at once.

// behindSize is the most that is written behind. It is the size at which a copy
// and one operation take least for each byte: twice that is no longer in the
// processor's second cache when it is sent.
const behindSize = 256 * nvmf.KiB

// behind is what was acknowledged and is not written yet. Guarded by FS.mu.
type behind struct {
	buf   []byte // nil: nothing is ever written behind
	in    *inode // valid while n > 0
	start nvmf.Bytes
	n     nvmf.Bytes
	one   [1][]byte
}

func (b *behind) end() nvmf.Bytes  { return b.start + b.n }
func (b *behind) size() nvmf.Bytes { return nvmf.Bytes(len(b.buf)) }

// init allocates the buffer, and touches it: the first use of memory takes
// longer than the write.
func (b *behind) init(size nvmf.Bytes) {
	b.buf = make([]byte, size)
	for i := 0; i < len(b.buf); i += blockSize {
		b.buf[i] = 1
	}
}

// size returns the size of an inode with what is to be written behind.
func (fs *FS) size(in *inode) int64 {
	if b := &fs.behind; b.n > 0 && b.in == in {
		return max(in.size, int64(b.end()))
	}
	return in.size
}

// write is writeAt for an open file: done later, now, or durably.
func (f *File) write(bufs [][]byte, off int64) (int, error) {
	if total(bufs) > maxBatch {
		f.begin(true)
		defer f.end(true)
	}
	n, err := f.writeSoon(bufs, off)
	if f.sync && n > 0 && f.fs.log.Unflushed() {
		if serr := f.fs.sync(); serr != nil {
			return 0, serr // a count would hide it
		}
	}
	return n, err
}

func (f *File) writeSoon(bufs [][]byte, off int64) (int, error) {
	fs := f.fs
	if fs.behind.buf == nil {
		return fs.writeAt(f.in, bufs, off)
	}
	n := total(bufs)
	if !f.mayWait(n, off) {
		fs.writeBehind()
		if err := f.failed(); err != nil {
			return 0, err
		}
		return fs.writeAt(f.in, bufs, off)
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
	// What a stream writes behind ends at multiples of the buffer's size.
	if b.n == b.size() || b.end()%b.size() == 0 {
		fs.writeBehind()
		if err := f.failed(); err != nil {
			return 0, err
		}
	}
	return int(n), nil
}

// mayWait reports whether a write of n bytes may be done later: one that is
// small and whose outcome is known, as far as it can be.
func (f *File) mayWait(n nvmf.Bytes, off int64) bool {
	fs, size := f.fs, f.fs.behind.size()
	return !f.sync && n > 0 && n < size && off >= 0 && uint64(off)+uint64(n) <= fs.g.maxFileSize() &&
		(fs.opts.Cred.UID == 0 || f.in.mode&modePerm == fs.unprivileged(f.in)) &&
		nvmf.Bytes(fs.available())*fs.g.hugeblock > 2*size+4*fs.g.hugeblock
}

// writeBehind does what was put off. It is called in front of every operation
// that is not a write behind it. A failure is remembered for those who have the
// file open.
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
	fs.untold = err
}

// losses are the writes behind that were lost, by inode. Mostly there are none.
// Guarded by FS.mu.
type losses map[Ino]loss

type loss struct {
	count int
	last  error // nil: the file was cut to nothing since
}

func (l *losses) add(ino Ino, err error) {
	if *l == nil {
		*l = make(losses)
	}
	(*l)[ino] = loss{(*l)[ino].count + 1, err}
}

// of returns the error of a file that lacks something: it does not count as
// complete (Attr.Closed) any more.
func (l losses) of(ino Ino) error { return l[ino].last }

// mend notes that nothing is left of what a write was lost of.
func (l losses) mend(ino Ino) {
	if x, ok := l[ino]; ok {
		l[ino] = loss{count: x.count}
	}
}

// failed returns the error of a write behind that was lost since the file was
// opened. It stays: what is written afterwards would follow on a gap.
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
