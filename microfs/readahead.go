package microfs

import (
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// Reading ahead. A small read goes through a buffer of the open file, which is
// filled by one verified read: with the unit it lies in, or, where it goes on from the
// read before, with what follows, too. A fill is one operation under the lock; nothing is in
// flight when a call has returned. A command left in flight would hold memory of the
// target and of the connection for as long as the application computes.
//
// The version of the inode tells whether a buffer is what the file holds: every
// change of the content advances it, by whatever open file.

const (
	// aheadFirst is what the first fill of a sequential reader takes; each one after it
	// takes twice as much, up to aheadSize.
	aheadFirst = 256 * nvmf.KiB
	aheadSize  = nvmf.MiB
	// aheadLimit is the largest read that is served from a buffer: a larger one would
	// spare few round trips for its copy.
	aheadLimit = 128 * nvmf.KiB
	// aheadBuffers is how many buffers of aheadSize a file system has. Who comes when
	// all are taken reads unit by unit.
	aheadBuffers = 8
	// aheadIdle is for how long a buffer is kept that nobody reads from.
	aheadIdle = 2 * time.Second
)

// readAhead is what an open file has read and not been asked for yet.
type readAhead struct {
	version uint64 // of the inode
	start   int64  // in the file
	data    []byte // verified; empty: nothing
	unit    []byte // memory of a unit
	buffer  []byte // memory of aheadSize, on loan; nil: none
	used    bool   // the buffer, since aheadPool looked

	next   int64      // the end of the last read
	window nvmf.Bytes // of the next fill
	advice int        // FADV_NORMAL, FADV_SEQUENTIAL or FADV_RANDOM
	want   [2]int64   // bytes that FADV_WILLNEED was about
}

// read is ReadAt by way of what was read ahead.
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
	onward := pos > off || a.onward(off)
	a.next = end
	if pos < end && nvmf.Bytes(end-pos) <= aheadLimit && f.fill(pos, end, onward) {
		pos = a.copyTo(cur, in, pos, end)
	}
	if pos < end {
		at, err := fs.readFrom(in, nvmf.Bytes(pos), nvmf.Bytes(end))
		return int(int64(at) - off), err
	}
	return int(end - off), nil
}

// copyTo hands out what is there of [pos, end), and returns where that ends.
func (a *readAhead) copyTo(cur *cursor, in *inode, pos, end int64) int64 {
	if a.version != in.version || pos < a.start {
		return pos
	}
	for have := a.start + int64(len(a.data)); pos < min(end, have); {
		p := cur.next(nvmf.Bytes(min(end, have) - pos))
		pos += int64(copy(p, a.data[pos-a.start:]))
		a.used = true
	}
	return pos
}

// onward reports whether what follows a read at off is likely to be read next.
func (a *readAhead) onward(off int64) bool {
	switch {
	case a.advice == unix.FADV_RANDOM:
		return false
	case a.advice == unix.FADV_SEQUENTIAL, off >= a.want[0] && off < a.want[1]:
		a.window = aheadSize
		return true
	}
	return off == a.next
}

// fill reads the units of [pos, end), and what follows if that is wanted. It declines
// what is not worth it, and what cannot be read: then only what was asked for is.
func (f *File) fill(pos, end int64, onward bool) bool {
	fs, in, a := f.fs, f.in, &f.ahead
	unit := int64(fs.g.unit)
	start := pos - pos%unit
	size := min(unit, in.size-start)
	a.data = nil
	switch {
	case onward && (in.size-start <= unit || f.lend()):
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
	a.data, a.start, a.version = buf, start, in.version
	return true
}

// memory returns that of a buffer, or of a unit.
func (a *readAhead) memory(unit int64) []byte {
	if a.buffer != nil {
		return a.buffer
	}
	if a.unit == nil {
		a.unit = make([]byte, unit)
	}
	return a.unit
}

// Advise tells what will be read, as posix_fadvise(2): advice is of unix.FADV_*, n of 0
// is all that follows. Nothing is read by it.
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
		// Not where it is about what has been read already.
		if off <= max(a.start, a.next) && end >= a.start+int64(len(a.data)) {
			f.unlend()
		}
	}
	return nil
}
