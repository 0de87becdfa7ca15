package tree

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// ReadAt reads data that this process has written, and data that others had published when the layout was requested.
func (f *file) ReadAt(bufs [][]byte, off int64) (int, error) {
	switch {
	case !f.readable:
		return 0, syscall.EBADF
	case off < 0:
		return 0, syscall.EINVAL
	}
	if f.in.copied.Load() && !f.writable {
		if n, err := f.readCopy(bufs, off); err == nil {
			return n, nil
		}
	}
	if n, ok := f.readDirect(bufs, off); ok {
		return n, nil
	}
	for try := 1; ; try++ {
		n, err := f.readOnce(bufs, off)
		switch {
		case err == nil:
			return n, nil
		case try == tries || !transient(err):
			return f.readLost(bufs, off, err)
		}
		time.Sleep(pause)
		f.in.invalidate()
	}
}

// A writer may have changed the partition since it was mounted here. Then the read is repeated with a new mount,
// after a pause.
const (
	tries = 6
	pause = 5 * time.Millisecond
)

// readDirect reads from the direct part of the file if that has all of the bytes. If the shard was closed meanwhile, or another file has
// replaced this one, the read of the shard fails, and readOnce finds out why.
func (f *file) readDirect(bufs [][]byte, off int64) (int, bool) {
	d := f.in.direct.Load()
	if d == nil || off < d.off {
		return 0, false
	}
	want := total(bufs)
	if want > d.end-off || f.closed.Load() {
		return 0, false
	}
	n, err := d.shard.ReadAt(bufs, off)
	return n, err == nil && int64(n) == want
}

// A part of a file becomes direct if it is at least as long as this many reads.
const worthDirect = 8

// makeDirect makes the part of the shard that begins with the piece p direct. The caller holds in.mu.
func (in *inode) makeDirect(p piece, shard *microfs.File) {
	if in.writers > 0 {
		return
	}
	if all := in.piece(p.off, in.size()); (all.end-p.off)/worthDirect >= p.end-p.off {
		in.direct.Store(&direct{all.span, shard})
	}
}

// readOnce reads from the source used last, if that has all of the bytes, as is usual.
func (f *file) readOnce(bufs [][]byte, off int64) (int, error) {
	in := f.in
	in.mu.RLock()
	n := total(bufs)
	end := min(in.size(), off+n)
	if p := in.piece(off, end); p.end == off+n && p.from.kind == wire.Mapped && !f.closed.Load() {
		if shard := in.has(p.from); shard != nil {
			defer in.mu.RUnlock()
			in.makeDirect(p, shard)
			return in.readShard(shard, bufs, p)
		}
	}
	in.mu.RUnlock()
	return f.readParts(bufs, off)
}

// readParts reads with in.mu held for reading if everything needed is open, otherwise for writing.
func (f *file) readParts(bufs [][]byte, off int64) (int, error) {
	in := f.in
	in.mu.RLock()
	end := min(in.size(), off+total(bufs))
	if f.closed.Load() || in.prepared(off, end) {
		defer in.mu.RUnlock()
		if f.closed.Load() {
			return 0, syscall.EBADF
		}
		return in.read(bufs, off, end)
	}
	in.mu.RUnlock()
	if _, err := f.lock(); err != nil {
		return 0, err
	}
	defer in.mu.Unlock()
	end = min(in.size(), off+total(bufs))
	if err := in.prepare(off, end); err != nil {
		return 0, err
	}
	return in.read(bufs, off, end)
}

// A lostError says which bytes are missing from the place that the index names. It unwraps to EIO.
type lostError struct {
	path string
	piece
	own   bool // the place is this process's partition
	cause error
}

func (e *lostError) Error() string {
	where := fmt.Sprintf("the partition of rank %d, and", e.from.place)
	switch {
	case e.own:
		where = "the partition of this rank, and"
	case e.from.kind == wire.Own:
		where = "the partition of the index, and"
	}
	return fmt.Sprintf("bytes %d to %d of %s are in %s cannot be read there: %v", e.off, e.end-1, e.path, where, e.cause)
}

// Unwrap returns EIO, not the error of the partition.
func (e *lostError) Unwrap() error { return syscall.EIO }

func (in *inode) lost(p piece, cause error) error {
	return &lostError{path: in.path, piece: p, own: in.isOwn(p.from), cause: cause}
}

// errShort means that a shard ends before bytes that the index has mapped.
var errShort = errors.New("the file there is too short")

// transient reports whether a newer mount or layout may resolve a read error.
func transient(err error) bool {
	var lost *lostError
	var damage *microfs.DamageError
	if !errors.As(err, &lost) {
		return false
	}
	for _, e := range []error{syscall.ESTALE, syscall.ENOENT, syscall.EAGAIN, errShort} {
		if errors.Is(lost.cause, e) {
			return true
		}
	}
	return errors.As(lost.cause, &damage)
}

// invalidate makes the next read use a new layout and new mounts.
func (in *inode) invalidate() {
	in.lock()
	defer in.mu.Unlock()
	if err := in.refresh(); err != nil {
		in.asked = time.Now() // at least mount the partitions again
	}
}

// piece returns the longest piece from off on that ends at end or before. The caller holds in.mu.
func (in *inode) piece(off, end int64) piece {
	p := in.first(off, end)
	for p.end < end {
		next := in.first(p.end, end)
		if next.from != p.from {
			break
		}
		p.end = next.end
	}
	return p
}

// first returns a piece from off on. Unpublished data of this process takes precedence over the layout.
func (in *inode) first(off, end int64) piece {
	in.writtenMu.Lock()
	s, ok := in.written.from(off)
	in.writtenMu.Unlock()
	switch {
	case ok && s.off <= off:
		return piece{span{off, min(end, s.end)}, origin{wire.Mapped, in.fs.place, in.cut}}
	case ok:
		end = min(end, s.off)
	}
	return in.layout.at(off, end)
}

// fetchLayout requests the layout up to end. The caller holds in.mu alone.
func (in *inode) fetchLayout(end int64) error {
	for in.layout.end < end {
		before, all := in.layout.end, max(end, in.attr.Size)
		answer, err := in.ask(all)
		if err != nil {
			return err
		}
		if in.learn(answer, all); in.layout.end <= before {
			return fmt.Errorf("the index does not say who has byte %d of %s: %w", before, in.path, syscall.EIO)
		}
	}
	return nil
}

// prepared reports whether all shards for [off, end) are open. The caller holds in.mu.
func (in *inode) prepared(off, end int64) bool {
	for off < end {
		p := in.piece(off, end)
		if p.from == unknown || p.from.kind == wire.Mapped && in.has(p.from) == nil {
			return false
		}
		off = p.end
	}
	return true
}

// prepare opens the shards for [off, end). The caller holds in.mu alone.
func (in *inode) prepare(off, end int64) error {
	for at := off; at < end; {
		p := in.piece(at, end)
		if p.from == unknown {
			if err := in.fetchLayout(p.end); err != nil {
				return err
			}
			continue
		}
		at = p.end
	}
	for at := off; at < end; {
		p := in.piece(at, end)
		if p.from.kind == wire.Mapped && in.has(p.from) == nil {
			if err := in.attach(p.from); err != nil {
				return in.lost(p, err)
			}
		}
		at = p.end
	}
	return nil
}

// A cursor cuts buffers into parts.
type cursor struct {
	bufs [][]byte
	part [][]byte
}

var cursors = sync.Pool{New: func() any { return new(cursor) }}

// next returns the buffers of the next n bytes, until it is called again.
func (c *cursor) next(n int64) [][]byte {
	c.part = c.part[:0]
	for n > 0 {
		b := c.bufs[0]
		if int64(len(b)) > n {
			c.part, c.bufs[0] = append(c.part, b[:n]), b[n:]
			break
		}
		c.part, c.bufs, n = append(c.part, b), c.bufs[1:], n-int64(len(b))
	}
	return c.part
}

// release returns the cursor to its pool, without the buffers.
func (c *cursor) release(bufs [][]byte) {
	clear(bufs)
	clear(c.part[:cap(c.part)])
	c.bufs = bufs[:0]
	cursors.Put(c)
}

// read reads [off, end), for which all is prepared, into bufs. The caller holds in.mu.
func (in *inode) read(bufs [][]byte, off, end int64) (done int, err error) {
	if off >= end {
		return 0, nil
	}
	p := in.piece(off, end)
	if p.end == off+total(bufs) {
		return in.readPiece(bufs, p)
	}
	c := cursors.Get().(*cursor)
	all := append(c.bufs[:0], bufs...)
	c.bufs = all
	defer func() { c.release(all) }()
	for off < end && err == nil {
		p := in.piece(off, end)
		var n int
		n, err = in.readPiece(c.next(p.end-off), p)
		done, off = done+n, p.end
	}
	return done, err
}

// readPiece reads a piece into bufs, which are as long.
func (in *inode) readPiece(bufs [][]byte, p piece) (int, error) {
	switch p.from.kind {
	case wire.Hole:
		for _, b := range bufs {
			clear(b)
		}
		return int(p.end - p.off), nil
	case wire.Own:
		return in.readIndex(wire.OpRead, bufs, p)
	}
	return in.readShard(in.has(p.from), bufs, p)
}

// readShard reads a piece from the shard that has it.
func (in *inode) readShard(shard *microfs.File, bufs [][]byte, p piece) (int, error) {
	n, err := shard.ReadAt(bufs, p.off)
	if err == nil && int64(n) < p.end-p.off {
		err = errShort
	}
	if err != nil {
		return 0, in.lost(p, err)
	}
	return n, nil
}

// readIndex reads bytes from the index's partition (wire.OpRead), or through the index from a copy (wire.OpReadCopy).
func (in *inode) readIndex(op wire.Op, bufs [][]byte, p piece) (done int, err error) {
	for _, b := range bufs {
		for len(b) > 0 {
			part := b[:min(len(b), wire.MaxData)]
			answer := wire.Data{Bytes: part}
			request := wire.Read{Ino: in.ino, Off: p.off + int64(done), Len: uint32(len(part))}
			if err = in.fs.client.Call(op, &request, &answer); err == nil && len(answer.Bytes) < len(part) {
				err = syscall.EAGAIN // the file was truncated
			}
			if err != nil {
				return done, in.lost(p, err)
			}
			done, b = done+len(part), b[len(part):]
		}
	}
	return done, nil
}
