package command

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWriteBehind writes parts of all sizes and orders, and finds in the file what a plain file has.
func TestWriteBehind(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const size = 3*behindSize + 12345
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	require.NoError(t, err)
	to, err := os.Create(filepath.Join(t.TempDir(), "behind"))
	require.NoError(t, err)
	w := writeBehind(to, size)
	data := make([]byte, 2*behindSize)
	off := int64(0)
	for range 100 {
		if random.IntN(3) == 0 {
			off = random.Int64N(size)
		}
		p := data[:min(random.Int64N(1<<random.IntN(23)+1), size-off)]
		for i := range min(len(p), 64) {
			p[i] = byte(random.Uint32())
		}
		n, err := w.WriteAt(p, off)
		require.NoError(t, err)
		require.Len(t, p, n)
		_, err = plain.WriteAt(p, off)
		require.NoError(t, err)
		off += int64(len(p))
	}
	require.NoError(t, w.Close())
	want, err := os.ReadFile(plain.Name())
	require.NoError(t, err)
	got, err := os.ReadFile(to.Name())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

var errFull = errors.New("no space")

// A fullFile has space for a limited number of bytes.
type fullFile int64

func (f fullFile) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > int64(f) {
		return 0, errFull
	}
	return len(p), nil
}

// TestWriteBehindFails checks that a later call may return an error, and that Close always does.
func TestWriteBehindFails(t *testing.T) {
	for _, space := range []fullFile{0, behindSize, 5 * behindSize} {
		w := writeBehind(space, 100*behindSize)
		var err error
		calls := 0
		for p := make([]byte, behindSize/4); err == nil && calls < 400; calls++ {
			_, err = w.WriteAt(p, int64(calls*len(p)))
		}
		require.ErrorIs(t, err, errFull)
		require.Less(t, calls, 400)
		_, again := w.WriteAt(make([]byte, 2*behindSize), 0)
		require.ErrorIs(t, again, errFull)
		require.ErrorIs(t, w.Close(), errFull)
	}
	w := writeBehind(fullFile(0), 10)
	_, err := w.WriteAt([]byte("0123456789"), 0)
	require.NoError(t, err)
	require.ErrorIs(t, w.Close(), errFull)
	w = writeBehind(fullFile(0), 0)
	require.NoError(t, w.Close())
}
