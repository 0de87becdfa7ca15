package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/crc64"
)

// Get writes the data of a file of a set to w, which has the size of the file already, and leaves its holes out.
// The error is in ErrDamaged if the bytes differ from their checksums: then w has some of them.
func (l *Level) Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error {
	f := &s.Files[file]
	from, err := l.root.Open(filepath.Join(filepath.Base(s.Dir), s.In(f)))
	if err != nil {
		return err
	}
	defer from.Close()
	buf := make([]byte, blockSize)
	for i := range f.segments() {
		if err := getSegment(ctx, from, w, f, i, buf); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(s.Dir, s.In(f)), err)
		}
		_, n := f.segment(i)
		o.progress(n, 0)
	}
	return nil
}

func getSegment(ctx context.Context, from *os.File, w io.WriterAt, f *File, segment int, buf []byte) error {
	off, n := f.segment(segment)
	sum, end := uint64(0), off+n
	for off < end {
		data, hole, err := nextData(from, off)
		if err != nil {
			return err
		}
		data, hole = min(data, end), min(hole, end)
		sum = ofZeros(sum, data-off)
		for off = data; off < hole; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part := buf[:min(int64(len(buf)), hole-off)]
			if n, err := from.ReadAt(part, off); n < len(part) {
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

// nextData returns the first range from off on that is no hole; behind all of them if there is none.
func nextData(f *os.File, off int64) (from, to int64, err error) {
	from, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if err == nil {
		to, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	}
	const behind = 1<<63 - 1
	switch {
	case errors.Is(err, syscall.ENXIO): // a hole up to the end
		return behind, behind, nil
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP): // a file system that knows no holes
		return off, behind, nil
	}
	return from, to, err
}
