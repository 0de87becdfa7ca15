package drain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"nvmecr/internal/crc64"
)

// An upload is a set that is being written to a bucket.
type upload struct {
	*objects
	dir      string
	set      *Set // with checksums of zero
	src      Source
	o        *Options
	existing map[string]int64 // sizes of objects of an earlier Put, by name in the directory
	files    []uploading      // by file of the set
}

// uploading is an object of several parts.
type uploading struct {
	mu        sync.Mutex // held while the upload begins
	to        Upload
	remaining atomic.Int32 // parts to be written
}

// Put is [Level.Put]. Objects that an earlier Put has completed are not sent again, but are verified like all others.
func (l *objects) Put(ctx context.Context, s *Set, src Source, o Options) (*Set, error) {
	if err := s.check(false); err != nil {
		return nil, err
	}
	if s.Compress != Plain {
		return nil, errors.New("files of a bucket cannot be compressed: leave --compress out, or use a directory as second level")
	}
	if o.Share.Of > 1 {
		return nil, errors.New("one process copies to a bucket: leave --together out, or use a directory as second level")
	}
	if have, err := find(l, s); have != nil || err != nil {
		return have, err
	}
	u := &upload{objects: l, dir: objectsDir(s), set: s.withoutSums(), src: src, o: &o, files: make([]uploading, len(s.Files))}
	for i := range s.Files {
		n := s.Files[i].segments()
		if n > maxParts {
			return nil, fmt.Errorf("%s has %d bytes, and an object has at most %d parts of %d bytes: use a directory as second level", s.In(&s.Files[i]), s.Files[i].Size, maxParts, SegmentSize)
		}
		u.files[i].remaining.Store(int32(n))
	}
	u.set.Dir = l.url + "/" + u.dir
	err := u.send(ctx)
	if err == nil {
		err = u.finish(ctx)
	}
	if errors.Is(err, ErrChanged) || errors.Is(err, ErrDamaged) {
		err = errors.Join(err, l.clear(context.WithoutCancel(ctx), u.dir, 0))
	}
	if err != nil {
		return nil, err
	}
	return u.set, nil
}

// send writes all objects except the manifest.
func (u *upload) send(ctx context.Context) (err error) {
	if u.existing, err = u.objects.sizes(ctx, u.dir); err != nil {
		return err
	}
	for i := range u.set.Files {
		if f := &u.set.Files[i]; f.Size == 0 {
			if err := u.bucket.Put(ctx, u.in(u.dir, u.set.In(f)), bytes.NewReader(nil), 0); err != nil {
				return err
			}
		}
	}
	limit := u.o.limiter()
	err = u.o.each(ctx, u.set.places(func(place) bool { return true }), func(ctx context.Context, queue <-chan place) error {
		w := &sender{upload: u, file: -1, limit: limit}
		var err error
		for at := range queue {
			if err = w.send(ctx, at); err != nil {
				err = fmt.Errorf("%s: %w", u.set.In(&u.set.Files[at.file]), err)
				break
			}
		}
		return errors.Join(err, w.close())
	})
	if err != nil {
		for i := range u.files {
			if to := u.files[i].to; to != nil && u.files[i].remaining.Load() > 0 {
				to.Abort()
			}
		}
	}
	return err
}

// finish completes the set by writing the manifest, after all other objects are written.
func (u *upload) finish(ctx context.Context) error {
	if err := u.src.Refresh(); err != nil {
		return err
	}
	for i := range u.set.Files {
		if err := unchanged(u.src, u.set, &u.set.Files[i]); err != nil {
			return err
		}
	}
	if err := u.Verify(ctx, u.set, *u.o); err != nil {
		return err
	}
	u.set.Drained = time.Now().UTC()
	text, err := encode(u.set)
	if err != nil {
		return err
	}
	return u.bucket.Put(ctx, u.in(u.dir, manifestName), bytes.NewReader(text), int64(len(text)))
}

// A sender is one worker. It keeps its last file open.
type sender struct {
	*upload
	file  int // -1: none
	from  Reader
	limit *rate.Limiter // shared by the workers; or nil
}

func (w *sender) send(ctx context.Context, at place) (err error) {
	f := &w.set.Files[at.file]
	if w.file != at.file {
		if err := w.close(); err != nil {
			return err
		}
		if w.from, err = w.src.Open(f.Rank, f.Path); err != nil {
			return err
		}
		w.file = at.file
	}
	off, n := f.segment(at.segment)
	r := &segmentReader{ctx: ctx, from: w.from, off: off, n: n, limit: w.limit}
	name := w.set.In(f)
	switch size, there := w.existing[name]; {
	case there && size == f.Size:
		_, err = io.Copy(io.Discard, r) // read the rest, for the checksum
	case f.segments() == 1:
		err = w.bucket.Put(ctx, w.in(w.dir, name), r, n)
	default:
		err = w.part(ctx, at, r, n)
	}
	if err == nil {
		w.set.Files[at.file].Sums[at.segment] = Sum(r.sum)
		w.o.progress(n, 0)
	}
	return err
}

// part writes a part. The worker that writes the last part completes the object.
func (w *sender) part(ctx context.Context, at place, r io.ReadSeeker, n int64) (err error) {
	file, name := &w.files[at.file], w.in(w.dir, w.set.In(&w.set.Files[at.file]))
	file.mu.Lock()
	if file.to == nil {
		file.to, err = w.bucket.Begin(ctx, name)
	}
	file.mu.Unlock()
	if err != nil {
		return err
	}
	if err := file.to.Part(ctx, at.segment, r, n); err != nil {
		return err
	}
	if file.remaining.Add(-1) > 0 {
		return nil
	}
	return file.to.Complete(ctx)
}

func (w *sender) close() error {
	if w.file < 0 {
		return nil
	}
	w.file = -1
	return w.from.Close()
}

// A segmentReader reads a segment of the store, and computes its checksum on the way.
type segmentReader struct {
	ctx    context.Context // context of the worker
	from   Reader
	off, n int64
	limit  *rate.Limiter

	done int64
	sum  uint64
}

func (r *segmentReader) Read(p []byte) (int, error) {
	if r.done == r.n {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), blockSize, r.n-r.done)]
	if err := await(r.ctx, r.limit, len(p)); err != nil {
		return 0, err
	}
	if n, err := r.from.ReadAt(p, r.off+r.done); n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = ErrChanged // the file was truncated
		}
		return 0, err
	}
	r.sum = crc64.Update(r.sum, p)
	r.done += int64(len(p))
	return len(p), nil
}

// Seek returns to the start, to send the segment again.
func (r *segmentReader) Seek(off int64, whence int) (int64, error) {
	if off != 0 || whence != io.SeekStart {
		return 0, errors.New("a segment is read from its start only")
	}
	r.done, r.sum = 0, 0
	return 0, nil
}
