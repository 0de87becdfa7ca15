package drain

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A memory is a Source of files in memory. Blocks of zeros are holes.
type memory struct {
	mu    sync.Mutex
	files map[string]*content // by File.In
	read  int64               // bytes
}

type content struct {
	data     []byte
	modified time.Time
	broken   error // returned by each read
}

func (m *memory) Open(rank int, path string) (Reader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.files[(&Set{}).In(&File{Rank: rank, Path: path})]
	if c == nil {
		return nil, syscall.ENOENT
	}
	return &opened{m, c}, nil
}

func (m *memory) Refresh() error { return nil }

type opened struct {
	m *memory
	*content
}

func (f *opened) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.broken != nil {
		return 0, f.broken
	}
	n := copy(p, f.data[min(off, int64(len(f.data))):])
	f.m.read += int64(n)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *opened) Data(off int64) (from, to int64, err error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	hole := func(off int64) bool {
		b := f.data[off:min(off+blockSize, int64(len(f.data)))]
		return bytes.Equal(b, zeros[:len(b)])
	}
	size := int64(len(f.data))
	for off = off / blockSize * blockSize; off < size && hole(off); off += blockSize {
	}
	if off >= size {
		return 0, 0, io.EOF
	}
	for to = off; to < size && !hole(to); to += blockSize {
	}
	return off, min(to, size), nil
}

func (f *opened) Stat() (int64, time.Time, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.data)), f.modified, nil
}

func (f *opened) Close() error { return nil }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456789, time.UTC)

// checkpointOf returns a set of files of rank -1 with the given content by path, and the source of the files.
func checkpointOf(name string, data map[string][]byte) (*Set, *memory) {
	s := &Set{Store: "melt", Pattern: "melt.{step}.*", Name: name, Ranks: 2, Ended: noon}
	m := &memory{files: map[string]*content{}}
	for path, d := range data {
		f := File{Rank: -1, Path: path, Size: int64(len(d)), Mode: 0o640, Modified: noon}
		s.Files = append(s.Files, f)
		m.files[s.In(&f)] = &content{data: d, modified: noon}
	}
	slices.SortFunc(s.Files, func(a, b File) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
	return s, m
}
