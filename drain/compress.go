package drain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// A Compression is the format of the files of a set: uncompressed, or the format of the program of that name.
type Compression string

// The supported compressions.
const (
	Plain Compression = ""
	Zstd  Compression = "zstd"
	LZ4   Compression = "lz4"
)

// parseCompression returns the compression of that name; "" is none.
func parseCompression(text string) (Compression, error) {
	switch c := Compression(text); c {
	case Plain, Zstd, LZ4:
		return c, nil
	}
	return Plain, fmt.Errorf("%q is neither %s nor %s", text, Zstd, LZ4)
}

// suffix returns the suffix of file names.
func (c Compression) suffix() string {
	switch c {
	case Zstd:
		return ".zst"
	case LZ4:
		return ".lz4"
	}
	return ""
}

// maxWindow is the largest window that is decompressed: the limit of zstd's own program without options.
const maxWindow = 128 << 20

// writer returns a writer that compresses to w, in the goroutine that writes.
func (c Compression) writer(w io.Writer) (io.WriteCloser, error) {
	if c == Zstd {
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	}
	z := lz4.NewWriter(w)
	return z, z.Apply(lz4.ConcurrencyOption(1), lz4.BlockSizeOption(lz4.Block1Mb))
}

// read decompresses a stream, in the goroutine that reads, until end is called.
func (c Compression) read(r *compressed) (end func(), err error) {
	if c == LZ4 {
		r.plain = lz4.NewReader(packed{r})
		return func() {}, nil
	}
	z, err := zstd.NewReader(packed{r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	r.plain = z
	return z.Close, nil
}

// compress copies all of a file, from its start also after an interruption. It overwrites an existing file: two
// processes that compress the same file write the same bytes.
func (c *copier) compress(ctx context.Context, file int) error {
	f := &c.set.Files[file]
	if err := c.open(file); err != nil {
		return err
	}
	to := &writes{c: c}
	z, err := c.set.Compress.writer(to)
	if err != nil {
		return err
	}
	sums := make([]Sum, f.segments())
	for i := range sums {
		off, n := f.segment(i)
		r := &segmentReader{ctx: ctx, from: c.from, off: off, n: n, limit: c.limit}
		if _, err := io.CopyBuffer(onlyWriter{z}, r, c.buf); err != nil {
			return err
		}
		sums[i] = Sum(r.sum)
		c.o.progress(n, 0)
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := errors.Join(c.to.Truncate(to.n), c.o.at("sync"), c.to.Sync()); err != nil {
		return err
	}
	for i, sum := range sums {
		if err := c.record(entry{File: file, Segment: i, Sum: sum}); err != nil {
			return err
		}
	}
	return nil
}

// onlyWriter hides the ReadFrom of a writer, which has a buffer of its own.
type onlyWriter struct{ io.Writer }

// writes is a writer of sequential data to the file of a copier.
type writes struct {
	c *copier
	n int64
}

func (w *writes) Write(p []byte) (n int, err error) {
	if err := w.c.o.at("write"); err != nil {
		return 0, err
	}
	n, err = w.c.to.WriteAt(p, w.n)
	w.n += int64(n)
	return n, err
}

// expand calls use for all blocks of a compressed file, in order. The error wraps ErrDamaged if the content is not what
// was compressed.
func (s *Set) expand(ctx context.Context, dir directory, f *File, buf []byte, use func(part []byte, off int64) error) (err error) {
	from, err := dir.Open(s.stored(f), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	from.Forget(0, 0) // drop the whole file from the page cache; if that is not supported the cached data is verified
	in := &compressed{ctx: ctx, from: bufio.NewReaderSize(io.NewSectionReader(from, 0, pastEnd), blockSize)}
	end, err := s.Compress.read(in)
	if err != nil {
		return err
	}
	defer end()
	for i := range f.segments() {
		off, n := f.segment(i)
		if err := checkSegment(in, off, n, f.Sums[i], buf, use); err != nil {
			return err
		}
	}
	switch n, err := in.Read(buf[:1]); {
	case n > 0:
		return fmt.Errorf("%w: it is of more than %d bytes", ErrDamaged, f.Size)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// A compressed stream is decompressed as it is read. Errors of its content wrap ErrDamaged.
type compressed struct {
	ctx    context.Context // context of the worker
	from   io.Reader
	plain  io.Reader
	failed error // error of from
}

// Read returns uncompressed data.
func (r *compressed) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.plain.Read(p)
	switch {
	case err == nil || errors.Is(err, io.EOF):
	case r.failed != nil:
		err = r.failed
	default:
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return n, err
}

// A packed stream is the same stream in its stored form.
type packed struct{ *compressed }

func (r packed) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed = err
	}
	return n, err
}
