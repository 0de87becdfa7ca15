package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// TestViewOfRank: who reads the partition of a rank sees what was acknowledged before the moment that it names, and looks again no more
// often than that.
func TestViewOfRank(t *testing.T) {
	cfg := newTree(t, 128*nvmf.MiB, 128*nvmf.MiB)
	v := NewViews(cfg, nil)
	_, err := v.Rank(ctx, 1, time.Now())
	require.ErrorIs(t, err, microfs.ErrUnformatted, "there is no store")
	withPartition(t, cfg, alone, Options{}, func(solo *Partition) {
		require.NoError(t, writeFile(solo.FS, "script", scriptFile))
		_, err := solo.Grow(ctx, cfg, 3, quietly)
		require.NoError(t, err)
	})
	mustOpen(t, cfg, 3)
	for rank := range 3 {
		withPartition(t, cfg, Place{Rank: rank, Size: 3}, Options{}, func(p *Partition) {
			require.NoError(t, writeFile(p.FS, "a", scriptFile))
			fs, err := v.Rank(ctx, rank, time.Now())
			require.NoError(t, err)
			require.Equal(t, scriptFile, contentOf(t, fs, "a"))
			before := time.Now()
			fs, err = v.Rank(ctx, rank, before)
			require.NoError(t, err)
			require.NoError(t, writeFile(p.FS, "b", scriptFile))
			again, err := v.Rank(ctx, rank, before)
			require.NoError(t, err)
			assert.Same(t, fs, again, "it was looked at since")
			again, err = v.Rank(ctx, rank, time.Now())
			require.NoError(t, err)
			require.Equal(t, scriptFile, contentOf(t, again, "b"))
			same, err := v.Rank(ctx, rank, time.Now())
			require.NoError(t, err)
			assert.Same(t, again, same, "nothing has changed")
		})
	}
	fs, err := v.Rank(ctx, parttable.Solo, time.Now())
	require.NoError(t, err)
	require.Equal(t, scriptFile, contentOf(t, fs, "script"))
	_, err = v.Rank(ctx, 3, time.Now())
	require.ErrorIs(t, err, microfs.ErrUnformatted)
}
