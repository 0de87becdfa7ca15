package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"syscall"
)

// A joined file is read from its shards. One goroutine at a time uses it.
type joined struct {
	*coder
	set    *Set
	file   *File
	shards []shard // by number
}

// A shard is a shard of one file.
type shard struct {
	part part
	file file  // nil if it cannot be read
	err  error // why file is nil
}

// joined calls use with a file that reads from the existing shards.
func (s *Set) joined(file int, use func(*joined) error) error {
	j, err := s.join(file)
	if err == nil {
		err = errors.Join(use(j), j.close())
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path.Join(s.Dir, s.In(&s.Files[file])), err)
	}
	return err
}

// join opens the existing shards of a file.
func (s *Set) join(index int) (*joined, error) {
	c, err := newCoder(s.Code)
	if err != nil {
		return nil, err
	}
	j := &joined{coder: c, set: s, file: &s.Files[index], shards: make([]shard, s.Code.shards())}
	c.size = j.file.Size
	for i := range j.shards {
		j.shards[i].err = fmt.Errorf("shard %d: %w", i, errNoShard)
	}
	for _, at := range s.at[index] {
		p := s.present[at]
		f, err := p.level.root.Open(path.Join(filepath.Base(p.set.Dir), s.In(j.file)), syscall.O_RDONLY, 0)
		j.shards[p.set.Shard] = shard{p, f, err}
	}
	return j, nil
}

func (j *joined) close() (err error) {
	for _, s := range j.shards {
		if s.file != nil {
			err = errors.Join(err, s.file.Close())
		}
	}
	return err
}

// read reads a part of a shard; it is a shardReader.
func (j *joined) read(shard int, b []byte, off int64) error {
	s := &j.shards[shard]
	if s.err != nil {
		return s.err
	}
	if _, err := s.file.ReadAt(b, off); err != nil {
		return fmt.Errorf("shard %d: %w", shard, err)
	}
	return nil
}

// ReadAt reads the file at off. It computes the data of a shard that cannot be read from the others.
func (j *joined) ReadAt(b []byte, off int64) error {
	if off < 0 || off+int64(len(b)) > j.size {
		return io.ErrUnexpectedEOF
	}
	for len(b) > 0 {
		begin := off / (j.Unit * int64(j.Data)) * j.Unit
		start, width := j.row(j.size, begin)
		unit, within := (off-start)/width, (off-start)%width
		n := min(int64(len(b)), width-within)
		rows, err := j.decode(int(unit), int(unit)+1, begin+within, n, j.read)
		if err != nil {
			return err
		}
		copy(b, rows[0])
		b, off = b[n:], off+n
	}
	return nil
}

// get writes the file to w. Segments with a wrong checksum are computed again, without the shards whose own checksums
// are wrong.
func (j *joined) get(ctx context.Context, w io.WriterAt, o Options) error {
	for i, s := range j.shards {
		if s.file != nil {
			j.shards[i].file = newReadAhead(s.file, j.shardSize(j.size))
		}
	}
	for i := 0; int64(i)*SegmentSize < j.shardSize(j.size); i++ {
		n, err := j.segment(ctx, i, intoHoles(w))
		if errors.Is(err, ErrDamaged) {
			n, err = j.segmentWithout(ctx, i, w, err)
		}
		if err != nil {
			return err
		}
		o.progress(n, 0)
	}
	return nil
}

// segment calls use for the part of the file in one segment of the shards, and returns its length.
func (j *joined) segment(ctx context.Context, i int, use func(b []byte, off int64) error) (int64, error) {
	sums := summer{}
	off := int64(i) * SegmentSize
	for end := min(off+SegmentSize, j.shardSize(j.size)); off < end; off += j.Unit {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		start, width := j.row(j.size, off)
		rows, err := j.decode(0, j.Data, off, width, j.read)
		if err != nil {
			return 0, err
		}
		for _, b := range rows {
			if start >= j.size {
				break // zeros
			}
			b = b[:min(j.size-start, width)]
			sums.add(b)
			if err := use(b, start); err != nil {
				return 0, err
			}
			start += width
		}
	}
	first, n := i*j.Data, len(sums.end())
	if !slices.Equal(sums.sums, j.file.Sums[first:first+n]) {
		return 0, fmt.Errorf("%w, in bytes %d to %d", ErrDamaged, int64(first)*SegmentSize, int64(first)*SegmentSize+sums.all)
	}
	return sums.all, nil
}

// segmentWithout is segment without the shards that are damaged there. It also writes zeros, since wrong bytes may
// have been written to w.
func (j *joined) segmentWithout(ctx context.Context, i int, w io.WriterAt, damage error) (int64, error) {
	whole := slices.Clone(j.shards)
	defer func() { j.shards = whole }()
	found := false
	buf := make([]byte, blockSize)
	for n := range j.shards {
		s := &j.shards[n]
		if s.err != nil {
			continue
		}
		if err := j.verifyShard(ctx, s.part, i, buf); err != nil {
			s.err, found = err, true
		}
	}
	if !found {
		return 0, damage
	}
	return j.segment(ctx, i, func(b []byte, off int64) error { _, err := w.WriteAt(b, off); return err })
}

func (j *joined) verifyShard(ctx context.Context, p part, segment int, buf []byte) error {
	at := p.fileOf(j.set, j.file)
	dir, err := p.level.root.Sub(filepath.Base(p.set.Dir))
	if err != nil {
		return err
	}
	return errors.Join(verifySegment(ctx, dir, p.set, &p.set.Files[at], segment, buf, nil), dir.Close())
}
