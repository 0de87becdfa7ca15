package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"nvmecr/internal/crc64"
)

// ErrDamaged is wrapped by errors about bytes that differ from their checksum.
var ErrDamaged = errors.New("checksum mismatch")

// blockSize is the number of bytes of one read or write call.
const blockSize = 1 << 20

var zeros [blockSize]byte

// each passes all places of a set to several workers, which run concurrently.
func (o *Options) each(ctx context.Context, places []place, worker func(context.Context, <-chan place) error) error {
	queue := make(chan place)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(queue)
		for _, p := range places {
			select {
			case queue <- p:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range min(o.workers(), len(places)) {
		group.Go(func() error {
			if o.Background {
				LowerPriority()
			}
			return worker(ctx, queue)
		})
	}
	return group.Wait()
}

func (s *Set) places(want func(place) bool) (list []place) {
	for i := range s.Files {
		for j := range s.Files[i].segments() {
			if at := (place{i, j}); want(at) {
				list = append(list, at)
			}
		}
	}
	return list
}

// copy copies the segments that are in no journal.
func (p *partial) copy(ctx context.Context, src Source) error {
	limit := p.o.limiter()
	return p.o.each(ctx, p.missing(), func(ctx context.Context, queue <-chan place) error {
		c := &copier{partial: p, src: src, file: -1, buf: make([]byte, blockSize), limit: limit}
		if p.base != nil {
			c.beforeBuf = make([]byte, blockSize)
		}
		var err error
		for at := range queue {
			if p.set.Compress != Plain {
				err = c.compress(ctx, at.file)
			} else {
				err = c.copy(ctx, at)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", p.set.In(&p.set.Files[at.file]), err)
				break
			}
		}
		return errors.Join(err, c.close())
	})
}

// missing returns the places of the share that are in no journal. An empty file has no journal entry; with
// compression every process writes it.
func (p *partial) missing() (list []place) {
	for i, at := range p.set.copied() {
		if (p.o.Share.has(i) || p.set.Files[at.file].Size == 0) && !p.whole(at) {
			list = append(list, at)
		}
	}
	return list
}

// whole reports whether a journal has the place.
func (p *partial) whole(at place) bool {
	if p.set.Compress == Plain {
		return p.done[at]
	}
	return p.has(at.file)
}

// A copier is one worker. It keeps its last file open.
type copier struct {
	*partial
	src  Source
	file int // -1: none
	from Reader
	to   file
	buf  []byte

	before    file // the same file of the previous set; or nil
	beforeBuf []byte
	cloned    int64 // cloned bytes of the segment

	limit *rate.Limiter // shared by the workers; or nil
}

func (c *copier) copy(ctx context.Context, at place) error {
	f := &c.set.Files[at.file]
	if err := c.open(at.file); err != nil {
		return err
	}
	off, n := f.segment(at.segment)
	c.cloned = 0
	sum, err := c.segment(ctx, off, n)
	if err == nil {
		err = errors.Join(c.o.at("sync"), c.to.Sync())
	}
	if err == nil {
		err = c.record(entry{File: at.file, Segment: at.segment, Sum: sum, Shared: c.cloned})
	}
	if err == nil {
		c.o.progress(n, 0)
	}
	return err
}

func (c *copier) open(file int) (err error) {
	if c.file == file {
		return nil
	}
	if err := c.close(); err != nil {
		return err
	}
	f := &c.set.Files[file]
	if c.from, err = c.src.Open(f.Rank, f.Path); err != nil {
		return err
	}
	if c.to, err = c.create(f); err != nil {
		return errors.Join(err, c.from.Close())
	}
	c.before = c.base.open(c.set, f)
	c.file = file
	return nil
}

func (c *copier) close() error {
	if c.file < 0 {
		return nil
	}
	c.file = -1
	if c.before != nil {
		_ = c.before.Close() // only read
	}
	return errors.Join(c.from.Close(), c.to.Close())
}

// segment copies a segment. Holes stay holes.
func (c *copier) segment(ctx context.Context, off, n int64) (Sum, error) {
	sum, end := uint64(0), off+n
	for off < end {
		from, to, err := c.from.Data(off)
		if errors.Is(err, io.EOF) || err == nil && from >= end {
			from, to, err = end, end, nil
		}
		if err != nil {
			return 0, err
		}
		sum = appendZeros(sum, from-off)
		for off = from; off < min(to, end); {
			part := c.buf[:min(int64(len(c.buf)), min(to, end)-off)]
			if err := c.block(ctx, part, off); err != nil {
				return 0, err
			}
			sum = crc64.Update(sum, part)
			off += int64(len(part))
		}
	}
	return Sum(sum), nil
}

func (c *copier) block(ctx context.Context, part []byte, off int64) error {
	if err := await(ctx, c.limit, len(part)); err != nil {
		return err
	}
	if n, err := c.from.ReadAt(part, off); n < len(part) {
		if err == nil || errors.Is(err, io.EOF) {
			err = ErrChanged // the file was truncated
		}
		return err
	}
	return c.store(part, off)
}

// await waits until the rate limit, if any, permits n more bytes.
func await(ctx context.Context, limit *rate.Limiter, n int) error {
	if limit != nil {
		if err := limit.WaitN(ctx, n); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// appendZeros returns the checksum of the data of sum followed by n zeros.
func appendZeros(sum uint64, n int64) uint64 {
	for ; n > 0; n -= blockSize {
		sum = crc64.Update(sum, zeros[:min(n, blockSize)])
	}
	return sum
}

// copied returns the places that are copied and verified as a unit: segments, or whole files if they are compressed.
func (s *Set) copied() []place {
	if s.Compress == Plain {
		return s.places(func(place) bool { return true })
	}
	list := make([]place, len(s.Files))
	for i := range list {
		list[i].file = i
	}
	return list
}

// verify compares places of the files in root with the checksums of a set, and calls done, unless nil, for each.
func verify(ctx context.Context, root directory, s *Set, places []place, o Options, done func(place) error) error {
	limit := o.limiter()
	return o.each(ctx, places, func(ctx context.Context, queue <-chan place) error {
		buf := make([]byte, blockSize)
		for at := range queue {
			f := &s.Files[at.file]
			_, n := f.segment(at.segment)
			var err error
			if s.Compress != Plain {
				n = f.Size
				err = s.expand(ctx, root, f, buf, func(part []byte, _ int64) error { return await(ctx, limit, len(part)) })
			} else {
				err = verifySegment(ctx, root, s, f, at.segment, buf, limit)
			}
			if err == nil && done != nil {
				err = done(at)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.In(f), err)
			}
			o.progress(0, n)
		}
		return nil
	})
}

// verifySizes compares the sizes of files that are not compressed.
func verifySizes(root directory, s *Set) error {
	if s.Compress != Plain {
		return nil
	}
	for i := range s.Files {
		size, err := root.Size(s.In(&s.Files[i]))
		if err == nil && size != s.Files[i].Size {
			err = fmt.Errorf("%s: %w: it is of %d bytes, not %d", s.In(&s.Files[i]), ErrDamaged, size, s.Files[i].Size)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func verifySegment(ctx context.Context, root directory, s *Set, f *File, segment int, buf []byte, limit *rate.Limiter) error {
	from, err := root.Open(s.In(f), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	off, n := f.segment(segment)
	from.Forget(off, n) // if that is not supported the cached data is verified
	sum, begin := uint64(0), off
	for end := off + n; off < end; {
		part := buf[:min(int64(len(buf)), end-off)]
		if err := await(ctx, limit, len(part)); err != nil {
			return err
		}
		if n, err := from.ReadAt(part, off); n < len(part) {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: it ends at byte %d", ErrDamaged, off+int64(n))
			}
			return err
		}
		sum = crc64.Update(sum, part)
		off += int64(len(part))
	}
	if Sum(sum) != f.Sums[segment] {
		return fmt.Errorf("%w, in bytes %d to %d", ErrDamaged, begin, off)
	}
	return nil
}
