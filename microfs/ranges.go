package microfs

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// A file of a file system that was formatted with FormatOptions.Ranges may have bytes in
// other partitions. Its ranges say which bytes, and lie over the file's own extents: at a
// byte of a range what the file itself has does not count. They go by bytes, extents by
// hugeblocks; a hugeblock is freed as soon as ranges have all that was written of it.
//
// Every operation that takes a range away leaves zeros, own bytes or another range in its
// place, and never what the file itself had there before: a write takes the ranges of the
// bytes it writes with the same log group, a truncation and a punch drop the own bytes, too.

// A Range is a part of a file whose bytes another partition has. Place and Cut are the
// caller's; ranges that differ in one of them are never joined.
type Range = oplog.Range

// SpanKind says who has the bytes of a Span.
type SpanKind uint8

// The kinds of spans.
const (
	SpanHole   SpanKind = iota // nobody: they are zeros
	SpanOwn                    // the file itself: ReadAt reads them
	SpanPlaced                 // the partition that Range.Place says
)

// A Span is a part of a file, and who has its bytes.
type Span struct {
	Range
	Kind SpanKind
}

// RemoteRangeError is the error of a read that meets a range. It unwraps to EIO.
type RemoteRangeError struct {
	Ino   Ino
	Range Range
}

// Error names file, range and place.
func (e *RemoteRangeError) Error() string {
	return fmt.Sprintf("bytes %d to %d of inode %d are not in this partition but in that of place %d",
		e.Range.Off, e.Range.End()-1, e.Ino, e.Range.Place)
}

// Unwrap returns EIO.
func (e *RemoteRangeError) Unwrap() error { return syscall.EIO }

// MapRanges says of ranges of the file, in turn, that other partitions have the bytes. What
// the file has there itself is freed. The file is at least size bytes long then, of which
// no range is behind, and was changed at mtime. A crash leaves all of this or none if the ranges
// fit one log record (oplog.MostRanges); else it may leave the first ones, of some records.
// The attributes changed when the bytes did, unless something changed them later.
//
// EBADF, EINVAL, EFBIG, ErrNoNames (then nothing has changed), EIO; EOPNOTSUPP on a file system that
// was formatted without ranges.
func (f *File) MapRanges(ranges []Range, size int64, mtime time.Time) error {
	if err := f.change((*FS).enter); err != nil {
		return err
	}
	defer f.fs.leave()
	fs, in := f.fs, f.in
	switch {
	case !f.writable:
		return syscall.EBADF
	case !fs.g.ranges:
		return syscall.EOPNOTSUPP
	case !within(ranges, max(size, in.size)):
		return syscall.EINVAL
	case size > 0 && uint64(size) > fs.g.maxFileSize():
		return syscall.EFBIG
	}
	if err := fs.checkStateSpace(2 * rangeSize * nvmf.Bytes(len(ranges))); err != nil {
		return fmt.Errorf("%d ranges: %w", len(ranges), err)
	}
	if err := fs.dropPrivileges(in); err != nil {
		return err
	}
	return fs.mapRanges(in, ranges, max(size, in.size), mtime.UnixNano())
}

// mapRanges logs as many records as it takes. All but the last make the file no longer
// than their own ranges do.
func (fs *FS) mapRanges(in *inode, ranges []Range, size, mtime int64) error {
	for {
		part := ranges[:min(len(ranges), oplog.MaxRanges)]
		ranges = ranges[len(part):]
		r := oplog.Record{Type: oplog.MapRange, Ino: uint64(in.ino), Time: min(max(mtime, in.ctime), now()), Ranges: part, Mtime: mtime}
		if r.Size = uint64(size); len(ranges) > 0 {
			r.Size = uint64(end(part))
		}
		fs.rec = r
		if err := fs.record(); err != nil {
			return err
		}
		in.written = true
		if len(ranges) == 0 {
			return nil
		}
	}
}

// within reports whether ranges have bytes, all of them before size.
func within(ranges []Range, size int64) bool {
	for i := range ranges {
		if r := &ranges[i]; r.Off < 0 || r.Len <= 0 || r.Off > size-r.Len {
			return false
		}
	}
	return true
}

// end returns where the last of some ranges ends.
func end(ranges []Range) (end int64) {
	for i := range ranges {
		end = max(end, ranges[i].End())
	}
	return end
}

// Ranges appends to dst what the file has from off to off+n, or to its end: spans in order,
// without gaps. It ends after most spans. EBADF, EINVAL.
func (f *File) Ranges(off, n int64, most int, dst []Span) ([]Span, error) {
	if err := f.use(); err != nil {
		return dst, err
	}
	defer f.fs.leave()
	if off < 0 || n < 0 {
		return dst, syscall.EINVAL
	}
	size := f.in.size
	for end := off + min(n, max(0, size-off)); off < end && most > 0; most-- {
		s := f.in.spanAt(f.fs.g, off, end)
		dst = append(dst, s)
		off = s.End()
	}
	return dst, nil
}

// spanAt returns the span that begins at off. It ends where something else begins, at end
// at the latest.
func (in *inode) spanAt(g *geometry, off, end int64) Span {
	s := Span{Range: Range{Off: off}}
	r := in.ranges.at(in.ranges.find(off))
	switch {
	case r != nil && r.Off <= off:
		s.Kind, s.Place, s.Cut = SpanPlaced, r.Place, r.Cut
		end = min(end, r.End())
	default:
		if r != nil {
			end = min(end, r.Off)
		}
		x, start := in.writtenFrom(g, nvmf.Bytes(off))
		switch {
		case x == nil:
		case int64(start) > off:
			end = min(end, int64(start))
		default:
			s.Kind = SpanOwn
			end = min(end, int64(nvmf.Bytes(x.file)*g.hugeblock+x.covered))
		}
	}
	s.Len = end - off
	return s
}

// remoteRange returns an error if ranges have bytes of [off, end).
func (in *inode) remoteRange(off, end int64) error {
	if r := in.ranges.at(in.ranges.find(off)); off >= 0 && r != nil && r.Off < min(end, in.size) {
		return &RemoteRangeError{Ino: in.ino, Range: *r}
	}
	return nil
}

// EachRange calls visit for every file that has ranges, with a copy of them, in order of inode
// numbers. Files without a name that are still open are among them. Other calls may
// change the file system meanwhile, and visit may make some. The error is visit's.
func (fs *FS) EachRange(visit func(file Attr, ranges []Range) error) error {
	if err := fs.enter(); err != nil {
		return err
	}
	var inos []Ino
	for in := range fs.tree.inodes.all() {
		if in.ranges.len() > 0 {
			inos = append(inos, in.ino)
		}
	}
	fs.leave()
	for _, ino := range inos {
		file, ranges, err := fs.rangesOf(ino)
		if err == nil && len(ranges) > 0 {
			err = visit(file, ranges)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rangesOf returns the ranges of a file, none if there is no such file any more.
func (fs *FS) rangesOf(ino Ino) (file Attr, ranges []Range, err error) {
	if err := fs.enter(); err != nil {
		return file, nil, err
	}
	defer fs.leave()
	in := fs.tree.inodes.get(ino)
	if in == nil {
		return file, nil, nil
	}
	return in.attr(fs.g), slices.AppendSeq(make([]Range, 0, in.ranges.len()), in.ranges.all()), nil
}

// applyMapRange maps what a MapRange record says.
func (in *inode) applyMapRange(g *geometry, r *oplog.Record, free func(run)) error {
	size := max(in.size, int64(min(r.Size, g.maxFileSize())))
	if !g.ranges || r.Size > g.maxFileSize() || !within(r.Ranges, size) {
		return fmt.Errorf("inode %d: %d ranges in %d bytes cannot be mapped: %w", in.ino, len(r.Ranges), r.Size, oplog.ErrRecord)
	}
	for _, x := range r.Ranges {
		in.addRanges().set(x)
		in.freeUnder(g, &x, free)
	}
	in.size = size
	in.mtime, in.ctime, in.closed = r.Mtime, r.Time, false
	return nil
}

// addRanges returns the ranges of the inode, to add to them.
func (in *inode) addRanges() *rangeMap {
	if in.ranges == nil {
		in.ranges = &rangeMap{}
	}
	return in.ranges
}

// freeUnder unmaps the hugeblocks under r of which ranges have all that was written.
func (in *inode) freeUnder(g *geometry, r *Range, free func(run)) {
	first, behind := g.touched(r.Off, r.End())
	if !in.under(g, first) {
		first++
	}
	if behind > first && !in.under(g, behind-1) {
		behind--
	}
	if behind > first {
		in.unmap(g, in.extents.find(first), first, behind-first, free)
	}
}

// under reports whether ranges have all that was written of hugeblock h; where nothing was
// written, all of it.
func (in *inode) under(g *geometry, h Hugeblock) bool {
	n := g.hugeblock
	if x := in.extents.lookup(h); x != nil && !x.reserved() {
		n = x.coveredIn(h, g)
	}
	start := int64(nvmf.Bytes(h) * g.hugeblock)
	return in.ranges.cover(start, start+int64(n))
}

// applyDropRange drops what a DropRange record says.
func (in *inode) applyDropRange(g *geometry, r *oplog.Record) error {
	if limit := g.maxFileSize(); !g.ranges || r.Offset > limit || r.Length > limit-r.Offset {
		return fmt.Errorf("inode %d: ranges of %d bytes from %d on cannot be dropped: %w", in.ino, r.Length, r.Offset, oplog.ErrRecord)
	}
	in.ranges.drop(int64(r.Offset), int64(r.Offset+r.Length))
	in.mtime, in.ctime, in.closed = r.Time, r.Time, false
	return nil
}

// dropRange returns the record that takes the bytes [off, end) from ranges.
func (in *inode) dropRange(off, end int64) oplog.Record {
	return oplog.Record{Type: oplog.DropRange, Ino: uint64(in.ino), Time: now(), Offset: uint64(off), Length: uint64(end - off)}
}

// placedFrom returns the first hugeblocks from h on that ranges have as a whole, none if
// there are none before behind.
func (in *inode) placedFrom(g *geometry, h, behind Hugeblock) run {
	m, start := in.ranges, int64(nvmf.Bytes(h)*g.hugeblock)
	for p := m.find(start); m.at(p) != nil; {
		from := max(start, m.at(p).Off)
		to := from
		for ; m.at(p) != nil && m.at(p).Off <= to; p = m.next(p) {
			to = m.at(p).End()
		}
		first, after := Hugeblock(nvmf.Bytes(from).AlignUp(g.hugeblock)/g.hugeblock), Hugeblock(nvmf.Bytes(to)/g.hugeblock)
		switch {
		case first >= behind:
			return run{behind, 0}
		case after > first:
			return run{first, min(after, behind) - first}
		}
	}
	return run{behind, 0}
}
