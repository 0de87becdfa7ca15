package store

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// What the ranks write, a restart and a reader from outside find, each rank
// its own.
func TestFilesAreTheRanks(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
	const size = 3
	text := func(rank int) string { return fmt.Sprintf("checkpoint of rank %d", rank) }
	for rank := 0; rank < size; rank++ {
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: size}, Options{})
		require.NoError(t, err)
		f, err := p.FS.Open(microfs.RootIno, "/restart", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		n, err := f.WriteAt([][]byte{[]byte(text(rank))}, 0)
		require.NoError(t, err)
		require.Equal(t, len(text(rank)), n)
		require.NoError(t, f.Close())
		a, err := p.FS.Stat(microfs.RootIno, "/", true)
		require.NoError(t, err)
		assert.EqualValues(t, os.Geteuid(), a.UID, "the root directory belongs to the user")
		require.NoError(t, p.Close())
	}
	for _, o := range []Options{{}, {ReadOnly: true}} {
		for rank := 0; rank < size; rank++ {
			p, err := Open(ctx, cfg, Proc{Rank: rank, Size: size}, o)
			require.NoError(t, err)
			f, err := p.FS.Open(microfs.RootIno, "restart", os.O_RDONLY, 0)
			require.NoError(t, err)
			b := make([]byte, 100)
			n, err := f.ReadAt([][]byte{b}, 0)
			require.NoError(t, err)
			assert.Equal(t, text(rank), string(b[:n]))
			require.NoError(t, f.Close())
			require.NoError(t, p.Close())
		}
	}
	// After --fresh there is nothing of it.
	require.NoError(t, Reset(ctx, cfg))
	for rank := 0; rank < size; rank++ {
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: size}, Options{})
		require.NoError(t, err)
		_, err = p.FS.Open(microfs.RootIno, "restart", os.O_RDONLY, 0)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.NoError(t, p.Close())
	}
}

// The hugeblock size is the table's, whatever a later process says.
func TestHugeblockIsFixed(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB)
	for rank, h := range []nvmf.Bytes{64 * nvmf.KiB, 4 * nvmf.KiB} {
		cfg.Hugeblock = h
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: 2}, Options{})
		require.NoError(t, err)
		assert.Equal(t, 64*nvmf.KiB, p.FS.StatFS().Hugeblock, "rank %d", rank)
		require.NoError(t, p.Close())
	}
}
