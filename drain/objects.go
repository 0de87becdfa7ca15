package drain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"nvmecr/internal/crc64"
)

// objects is an Archive in a bucket.
type objects struct {
	bucket Bucket
	prefix string // prefix of all object names, with a slash at its end
	url    string // URL of the prefix, without a slash
}

// OpenBucket returns the level of a store in a bucket, under a prefix, which may be empty. url names bucket and
// prefix in messages.
func OpenBucket(b Bucket, url, prefix, store string) Archive {
	return &objects{bucket: b, prefix: path.Join(prefix, store) + "/", url: url + "/" + store}
}

// Close does nothing.
func (l *objects) Close() error { return nil }

// in returns the name of the object of a file, or the prefix of those of a set.
func (l *objects) in(dir, name string) string { return l.prefix + dir + "/" + name }

// objectsDir returns the directory of a set's objects. Different sets have different directories, so that their
// objects never mix.
func objectsDir(s *Set) string {
	sum := uint64(0)
	for i := range s.Files {
		f := &s.Files[i]
		sum = crc64.Update(sum, fmt.Appendf(nil, "%q %d %d\n", s.In(f), f.Size, f.Modified.UnixNano()))
	}
	return fmt.Sprintf("%s~%016x", label(s), sum)
}

// Sets returns the sets that have a manifest.
func (l *objects) Sets() (sets []Set, err error) {
	ctx := context.Background()
	dirs, err := l.bucket.Dirs(ctx, l.prefix)
	if err != nil {
		return nil, err
	}
	var damaged DamagedSets
	for _, dir := range dirs {
		s, e2 := l.manifest(ctx, dir)
		switch {
		case errors.Is(e2, fs.ErrNotExist): // incomplete, or not a set
		case errors.Is(e2, ErrManifest):
			damaged = append(damaged, &DamagedSet{l.url + "/" + dir, e2})
		case e2 != nil:
			return nil, e2
		default:
			sets = append(sets, *s)
		}
	}
	return sets, damaged.err()
}

func (l *objects) manifest(ctx context.Context, dir string) (*Set, error) {
	r, err := l.bucket.Get(ctx, l.in(dir, manifestName), 0, -1)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	s, err := decode(text)
	if err != nil {
		return nil, err
	}
	if s.Drained.IsZero() {
		return nil, fmt.Errorf("%w: it has no checksums", ErrManifest)
	}
	s.Dir = l.url + "/" + dir
	return s, nil
}

// CanShare returns an error: objects share no data.
func (l *objects) CanShare() error {
	return fmt.Errorf("%s is a bucket, which stores each object as a whole", l.url)
}

// Get is [Level.Get].
func (l *objects) Get(ctx context.Context, s *Set, file int, w io.WriterAt, o Options) error {
	f := &s.Files[file]
	buf := make([]byte, blockSize)
	for i := range f.segments() {
		err := l.read(ctx, s, f, i, buf, intoHoles(w))
		if err != nil {
			return fmt.Errorf("%s/%s: %w", s.Dir, s.In(f), err)
		}
		_, n := f.segment(i)
		o.progress(n, 0)
	}
	return nil
}

// intoHoles returns a function that writes blocks to w, except zeros: w has zeros where nothing is written.
func intoHoles(w io.WriterAt) func(part []byte, off int64) error {
	return func(part []byte, off int64) error {
		if bytes.Equal(part, zeros[:len(part)]) {
			return nil
		}
		_, err := w.WriteAt(part, off)
		return err
	}
}

// Verify is [Level.Verify].
func (l *objects) Verify(ctx context.Context, s *Set, o Options) error {
	there, err := l.sizes(ctx, path.Base(s.Dir))
	if err != nil {
		return err
	}
	for i := range s.Files {
		switch size, ok := there[s.In(&s.Files[i])]; {
		case !ok:
			return fmt.Errorf("%s: %w", s.In(&s.Files[i]), fs.ErrNotExist)
		case size != s.Files[i].Size:
			return fmt.Errorf("%s: %w: it is of %d bytes, not %d", s.In(&s.Files[i]), ErrDamaged, size, s.Files[i].Size)
		}
	}
	all := s.places(func(place) bool { return true })
	limit := o.limiter()
	return o.each(ctx, all, func(ctx context.Context, queue <-chan place) error {
		buf := make([]byte, blockSize)
		for at := range queue {
			f := &s.Files[at.file]
			if err := l.read(ctx, s, f, at.segment, buf, func(part []byte, _ int64) error { return await(ctx, limit, len(part)) }); err != nil {
				return fmt.Errorf("%s: %w", s.In(f), err)
			}
			_, n := f.segment(at.segment)
			o.progress(0, n)
		}
		return nil
	})
}

// read calls use for all blocks of a segment, and compares its checksum.
func (l *objects) read(ctx context.Context, s *Set, f *File, segment int, buf []byte, use func(part []byte, off int64) error) error {
	off, n := f.segment(segment)
	r, err := l.bucket.Get(ctx, l.in(path.Base(s.Dir), s.In(f)), off, n)
	if err != nil {
		return err
	}
	defer r.Close()
	return checkSegment(r, off, n, f.Sums[segment], buf, use)
}

// checkSegment calls use for all blocks of a segment, of n bytes from off on, which come from r, and compares its checksum.
func checkSegment(r io.Reader, off, n int64, want Sum, buf []byte, use func(part []byte, off int64) error) error {
	sum, begin := uint64(0), off
	for end := off + n; off < end; {
		part := buf[:min(int64(len(buf)), end-off)]
		if _, err := io.ReadFull(r, part); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("%w: it ends before byte %d", ErrDamaged, off+int64(len(part)))
			}
			return err
		}
		sum = crc64.Update(sum, part)
		if err := use(part, off); err != nil {
			return err
		}
		off += int64(len(part))
	}
	if Sum(sum) != want {
		return fmt.Errorf("%w, in bytes %d to %d", ErrDamaged, begin, off)
	}
	return nil
}

// sizes returns the sizes of the objects of a directory, by their names in it.
func (l *objects) sizes(ctx context.Context, dir string) (map[string]int64, error) {
	list, err := l.bucket.List(ctx, l.in(dir, ""))
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]int64, len(list))
	for _, o := range list {
		sizes[o.Name[len(l.in(dir, "")):]] = o.Size
	}
	return sizes, nil
}

// abandoned is how old a set without a manifest must be before Remove considers it abandoned.
const abandoned = 24 * time.Hour

// Remove removes a set. The set disappears at once, since its manifest is removed first. Objects of other sets that
// were never completed, or partly removed, are removed when they are old.
func (l *objects) Remove(s *Set) error {
	ctx := context.Background()
	dir := path.Base(s.Dir)
	if err := l.bucket.Remove(ctx, l.in(dir, manifestName)); err != nil {
		return err
	}
	if err := l.clear(ctx, dir, 0); err != nil {
		return err
	}
	dirs, err := l.bucket.Dirs(ctx, l.prefix)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if _, err := l.manifest(ctx, dir); errors.Is(err, fs.ErrNotExist) {
			if err := l.clear(ctx, dir, abandoned); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear removes all objects of a directory, if all are older than age.
func (l *objects) clear(ctx context.Context, dir string, age time.Duration) error {
	list, err := l.bucket.List(ctx, l.in(dir, ""))
	if err != nil {
		return err
	}
	var names []string
	for _, o := range list {
		if age > 0 && time.Since(o.Modified) < age {
			return nil
		}
		names = append(names, o.Name)
	}
	return l.bucket.Remove(ctx, names...)
}
