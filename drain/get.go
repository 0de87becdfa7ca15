package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"nvmecr/internal/crc64"
)

// Get writes the data of a file of a set to w, except for holes. w has the size of the file already. If the bytes
// differ from their checksums the error wraps ErrDamaged, and w may have some of them.
func (l *Level) Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error {
	f := &s.Files[file]
	if s.Compress != Plain {
		return l.getCompressed(ctx, s, f, w, o)
	}
	stored, err := l.root.Open(filepath.Join(filepath.Base(s.Dir), s.In(f)), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	from := newReadAhead(stored, f.Size)
	defer from.Close()
	for i := range f.segments() {
		if err := getSegment(ctx, from, w, f, i); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(s.Dir, s.In(f)), err)
		}
		_, n := f.segment(i)
		o.progress(n, 0)
	}
	return nil
}

// getCompressed is Get for a compressed file.
func (l *Level) getCompressed(ctx context.Context, s *Set, f *File, w io.WriterAt, o Options) error {
	dir, err := l.root.Sub(filepath.Base(s.Dir))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.expand(ctx, dir, f, make([]byte, blockSize), intoHoles(w)); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(s.Dir, s.stored(f)), err)
	}
	o.progress(f.Size, 0)
	return nil
}

func getSegment(ctx context.Context, from *readAhead, w io.WriterAt, f *File, segment int) error {
	off, n := f.segment(segment)
	sum, end := uint64(0), off+n
	for off < end {
		data, hole, err := from.Data(off)
		if err != nil {
			return err
		}
		data, hole = min(data, end), min(hole, end)
		sum = appendZeros(sum, data-off)
		for off = data; off < hole; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part, err := from.block(off, hole)
			if err != nil {
				return errors.Join(err, ErrDamaged)
			}
			sum = crc64.Update(sum, part)
			if _, err := w.WriteAt(part, off); err != nil {
				return err
			}
			off += int64(len(part))
		}
	}
	if Sum(sum) != f.Sums[segment] {
		return fmt.Errorf("%w, in bytes %d to %d", ErrDamaged, end-n, end)
	}
	return nil
}
