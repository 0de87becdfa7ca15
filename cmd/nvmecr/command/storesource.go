package command

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"nvmecr/drain"
	"nvmecr/internal/parttable"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A storeSource reads the files of checkpoints from the store, for drain.Level.Put.
type storeSource struct {
	reader *reader
	ctx    context.Context // of the command

	mu     sync.Mutex // for mounts
	mounts map[int]*vfs.Mount
}

func newStoreSource(ctx context.Context, r *reader) *storeSource {
	return &storeSource{reader: r, ctx: ctx, mounts: map[int]*vfs.Mount{}}
}

// files returns the file system that has the files of a rank of a drain.File.
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
		return nil, syscall.ENOENT // nothing was ever written there
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
	return storeReader{f}, nil
}

// Refresh has later calls of Open see what has been written by now.
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

// A storeReader is a drain.Reader.
type storeReader struct{ vfs.File }

// ReadAt fills p, or ends with io.EOF.
func (r storeReader) ReadAt(p []byte, off int64) (int, error) { return drain.ReadAt(r.File, p, off) }

// Data returns the next range that is no hole.
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

// Stat returns size and time of modification.
func (r storeReader) Stat() (int64, time.Time, error) {
	a, err := r.File.Stat()
	return a.Size, a.Mtime, err
}
