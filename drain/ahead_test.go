package drain

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A countedFile is a file in memory that counts reads. Bytes from fails on cannot be read.
type countedFile struct {
	file
	data   []byte
	fails  int64
	reads  chan int64 // their offsets
	closed bool
}

func (f *countedFile) ReadAt(p []byte, off int64) (int, error) {
	f.reads <- off
	n := copy(p, f.data[off:])
	if off+int64(len(p)) > f.fails {
		return 0, syscall.EIO
	}
	return n, nil
}

func (f *countedFile) Close() error { f.closed = true; return nil }

func newCountedFile(t *testing.T, size int) *countedFile {
	return &countedFile{data: random(t, size), fails: int64(size), reads: make(chan int64, 100_000)}
}

// TestReadAhead reads parts of all sizes, in order and not, and gets the bytes that are there.
func TestReadAhead(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	f := newCountedFile(t, 3*aheadSize+12345)
	size := int64(len(f.data))
	r := newReadAhead(f, size)
	for off := int64(0); len(f.reads) < 300; {
		if off == size || chance.IntN(100) == 0 {
			off = chance.Int64N(size)
		}
		end := min(size, off+1+chance.Int64N(1<<chance.IntN(23)))
		got := make([]byte, end-off)
		if chance.IntN(2) == 0 {
			_, err := r.ReadAt(got, off)
			require.NoError(t, err)
		} else {
			b, err := r.block(off, end)
			require.NoError(t, err)
			require.NotEmpty(t, b)
			got = append(got[:0], b...)
		}
		require.Equal(t, f.data[off:off+int64(len(got))], got)
		off += int64(len(got))
	}
	require.NoError(t, r.Close())
	require.True(t, f.closed)
}

// TestReadAheadInOrder checks that a file that is read in order is read in blocks, each of them once, and before it is wanted.
func TestReadAheadInOrder(t *testing.T) {
	f := newCountedFile(t, 3*aheadSize+5)
	r := newReadAhead(f, int64(len(f.data)))
	p := make([]byte, 1000)
	_, err := r.ReadAt(p, 0)
	require.NoError(t, err)
	require.EqualValues(t, 0, <-f.reads)
	require.EqualValues(t, aheadSize, <-f.reads) // this would wait for ever
	for off := int64(len(p)); off < r.size; off += int64(len(p)) {
		_, err := r.ReadAt(p[:min(int64(len(p)), r.size-off)], off)
		require.NoError(t, err)
	}
	require.EqualValues(t, 2*aheadSize, <-f.reads)
	require.EqualValues(t, 3*aheadSize, <-f.reads)
	require.Empty(t, f.reads)
}

// TestReadAheadSparse checks that only short ranges of data between holes are read.
func TestReadAheadSparse(t *testing.T) {
	f := newCountedFile(t, 3*aheadSize)
	r := newReadAhead(f, int64(len(f.data)))
	for off := int64(0); off < r.size; off += aheadSize {
		b, err := r.block(off, off+blockSize)
		require.NoError(t, err)
		require.Len(t, b, blockSize)
		require.Equal(t, off, <-f.reads)
	}
	require.NoError(t, r.Close())
	require.Empty(t, f.reads)
}

// TestReadAheadFails checks that bytes before those that cannot be read are read, and that the error is returned for these.
func TestReadAheadFails(t *testing.T) {
	f := newCountedFile(t, 2*aheadSize)
	f.fails = aheadSize + 100
	r := newReadAhead(f, int64(len(f.data)))
	p := make([]byte, 100)
	for off := int64(0); off < f.fails; off += 100 {
		_, err := r.ReadAt(p[:min(100, f.fails-off)], off)
		require.NoError(t, err, "at %d", off)
	}
	_, err := r.ReadAt(p, f.fails)
	require.ErrorIs(t, err, syscall.EIO)
	_, err = r.block(f.fails, f.fails+1)
	require.ErrorIs(t, err, syscall.EIO)
}
