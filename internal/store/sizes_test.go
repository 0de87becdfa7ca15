package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// spaceOf returns the capacity of a partition for file data.
func spaceOf(s microfs.StatFS) nvmf.Bytes { return nvmf.Bytes(s.Blocks) * s.Hugeblock }

// divided gives a store with one tree partitions for ranks. It returns the capacity of the singleton partition, which
// has the index, and of the partition of one rank.
func divided(t *testing.T, cfg *config.Config, ranks int) (index, each nvmf.Bytes) {
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		_, err := singleton.Grow(ctx, cfg, ranks, quietly)
		require.NoError(t, err)
		index = spaceOf(singleton.FS.StatFS())
		withPartition(t, cfg, Proc{Rank: ranks - 1, Size: ranks}, Options{}, func(p *Partition) {
			each = spaceOf(p.FS.StatFS())
		})
	})
	return index, each
}

// TestSpaceOfRanks checks which part of a store with one tree the ranks get, and which part is for processes without
// a rank.
func TestSpaceOfRanks(t *testing.T) {
	t.Parallel()
	const mib, gib = nvmf.MiB, nvmf.GiB
	for _, tt := range []struct {
		size  nvmf.Bytes
		ranks int
		all   int // minimum percentage of the store for files of ranks
		index nvmf.Bytes
	}{
		{64 * mib, 2, 74, 8 * mib},
		{64 * mib, 8, 65, 8 * mib},
		{256 * mib, 2, 86, 16 * mib},
		{256 * mib, 64, 56, 16 * mib}, // 2304 KiB for each rank
		{512 * mib, 2, 87, 32 * mib},
		{512 * mib, 8, 86, 32 * mib},
		{512 * mib, 16, 83, 32 * mib}, // the alignment of 1 MiB is 3% of a partition here
		{gib, 2, 87, 64 * mib},
		{gib, 16, 86, 64 * mib},
		{16 * gib, 2, 87, gib},
		{16 * gib, 448, 84, gib},
		{1024 * gib, 2, 92, 64 * gib},
		{1024 * gib, 448, 91, 64 * gib},
	} {
		t.Run(fmt.Sprintf("%v, %d ranks", tt.size, tt.ranks), func(t *testing.T) {
			index, each := divided(t, newTree(t, tt.size), tt.ranks)
			t.Logf("%v for each rank, %d%% of the store for all; %v without a rank", each, nvmf.Bytes(100*tt.ranks)*each/tt.size, index)
			assert.GreaterOrEqual(t, nvmf.Bytes(100*tt.ranks)*each, nvmf.Bytes(tt.all)*tt.size, "percent for ranks")
			assert.InDelta(t, float64(tt.index), float64(index), float64(2*mib), "without a rank")
		})
	}
}

// TestTooSmallForRanks checks that the error for a store that is too small for its ranks names a sufficient size.
func TestTooSmallForRanks(t *testing.T) {
	cfg := newTree(t, 64*nvmf.MiB)
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		_, err := singleton.Grow(ctx, cfg, 64, quietly)
		require.ErrorContains(t, err, "take one of at least")
	})
}
