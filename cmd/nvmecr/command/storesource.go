package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"nvmecr/drain"
	"nvmecr/internal/parttable"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// errUnreadable is wrapped by errors about files of the store that cannot be read, for instance because of a damaged sector.
var errUnreadable = errors.New("the store cannot be read there")

// A storeSource reads the files of checkpoints from the store, for drain.Level.Put.
type storeSource struct {
	reader *reader
	ctx    context.Context // of the command; Open of drain.Source has none
	// copy reads a range of a file from its copies, for bytes that cannot be read from the store. It is nil if there are no copies.
	copy func(rank int, path string, b []byte, off int64) error

	mu     sync.Mutex // for mounts
	mounts map[int]*vfs.Mount
}

func newStoreSource(ctx context.Context, r *reader) *storeSource {
	return &storeSource{reader: r, ctx: ctx, mounts: map[int]*vfs.Mount{}}
}

// files returns the file system with the files of a rank, as in drain.File.
func (s *storeSource) files(rank int) (vfs.FS, error) {
	switch {
	case s.reader.tree:
		rank = jobTree
	case rank < 0:
		rank = parttable.Singleton
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mounts[rank]; m != nil {
		return m.FS, nil
	}
	m, err := s.reader.mount(s.ctx, rank)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, syscall.ENOENT // never written
	}
	s.mounts[rank] = m
	return m.FS, nil
}

func (s *storeSource) stat(rank int, path string) (microfs.Attr, error) {
	files, err := s.files(rank)
	if err != nil {
		return microfs.Attr{}, err
	}
	return files.Stat(microfs.RootIno, path, false)
}

// readCopies makes the source read bytes from the listed copies of a checkpoint if they cannot be read from the store. Areas without
// checksums are not used, since they may have other bytes by now.
func (s *storeSource) readCopies(copies *copyAreas, set *drain.Set) {
	if s.copy = nil; copies == nil || set == nil || !copies.checked() {
		return
	}
	s.copy = func(rank int, path string, b []byte, off int64) error {
		in := set.In(&drain.File{Rank: rank, Path: path})
		i := slices.IndexFunc(set.Files, func(f drain.File) bool { return set.In(&f) == in })
		if i < 0 {
			return syscall.ENOENT
		}
		return copies.ReadAt(set, i, b, off)
	}
}

// Open opens a file.
func (s *storeSource) Open(rank int, path string) (drain.Reader, error) {
	files, err := s.files(rank)
	if err != nil {
		return nil, err
	}
	f, err := files.Open(microfs.RootIno, path, syscall.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	r := storeReader{File: f}
	if copied := s.copy; copied != nil {
		r.copy = func(b []byte, off int64) error { return copied(rank, path, b, off) }
	}
	return r, nil
}

// Refresh makes later calls of Open see what has been written since.
func (s *storeSource) Refresh() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rank, m := range s.mounts {
		err = errors.Join(err, m.Close())
		delete(s.mounts, rank)
	}
	return err
}

// Close ends the use of the store.
func (s *storeSource) Close() error { return s.Refresh() }

// A storeReader makes a vfs.File a drain.Reader.
type storeReader struct {
	vfs.File
	copy func(b []byte, off int64) error // may be nil
}

// ReadAt fills p, or returns io.EOF.
func (r storeReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := drain.ReadAt(r.File, p, off)
	if !errors.Is(err, syscall.EIO) {
		return n, err
	}
	if r.copy != nil && r.copy(p, off) == nil {
		return len(p), nil
	}
	return n, fmt.Errorf("%w: %w", errUnreadable, err)
}

// Data returns the next range that is not a hole.
func (r storeReader) Data(off int64) (from, to int64, err error) {
	from, err = r.SeekData(off)
	if err == nil {
		to, err = r.SeekHole(from)
	}
	if errors.Is(err, syscall.ENXIO) {
		err = io.EOF
	}
	return from, to, err
}

// Stat returns the size and the time of modification.
func (r storeReader) Stat() (int64, time.Time, error) {
	a, err := r.File.Stat()
	return a.Size, a.Mtime, err
}
