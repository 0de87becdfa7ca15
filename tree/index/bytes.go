package index

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// attr returns the attributes of a file.
func (f *file) attr() (wire.Attr, error) {
	a, err := f.read.Stat()
	return wire.Attr{Attr: a}, err
}

// attrAnswer returns the answer of most calls on a file.
func (f *file) attrAnswer(err error) (wire.Body, error) {
	if err != nil {
		return nil, err
	}
	a, err := f.attr()
	return &wire.AttrAnswer{Attr: a}, err
}

// mapOf returns the segments of a range of a file, at most limit; with n < 0 the range has no end.
func (c *client) mapOf(f *file, off, n int64, limit int) (*wire.File, error) {
	a, err := f.attr()
	if err != nil {
		return nil, err
	}
	answer := &c.file
	*answer = wire.File{Attr: a, Segments: answer.Segments[:0]}
	if n < 0 {
		n = max(0, a.Size-off)
	}
	if f.read.IsDir() {
		return answer, nil
	}
	spans, err := f.spans(off, n, limit+1)
	if answer.More = len(spans) > limit; answer.More {
		spans = spans[:limit]
	}
	for i := range spans {
		answer.Segments = append(answer.Segments, segmentOf(&spans[i]))
	}
	return answer, err
}

func segmentOf(s *microfs.Span) wire.Segment {
	kind := wire.Hole
	switch s.Kind {
	case microfs.SpanOwn:
		kind = wire.Own
	case microfs.SpanPlaced:
		kind = wire.Mapped
	}
	return wire.Segment{Off: s.Off, Len: s.Len, Kind: kind, Partition: s.Partition, Cut: s.Cut}
}

// spans returns the first spans of a range of the file, at most limit. They are valid until the next call.
func (f *file) spans(off, n int64, limit int) (_ []microfs.Span, err error) {
	f.x.spans, err = f.read.Ranges(off, n, limit, f.x.spans[:0])
	return f.x.spans, err
}

// spanBatch is the number of spans read at once.
const spanBatch = 1024

// placed calls visit for each mapped range in a part of the file, until visit returns false. visit must not call the
// file.
func (f *file) placed(off, n int64, visit func(k shardKey, bytes int64) bool) error {
	for n > 0 {
		spans, err := f.spans(off, n, spanBatch)
		if err != nil || len(spans) == 0 {
			return err
		}
		for i := range spans {
			if s := &spans[i]; s.Kind == microfs.SpanPlaced && !visit(shardKey{s.Partition, s.Cut}, s.Len) {
				return nil
			}
		}
		next := spans[len(spans)-1].End()
		off, n = next, n-(next-off)
	}
	return nil
}

// publish maps data that a client has written.
func (c *client) publish(s *session, p *wire.Publication) error {
	f := s.file
	a, err := f.attr()
	switch {
	case err != nil:
		return err
	case c.partition == wire.NoPartition || p.Cut > a.Cut:
		return syscall.EINVAL
	case p.Birth != a.Birth:
		return syscall.ESTALE
	}
	c.ranges = c.ranges[:0]
	for _, r := range p.Ranges {
		if r.Off < 0 || r.Len <= 0 || r.Off > math.MaxInt64-r.Len {
			return syscall.EINVAL
		}
		if err := f.noteUnmapped(r.Off, r.Len); err != nil {
			return err
		}
		c.ranges = append(c.ranges, microfs.Range{Off: r.Off, Len: r.Len, Partition: c.partition, Cut: p.Cut})
		if r.Off+r.Len >= s.reserved {
			s.reserved = 0
		}
	}
	f.shards.add(shardKey{c.partition, p.Cut})
	if err := f.write.MapRanges(c.ranges, p.Size, p.Mtime); err != nil {
		return err
	}
	f.updateReserved()
	c.x.needsSync = c.x.needsSync || p.Durable
	return nil
}

// reserve reserves space at the end of a file for a client.
func (s *session) reserve(n, limit int64) (*wire.Space, error) {
	off, err := s.file.end()
	if err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, syscall.EINVAL
	}
	n = min(n, max(0, limit-off), math.MaxInt64-off)
	if n > 0 {
		s.next, s.reserved = off, off+n
		s.file.reserved = s.reserved
	}
	return &wire.Space{Off: off, Len: n}, nil
}

// errUnknownEnd means that a living process may have appended data which this index could not look for.
var errUnknownEnd = fmt.Errorf("the end of the file is unknown: a partition could not be read when the index was started again; "+
	"let all processes that have had the file open since before close it: %w", syscall.EIO)

// end returns the offset of the next append.
func (f *file) end() (int64, error) {
	if f.x.searchFailed && f.reopened {
		return 0, errUnknownEnd
	}
	a, err := f.attr()
	return max(a.Size, f.reserved), err
}

// updateReserved recomputes the end of reserved space. Unwritten space at the end can be reserved again.
func (f *file) updateReserved() {
	if f.reserved == 0 {
		return
	}
	f.reserved = 0
	for s := range f.sessions {
		f.reserved = max(f.reserved, s.reserved)
	}
}

// appendAt returns the offset at which a client appends n bytes, and how many fit there: in space that it has
// reserved, otherwise at the end.
func (s *session) appendAt(n int64) (off, fits int64, err error) {
	if s.reserved > 0 {
		return s.next, min(n, s.reserved-s.next), nil
	}
	off, err = s.file.end()
	return off, n, err
}

// writeOwn writes to the index's own partition.
func (c *client) writeOwn(s *session, r *wire.Write) (_ wire.Body, err error) {
	f, off, n := s.file, r.Off, int64(len(r.Data))
	if off == wire.AtEnd {
		if off, n, err = s.appendAt(n); err != nil {
			return nil, err
		}
	}
	if off < 0 || off > math.MaxInt64-n {
		return nil, syscall.EINVAL
	}
	bufs, err := microfs.Below([][]byte{r.Data[:n]}, off, r.Limit)
	if err != nil {
		return nil, err
	}
	if err := f.noteUnmapped(off, int64(len(bufs[0]))); err != nil {
		return nil, err
	}
	done, err := f.write.WriteAt(bufs, off)
	s.use(off+int64(done), err != nil)
	if err != nil && done == 0 {
		return nil, err
	}
	a, err := f.attr()
	return &wire.Written{Off: off, N: uint32(done), Attr: a}, err
}

// use removes written space before end from the client's reservation. The reservation ends when all is used, and
// after an error.
func (s *session) use(end int64, failed bool) {
	s.next = max(s.next, end)
	if failed || s.next >= s.reserved {
		s.next, s.reserved = 0, 0
		s.file.updateReserved()
	}
}

// readOwn reads from the index's own partition.
func (c *client) readOwn(f *file, off int64, n uint32) (wire.Body, error) {
	if n > wire.MaxData {
		return nil, syscall.EINVAL
	}
	if cap(c.data) < int(n) {
		c.data = make([]byte, n)
	}
	got, err := f.read.ReadAt([][]byte{c.data[:n]}, off)
	var elsewhere *microfs.RemoteRangeError
	if errors.As(err, &elsewhere) {
		return nil, syscall.EAGAIN
	}
	return &wire.Data{Bytes: c.data[:got]}, err
}

// truncate sets the size of a file by calling set. The client's reservation ends.
func (c *client) truncate(f *file, size int64, set func() error) (wire.Body, error) {
	if err := f.noteUnmapped(max(0, size), math.MaxInt64-max(0, size)); err != nil {
		return nil, err
	}
	if err := set(); err != nil {
		return nil, err
	}
	if s := c.files[f.ino]; s != nil {
		s.reserved = 0
		f.updateReserved()
	}
	return f.attrAnswer(nil)
}

// allocate implements fallocate(2).
func (f *file) allocate(r *wire.Allocate) error {
	if r.Off < 0 || r.Len <= 0 || r.Mode > wire.ZeroKeepSize {
		return syscall.EINVAL
	}
	if r.Off > math.MaxInt64-r.Len {
		return syscall.EFBIG
	}
	if r.Mode != wire.Extend {
		if err := f.noteUnmapped(r.Off, r.Len); err != nil {
			return err
		}
		if err := f.write.Punch(r.Off, r.Len); err != nil {
			return err
		}
	}
	a, err := f.attr()
	if err != nil || r.Mode == wire.Punch || r.Mode == wire.ZeroKeepSize || a.Size >= r.Off+r.Len {
		return err
	}
	return f.write.Truncate(r.Off + r.Len)
}
