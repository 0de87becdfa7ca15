package posixshim

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// TestAttentiveReadsOn checks that a process with Revalidate can read a file that its writer keeps open, although the
// file was renamed or unlinked. It must see new data as long as the file has a name.
func TestAttentiveReadsOn(t *testing.T) {
	before, after := bytes.Repeat([]byte("before"), 100_000), bytes.Repeat([]byte("after!"), 100_000)
	for name, tt := range map[string]struct {
		change    func(t *testing.T, w *Process, h Handle)
		checksums bool
		want      []byte // nil: ESTALE
	}{
		"nothing":  {func(*testing.T, *Process, Handle) {}, true, before},
		"written":  {func(t *testing.T, w *Process, h Handle) { write(t, w, h, after) }, true, after},
		"unlinked": {func(t *testing.T, w *Process, _ Handle) { require.NoError(t, w.Unlink(at("f"))) }, true, before},
		"renamed":  {func(t *testing.T, w *Process, _ Handle) { require.NoError(t, w.Rename(at("f"), at("g"), 0)) }, true, before},
		"renamed and written": {func(t *testing.T, w *Process, h Handle) {
			require.NoError(t, w.Rename(at("f"), at("g"), 0))
			write(t, w, h, after)
		}, true, after},
		"replaced": {func(t *testing.T, w *Process, _ Handle) {
			write(t, w, file(t, w, "g", create), after)
			require.NoError(t, w.Rename(at("g"), at("f"), 0))
		}, true, before},
		"unlinked, without checksums": {func(t *testing.T, w *Process, _ Handle) { require.NoError(t, w.Unlink(at("f"))) }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			part := newPartition(t)
			require.NoError(t, microfs.Format(context.Background(), part.dev, part.seg,
				microfs.FormatOptions{Generation: 1, Size: 1, NoDataCRC: !tt.checksums}))
			w, r := part.process(t), part.process(t)
			r.Revalidate = true
			held := file(t, w, "f", create)
			write(t, w, held, before)
			h := file(t, r, "f", syscall.O_RDONLY)
			tt.change(t, w, held)
			for i := range 40 { // more data than the partition has space for, so that blocks are reused
				other := file(t, w, fmt.Sprint("other", i%2), create)
				write(t, w, other, make([]byte, 3<<20))
				require.NoError(t, w.Release(other))
				require.NoError(t, w.Unlink(at(fmt.Sprint("other", i%2))))
				_, _ = r.Attr(at("."), 0) // mounts the partition again
				got := make([]byte, len(before))
				n, err := r.Pread(h, got, 0)
				if tt.want == nil {
					require.Equal(t, syscall.ESTALE, Errno(err))
					continue
				}
				require.NoError(t, err)
				require.True(t, bytes.Equal(tt.want, got[:n]), "%d", n)
			}
			require.NoError(t, r.Release(h))
		})
	}
}

func write(t *testing.T, p *Process, h Handle, data []byte) {
	t.Helper()
	n, err := p.Pwrite(h, data, 0, NoLimit)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
}

// TestAttentiveClosesMounts checks that an older mount is closed when it has no open file, or by Finish.
func TestAttentiveClosesMounts(t *testing.T) {
	part := newPartition(t)
	var open atomic.Int32
	w := part.process(t)
	r := New(func(write bool) (*vfs.Mount, error) {
		m, err := part.open(write)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		closing := m.Close
		m.Close = func() error { open.Add(-1); return closing() }
		return m, nil
	}, t.Logf)
	r.Revalidate = true
	look := func() {
		_, err := r.Attr(at("/"), 0)
		require.NoError(t, err)
	}
	files := map[int]Handle{}
	for i := range 8 {
		name := fmt.Sprint("f", i)
		write(t, w, file(t, w, name, create), []byte(name))
		files[i] = file(t, r, name, syscall.O_RDONLY)
	}
	require.Equal(t, int32(1), open.Load())
	for i := range 6 {
		require.NoError(t, w.Unlink(at(fmt.Sprint("f", i))))
		if i%2 == 1 {
			look()
		}
	}
	require.Equal(t, int32(4), open.Load(), "with two files in each but the newest")
	for i := range 5 {
		require.NoError(t, r.Release(files[i]))
	}
	assert.Equal(t, int32(2), open.Load())
	require.NoError(t, r.Finish())
	assert.Zero(t, open.Load())
}

// TestAttentiveReadsBesideWrites checks that a file whose blocks the writer replaces again and again can be read
// after some attempts.
func TestAttentiveReadsBesideWrites(t *testing.T) {
	part := newPartition(t)
	w := part.process(t)
	held := file(t, w, "f", create)
	write(t, w, held, bytes.Repeat([]byte{1}, 4096))
	// The blocks that a write frees are reused by the next writes.
	st, err := w.Space()
	require.NoError(t, err)
	require.NoError(t, w.Fallocate(file(t, w, "filler", create), 0, 0, int64(st.Free-2)*int64(st.Hugeblock), NoLimit))
	moves := 0
	r := New(func(write bool) (*vfs.Mount, error) {
		m, err := part.open(write)
		for i := 0; i < 100 && moves > 0 && err == nil; i++ {
			_, err = w.Pwrite(held, bytes.Repeat([]byte{byte(moves)}, 4096), 0, NoLimit)
		}
		moves--
		return m, err
	}, t.Logf)
	r.Revalidate = true
	defer func() { assert.NoError(t, r.Finish()) }()
	h := file(t, r, "f", syscall.O_RDONLY)
	write(t, w, held, bytes.Repeat([]byte{2}, 4096))
	moves = 7
	for range 100 { // enough writes to make the reader's mount outdated
		write(t, w, held, bytes.Repeat([]byte{3}, 4096))
	}
	page := make([]byte, 4096)
	n, err := r.Pread(h, page, 0)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(bytes.Repeat([]byte{1}, 4096), page[:n]), "what was written last")
	assert.Negative(t, moves)
}

// TestViewedKeepsThePartition checks that Yield does not give up the partition while a file is mapped from the view.
func TestViewedKeepsThePartition(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	write(t, p, h, make([]byte, minView))
	require.NoError(t, p.Release(h))
	h = file(t, p, "f", syscall.O_RDONLY)
	f, err := p.files.get(h)
	require.NoError(t, err)
	f.mappedFromView.Store(true)
	assert.False(t, p.Yield())
	f.mappedFromView.Store(false)
	assert.True(t, p.Yield())
}

// TestMappedByCopy checks that a mapped file is copied if the view does not have that file, and that Yield then gives
// up the partition.
func TestMappedByCopy(t *testing.T) {
	for name, view := range map[string]View{
		"no view":      {},
		"no file":      {Dir: t.TempDir(), Number: 1},
		"another file": {Dir: "/proc/self", Number: 1}, // which also has a file "status"
	} {
		t.Run(name, func(t *testing.T) {
			p := newPartition(t).process(t)
			p.View = func() View { return view }
			h := file(t, p, "status", create)
			write(t, p, h, bytes.Repeat([]byte{7}, minView))
			require.NoError(t, p.Release(h))
			h = file(t, p, "status", syscall.O_RDONLY)
			memory := make([]byte, 1)
			fd, err := p.Map(h, 0, 0, minView)
			require.NoError(t, err)
			require.Zero(t, fd&MapKept)
			defer syscall.Close(fd)
			_, err = syscall.Pread(fd, memory, minView-1)
			require.NoError(t, err)
			assert.Equal(t, byte(7), memory[0])
			assert.True(t, p.Yield())
		})
	}
}
