package microfs

import (
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// Read-ahead. A small read is served from a buffer of the open file. One verified
// read fills the buffer: with the unit that the read lies in, and, for a sequential
// reader, with the data after it. A fill is one synchronous operation under the lock.
// A command that stayed in flight after the call would hold memory of the target and
// of the connection for as long as the application computes.
//
// A buffer is valid while the version of the inode stays the same: every change of the content
// advances the version. A small write by the same open file updates the buffer, which is then valid
// for the new version: a program that keeps a table in a file (NWChem, GDBM) reads a block again
// after each write to it.

const (
	// aheadFirst is the size of the first fill of a sequential reader. Each fill after it is twice
	// as large, up to aheadSize.
	aheadFirst = 256 * nvmf.KiB
	aheadSize  = nvmf.MiB
	// aheadLimit is the largest read that is served from a buffer. For a larger one the copy costs
	// more than the round trips it saves.
	aheadLimit = 128 * nvmf.KiB
	// aheadBuffers is the number of buffers of aheadSize that a file system has. While all of them
	// are taken, other files are read unit by unit.
	aheadBuffers = 8
	// aheadIdle is how long an unused buffer is kept.
	aheadIdle = 2 * time.Second
)

// readAhead is the read-ahead state of an open file.
type readAhead struct {
	version uint64 // of the inode
	start   int64  // in the file
	data    []byte // verified; empty: none
	unit    []byte // memory of a unit
	buffer  []byte // of aheadSize, from aheadPool; nil: none
	used    bool   // the buffer was used since aheadPool looked

	next   int64      // the end of the last read
	window nvmf.Bytes // of the next fill
	advice int        // FADV_NORMAL, FADV_SEQUENTIAL or FADV_RANDOM
	want   [2]int64   // range of the last FADV_WILLNEED
}

// read is ReadAt through the read-ahead buffer.
func (f *File) read(bufs [][]byte, off int64) (int, error) {
	fs, in, a := f.fs, f.in, &f.ahead
	n := int64(total(bufs))
	if off < 0 || off >= in.size || n == 0 {
		return fs.readAt(in, bufs, off)
	}
	end := off + min(n, in.size-off)
	cur := &fs.io.cur
	*cur = cursor{bufs: bufs}
	pos := a.copyTo(cur, in, off, end)
	sequential := pos > off || a.sequential(off)
	a.next = end
	if pos < end && nvmf.Bytes(end-pos) <= aheadLimit && f.fill(pos, end, sequential) {
		pos = a.copyTo(cur, in, pos, end)
	}
	if pos < end {
		at, err := fs.readFrom(in, nvmf.Bytes(pos), nvmf.Bytes(end))
		return int(int64(at) - off), err
	}
	return int(end - off), nil
}

// copyTo copies the buffered part of [pos, end) to the caller, and returns the end of this part.
func (a *readAhead) copyTo(cur *cursor, in *inode, pos, end int64) int64 {
	if !a.valid(in) || pos < a.start {
		return pos
	}
	for have := a.start + int64(len(a.data)); pos < min(end, have); {
		p := cur.next(nvmf.Bytes(min(end, have) - pos))
		pos += int64(copy(p, a.data[pos-a.start:]))
		a.used = true
	}
	return pos
}

// writeAt is FS.writeAt for an open file. If the buffer was valid before the write, it is valid
// after it. The write takes the old bytes of a hugeblock from the buffer.
func (f *File) writeAt(bufs [][]byte, off int64) (int, error) {
	a, in, n := &f.ahead, f.in, int64(total(bufs))
	if n > int64(aheadLimit) || !a.valid(in) && !f.fillOld(off, off+n) {
		return f.fs.writeAt(in, bufs, off)
	}
	f.fs.io.old.known = a
	done, err := f.fs.writeAt(in, bufs, off)
	f.fs.io.old.known = nil
	if err == nil && a.update(bufs, off) {
		a.version = in.open.version
	}
	return done, err
}

// fillOld fills the buffer with the hugeblock that a write of [off, end) has to read.
func (f *File) fillOld(off, end int64) bool {
	g, a := f.fs.g, &f.ahead
	if off < 0 || off >= f.in.size || a.buffer != nil || g.unit != g.hugeblock {
		return false
	}
	h := Hugeblock(nvmf.Bytes(off) / g.hugeblock)
	x := f.in.extents.lookup(h)
	return x != nil && nvmf.Bytes(off)%g.hugeblock < x.coveredIn(h, g) && f.fill(off, end, false)
}

// valid reports whether there is data and the file has not changed since.
func (a *readAhead) valid(in *inode) bool {
	return len(a.data) > 0 && a.version == in.open.version
}

// copyOld copies bytes of the file at off to buf: all of them, or none.
func (a *readAhead) copyOld(buf []byte, off int64) bool {
	if a == nil || off < a.start || off+int64(len(buf)) > a.start+int64(len(a.data)) {
		return false
	}
	copy(buf, a.data[off-a.start:])
	return true
}

// update copies bytes written at off into the buffer. Bytes that continue the data of the buffer
// are appended as far as there is memory. update returns false if the data of the buffer begins in
// the middle of the written bytes.
func (a *readAhead) update(bufs [][]byte, off int64) bool {
	if off < a.start {
		return off+int64(total(bufs)) <= a.start
	}
	at := off - a.start
	if at > int64(len(a.data)) {
		return true
	}
	buf := a.data[:cap(a.data)]
	for _, p := range bufs {
		at += int64(copy(buf[at:], p))
	}
	a.data = buf[:max(at, int64(len(a.data)))]
	return true
}

// sequential reports whether the data after a read at off is likely to be read next.
func (a *readAhead) sequential(off int64) bool {
	switch {
	case a.advice == unix.FADV_RANDOM:
		return false
	case a.advice == unix.FADV_SEQUENTIAL, off >= a.want[0] && off < a.want[1]:
		a.window = aheadSize
		return true
	}
	return off == a.next
}

// fill reads the units of [pos, end) into the buffer and, for a sequential reader, data after them.
// It returns false if buffering is not worthwhile, or if the data cannot be read: then the caller
// reads exactly [pos, end).
func (f *File) fill(pos, end int64, sequential bool) bool {
	fs, in, a := f.fs, f.in, &f.ahead
	unit := int64(fs.g.unit)
	start := pos - pos%unit
	size := min(unit, in.size-start)
	a.data = nil
	switch {
	case sequential && (in.size-start <= unit || f.takeBuffer()):
		a.window = max(a.window, aheadFirst)
		size = min(int64(a.window), in.size-start)
		a.window = min(2*a.window, aheadSize)
	case end > start+unit || end-pos > unit/2:
		return false
	default:
		a.window = 0
	}
	buf := a.memory(unit)[:size]
	cur := fs.io.cur
	fs.ahead.one[0] = buf
	_, err := fs.readAt(in, fs.ahead.one[:], start)
	fs.ahead.one[0], fs.io.cur = nil, cur
	if err != nil {
		a.window = 0
		return false
	}
	a.data, a.start, a.version = buf, start, in.open.version
	return true
}

// memory returns the memory for a fill: a buffer of the pool if the file has one, else space for
// one unit.
func (a *readAhead) memory(unit int64) []byte {
	if a.buffer != nil {
		return a.buffer
	}
	if a.unit == nil {
		a.unit = make([]byte, unit)
	}
	return a.unit
}

// Advise is posix_fadvise(2): advice is one of unix.FADV_*, an n of 0 stands for the
// rest of the file. It reads nothing.
func (f *File) Advise(off, n int64, advice int) error {
	if err := f.useAfter((*FS).enterBehind); err != nil {
		return err
	}
	defer f.fs.leave()
	a, end := &f.ahead, off+n
	if n <= 0 || end < off {
		end = 1<<63 - 1
	}
	switch advice {
	case unix.FADV_NORMAL, unix.FADV_SEQUENTIAL, unix.FADV_RANDOM:
		a.advice, a.want = advice, [2]int64{}
	case unix.FADV_WILLNEED:
		a.want = [2]int64{off, end}
	case unix.FADV_DONTNEED:
		// A program that drops the cached pages that it has read keeps the data read ahead.
		if off <= max(a.start, a.next) && end >= a.start+int64(len(a.data)) {
			f.dropBuffer()
		}
	}
	return nil
}
