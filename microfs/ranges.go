package microfs

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// In a file system that was formatted with FormatOptions.Ranges, a file may have bytes in other
// partitions. The ranges of the file say which bytes. They lie over the extents of the file: inside
// a range, the file's own data does not count. Ranges count in bytes, extents in hugeblocks. A
// hugeblock is freed as soon as ranges cover all its written bytes.
//
// Every operation that removes a range puts zeros, own bytes or another range in its place, never
// the data that the file itself had there before. A write removes the ranges of its bytes with the
// same log group. A truncation and a punch drop the file's own data, too.

// A Range is a part of a file whose bytes are in another partition. The caller chooses Partition
// and Cut; ranges that differ in one of them are never joined.
type Range = oplog.Range

// SpanKind says where the bytes of a Span are stored.
type SpanKind uint8

// The kinds of spans.
const (
	SpanHole   SpanKind = iota // nowhere: they are zeros
	SpanOwn                    // in the file itself: ReadAt reads them
	SpanPlaced                 // in the partition Range.Partition
)

// A Span is a part of a file that is stored in one way.
type Span struct {
	Range
	Kind SpanKind
}

// RemoteRangeError is the error of a read of bytes that are in another partition. It unwraps to
// EIO.
type RemoteRangeError struct {
	Ino   Ino
	Range Range
}

// Error names the inode, the bytes and the partition.
func (e *RemoteRangeError) Error() string {
	return fmt.Sprintf("bytes %d to %d of inode %d are not in this partition but in that of place %d",
		e.Range.Off, e.Range.End()-1, e.Ino, e.Range.Partition)
}

// Unwrap returns EIO.
func (e *RemoteRangeError) Unwrap() error { return syscall.EIO }

// MapRanges records that the bytes of ranges are in other partitions. The ranges apply in their order.
// The file's own data there is freed. The file is at least size bytes long afterwards, and its
// modification time is mtime. No range may end behind the new size. If the ranges fit one log record
// (oplog.MaxRanges), a crash leaves all of them or none; else a crash may leave the ranges of the first
// records. The change time of the file becomes mtime, too, unless it is later already.
//
// Errors: EBADF, EINVAL, EFBIG, ErrNoNames, EIO, and EOPNOTSUPP on a file system that was formatted
// without ranges. After ErrNoNames nothing has changed.
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

// mapRanges logs as many records as necessary. All records but the last make the file only as long
// as their own ranges.
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

// within reports whether all ranges are valid and end before size.
func within(ranges []Range, size int64) bool {
	for i := range ranges {
		if r := &ranges[i]; r.Off < 0 || r.Len <= 0 || r.Off > size-r.Len {
			return false
		}
	}
	return true
}

// end returns the largest end of some ranges.
func end(ranges []Range) (end int64) {
	for i := range ranges {
		end = max(end, ranges[i].End())
	}
	return end
}

// Ranges appends to dst the spans of the file from off to off+n, or to its end. The spans are in order
// and without gaps. Ranges appends at most limit spans. Errors: EBADF, EINVAL.
func (f *File) Ranges(off, n int64, limit int, dst []Span) ([]Span, error) {
	if err := f.use(); err != nil {
		return dst, err
	}
	defer f.fs.leave()
	if off < 0 || n < 0 {
		return dst, syscall.EINVAL
	}
	size := f.in.size
	for end := off + min(n, max(0, size-off)); off < end && limit > 0; limit-- {
		s := f.in.spanAt(f.fs.g, off, end)
		dst = append(dst, s)
		off = s.End()
	}
	return dst, nil
}

// spanAt returns the span that begins at off. It ends where another span begins, and at end at the
// latest.
func (in *inode) spanAt(g *geometry, off, end int64) Span {
	s := Span{Range: Range{Off: off}}
	r := in.ranges.at(in.ranges.find(off))
	switch {
	case r != nil && r.Off <= off:
		s.Kind, s.Partition, s.Cut = SpanPlaced, r.Partition, r.Cut
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

// remoteRange returns an error if a range overlaps [off, end).
func (in *inode) remoteRange(off, end int64) error {
	if r := in.ranges.at(in.ranges.find(off)); off >= 0 && r != nil && r.Off < min(end, in.size) {
		return &RemoteRangeError{Ino: in.ino, Range: *r}
	}
	return nil
}

// EachRange calls visit for every file that has ranges, with a copy of them, in order of inode
// numbers. These include open files without a name. Other calls may change the file system
// meanwhile, also calls by visit. The error is that of visit.
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

// rangesOf returns the ranges of a file, none if the file does not exist any more.
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

// applyMapRange adds the ranges of a MapRange record.
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

// addRanges returns the ranges of the inode, and makes an empty map if there is none.
func (in *inode) addRanges() *rangeMap {
	if in.ranges == nil {
		in.ranges = &rangeMap{}
	}
	return in.ranges
}

// freeUnder unmaps the hugeblocks under r whose written bytes ranges cover.
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

// under reports whether ranges cover all written bytes of hugeblock h; if none was written, the
// whole hugeblock.
func (in *inode) under(g *geometry, h Hugeblock) bool {
	n := g.hugeblock
	if x := in.extents.lookup(h); x != nil && !x.reserved() {
		n = x.coveredIn(h, g)
	}
	start := int64(nvmf.Bytes(h) * g.hugeblock)
	return in.ranges.cover(start, start+int64(n))
}

// applyDropRange removes the range of a DropRange record.
func (in *inode) applyDropRange(g *geometry, r *oplog.Record) error {
	if limit := g.maxFileSize(); !g.ranges || r.Offset > limit || r.Length > limit-r.Offset {
		return fmt.Errorf("inode %d: ranges of %d bytes from %d on cannot be dropped: %w", in.ino, r.Length, r.Offset, oplog.ErrRecord)
	}
	in.ranges.drop(int64(r.Offset), int64(r.Offset+r.Length))
	in.mtime, in.ctime, in.closed = r.Time, r.Time, false
	return nil
}

// dropRange returns the record that removes [off, end) from ranges.
func (in *inode) dropRange(off, end int64) oplog.Record {
	return oplog.Record{Type: oplog.DropRange, Ino: uint64(in.ino), Time: now(), Offset: uint64(off), Length: uint64(end - off)}
}

// placedFrom returns the first run of hugeblocks in [h, behind) that ranges cover as a whole; it is
// empty if there is none.
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
