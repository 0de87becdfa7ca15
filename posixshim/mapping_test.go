package posixshim

import (
	"bytes"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapped maps a file as the shim does.
func mapped(t testing.TB, p *Process, h Handle, n int64) []byte {
	t.Helper()
	fd, err := p.Map(h, MapShared|MapWrite, 0, n)
	require.NoError(t, err)
	memory, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
	return memory
}

// TestMappingWithoutSpace checks that msync fails if there is no space for the changes, and writes them when there is
// space again.
func TestMappingWithoutSpace(t *testing.T) {
	p := newPartition(t).process(t)
	filler, h := file(t, p, "filler", create), file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, 4<<20, NoLimit))
	memory := mapped(t, p, h, 4<<20)
	st, err := p.Space()
	require.NoError(t, err)
	require.NoError(t, p.Fallocate(filler, 0, 0, int64(st.Free)*int64(st.Hugeblock), NoLimit))
	for i := range memory {
		memory[i] = byte(i>>12) + 1
	}
	require.Equal(t, syscall.ENOSPC, Errno(p.Msync(h, 0, 4<<20)))
	require.NoError(t, p.Ftruncate(filler, 0, NoLimit))
	require.NoError(t, p.Msync(h, 0, 4<<20))
	got := make([]byte, 4<<20)
	n, err := p.Pread(h, got, 0)
	require.NoError(t, err)
	assert.Equal(t, len(got), n)
	assert.True(t, bytes.Equal(memory, got))
	require.NoError(t, p.Unmap(h))
	assert.Equal(t, syscall.EBADF, p.Msync(Handle(99), 0, 1))
}

// TestMappingOfHoles checks that a mapping of a sparse file needs memory and time only for its data. LMDB maps a file
// of a terabyte.
func TestMappingOfHoles(t *testing.T) {
	const size = 1 << 40
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, size, NoLimit))
	_, err := p.Pwrite(h, []byte("there"), 5<<20, NoLimit)
	require.NoError(t, err)
	memory := mapped(t, p, h, size)
	assert.Equal(t, "there", string(memory[5<<20:][:5]))
	copy(memory[9<<30:], "new")
	clear(memory[5<<20:][:5])
	require.NoError(t, p.Msync(h, 0, size))
	got := make([]byte, 5)
	for at, want := range map[int64]string{9 << 30: "new\x00\x00", 5 << 20: "\x00\x00\x00\x00\x00", size - 5: "\x00\x00\x00\x00\x00"} {
		_, err := p.Pread(h, got, at)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	f, err := p.files.get(h)
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(p.mapped(f).fd, &st))
	assert.Less(t, st.Blocks*512, int64(4*mapChunk))
	require.NoError(t, p.Unmap(h))
}

// TestMappingBesideWrites checks that no data is lost if one thread writes through a descriptor while another one
// changes memory and calls msync, on different pages of one file.
func TestMappingBesideWrites(t *testing.T) {
	const pages, rounds = 64, 40
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, pages*page, NoLimit))
	memory := mapped(t, p, h, pages*page)
	fill := func(to []byte, round int) {
		for i := range to {
			to[i] = byte(round + 1)
		}
	}
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, page)
		for round := range rounds {
			fill(buf, round)
			for i := 0; i < pages; i += 2 {
				_, err := p.Pwrite(h, buf, int64(i*page), NoLimit)
				assert.NoError(t, err)
			}
		}
	})
	done.Go(func() {
		for round := range rounds {
			for i := 1; i < pages; i += 2 {
				fill(memory[i*page:(i+1)*page], round)
			}
			assert.NoError(t, p.Msync(h, 0, pages*page))
		}
	})
	done.Wait()
	want, got := make([]byte, pages*page), make([]byte, pages*page)
	fill(want, rounds-1)
	_, err := p.Pread(h, got, 0)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got), "the file")
	assert.True(t, bytes.Equal(want, memory), "the memory")
	require.NoError(t, p.Unmap(h))
	assert.Zero(t, p.maps.count.Load())
}

// TestMappingOutlivesDescriptor checks that a mapped file stays open after its descriptor was closed, and that
// changes of its memory are written at the end of the process.
func TestMappingOutlivesDescriptor(t *testing.T) {
	part := newPartition(t)
	p := part.process(t)
	h := file(t, p, "f", create)
	require.NoError(t, p.Ftruncate(h, 100, NoLimit))
	memory := mapped(t, p, h, 100)
	require.NoError(t, p.Release(h))
	copy(memory, "written to memory")
	require.NoError(t, p.Truncate(at("f"), 50, NoLimit))
	require.NoError(t, p.Finish())

	again := part.process(t)
	h = file(t, again, "f", syscall.O_RDONLY)
	got := make([]byte, 100)
	n, err := again.Pread(h, got, 0)
	require.NoError(t, err)
	assert.Equal(t, 50, n)
	assert.Equal(t, "written to memory", string(got[:17]))
}

// TestFallocateModes checks which modes of fallocate are supported.
func TestFallocateModes(t *testing.T) {
	p := newPartition(t).process(t)
	h, ro := file(t, p, "f", create), file(t, p, "f", syscall.O_RDONLY)
	for _, tc := range []struct {
		mode int
		want error
	}{
		{0, nil},
		{unix.FALLOC_FL_KEEP_SIZE, nil},
		{unix.FALLOC_FL_ZERO_RANGE, nil},
		{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, nil},
		{unix.FALLOC_FL_PUNCH_HOLE, syscall.EOPNOTSUPP},
		{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, syscall.EOPNOTSUPP},
		{unix.FALLOC_FL_COLLAPSE_RANGE, syscall.EOPNOTSUPP},
		{unix.FALLOC_FL_INSERT_RANGE, syscall.EOPNOTSUPP},
		{unix.FALLOC_FL_UNSHARE_RANGE, syscall.EOPNOTSUPP},
	} {
		assert.Equal(t, tc.want, p.Fallocate(h, tc.mode, 0, 4096, NoLimit), "%#x", tc.mode)
		assert.Equal(t, syscall.EBADF, p.Fallocate(ro, tc.mode, 0, 4096, NoLimit))
	}
	assert.Equal(t, syscall.EFBIG, p.Fallocate(h, 0, 1<<62, 1<<62, NoLimit))
}
