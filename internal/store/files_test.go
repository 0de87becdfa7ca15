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

// TestFilesAreTheRanks checks that a restart and a reader from outside find the files of each rank, and that --fresh
// removes them.
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
	// --fresh deletes the files.
	require.NoError(t, Reset(ctx, cfg))
	for rank := 0; rank < size; rank++ {
		p, err := Open(ctx, cfg, Proc{Rank: rank, Size: size}, Options{})
		require.NoError(t, err)
		_, err = p.FS.Open(microfs.RootIno, "restart", os.O_RDONLY, 0)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.NoError(t, p.Close())
	}
}

// TestHugeblockIsFixed checks that the hugeblock size of a store stays the one of its table, whatever size a later
// process is configured with.
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
