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

// TestViewOfRank checks that a reader of a rank's partition sees everything that was acknowledged before the time
// that it passes. If the view is newer than that time the partition must not be read again.
func TestViewOfRank(t *testing.T) {
	cfg := newTree(t, 128*nvmf.MiB, 128*nvmf.MiB)
	v := NewViews(cfg, nil)
	_, err := v.Rank(ctx, 1, time.Now())
	require.ErrorIs(t, err, microfs.ErrUnformatted, "there is no store")
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		require.NoError(t, writeFile(singleton.FS, "script", scriptFile))
		_, err := singleton.Grow(ctx, cfg, 3, quietly)
		require.NoError(t, err)
	})
	mustOpen(t, cfg, 3)
	for rank := range 3 {
		withPartition(t, cfg, Proc{Rank: rank, Size: 3}, Options{}, func(p *Partition) {
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
	fs, err := v.Rank(ctx, parttable.Singleton, time.Now())
	require.NoError(t, err)
	require.Equal(t, scriptFile, contentOf(t, fs, "script"))
	_, err = v.Rank(ctx, 3, time.Now())
	require.ErrorIs(t, err, microfs.ErrUnformatted)
}

// TestSpaceOfViews checks the sum of the space in the partitions of all ranks, including partitions that were never
// written.
func TestSpaceOfViews(t *testing.T) {
	cfg := newTree(t, 256*nvmf.MiB, 128*nvmf.MiB)
	v := NewViews(cfg, nil)
	space := func() (total, free nvmf.Bytes) {
		v.Forget()
		total, free, err := v.Space(ctx)
		require.NoError(t, err)
		return total, free
	}
	total, _ := space()
	require.Zero(t, total, "there is no store")
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		total, _ = space()
		require.Zero(t, total, "there are no ranks")
		_, err := singleton.Grow(ctx, cfg, 3, quietly)
		require.NoError(t, err)
	})
	mustOpen(t, cfg, 3) // formats the second target
	total, empty := space()
	require.Greater(t, total, 340*nvmf.MiB)
	require.Less(t, total-empty, nvmf.MiB)
	withPartition(t, cfg, Proc{Rank: 1, Size: 3}, Options{}, func(p *Partition) {
		require.NoError(t, writeFile(p.FS, "a", make([]byte, 20*nvmf.MiB)))
		again, free := space()
		assert.Equal(t, total, again)
		assert.EqualValues(t, 20*nvmf.MiB, empty-free)
	})
}
