package tree

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/tree/wire"
)

// fill writes pieces to a file until there is no space, and returns how many bytes it has then.
func fill(t *testing.T, f vfs.File) (size int64, err error) {
	piece := bytes.Repeat([]byte{7}, 64<<10)
	for ; ; size += int64(len(piece)) {
		n, err := f.WriteAt([][]byte{piece}, size)
		if err != nil {
			return size + int64(n), err
		}
		require.Equal(t, len(piece), n)
	}
}

// TestSpace checks that every process gets the space of the whole store, and the space that it can write to itself.
func TestSpace(t *testing.T) {
	r := newRig(t, 3)
	a, b, script := r.join(0), r.join(1), r.join(wire.NoPartition)
	var all microfs.Hugeblock
	for _, fs := range []*microfs.FS{r.fs, a.own, b.own, a.own} { // the third one is unwritten
		all += fs.StatFS().Blocks
	}
	empty := script.StatFS()
	assert.Equal(t, all, empty.Blocks)
	assert.Equal(t, r.fs.StatFS().Free, empty.Avail)
	assert.Equal(t, a.own.StatFS().Free, a.StatFS().Avail)

	f := a.open("/f", unix.O_RDWR|unix.O_CREAT)
	size, err := fill(t, f)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "the partition of rank 0 is full")
	require.NoError(t, f.Close())
	full := a.StatFS()
	assert.Less(t, full.Avail, microfs.Hugeblock(64<<10/full.Hugeblock), "a rank is right about itself")
	for name, s := range map[string]microfs.StatFS{"rank 0": full, "rank 1": b.StatFS(), "script": script.StatFS()} {
		assert.Equal(t, all, s.Blocks, name)
		assert.InDelta(t, size, int64(nvmf.Bytes(empty.Free-s.Free)*s.Hugeblock), 256<<10, name)
	}
	assert.Equal(t, b.own.StatFS().Free, b.StatFS().Avail)

	g := script.open("/g", unix.O_RDWR|unix.O_CREAT)
	_, err = fill(t, g)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "processes without a rank")
	require.NoError(t, g.Close())
}

// TestSpaceOfRemovedFiles checks that a rank whose partition was full continues after another process has removed a
// file.
func TestSpaceOfRemovedFiles(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	old, f := a.open("/old", unix.O_RDWR|unix.O_CREAT), a.open("/new", unix.O_RDWR|unix.O_CREAT)
	_, err := old.WriteAt([][]byte{make([]byte, 2<<20)}, 0)
	require.NoError(t, err)
	require.NoError(t, old.Close())
	size, err := fill(t, f)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, b.Unlink(root, "/old"))
	put(t, f, size, string(make([]byte, 1<<20)))
	require.NoError(t, f.Close())
}

// TestSpaceOfManyPartitions tests more space than can be counted in hugeblocks.
func TestSpaceOfManyPartitions(t *testing.T) {
	r := newRig(t, 0)
	const petabyte = nvmf.Bytes(1) << 50
	r.stop()
	r.more = petabyte
	r.start()
	s := r.join(wire.NoPartition).StatFS()
	assert.InEpsilon(t, float64(petabyte), float64(s.Blocks)*float64(s.Hugeblock), 1e-6)
	assert.InEpsilon(t, float64(petabyte), float64(s.Free)*float64(s.Hugeblock), 1e-6)
	assert.Positive(t, s.Avail)
}
