package store

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// TestCopyAreas checks that the copy area of each target is a file system of its own, that it survives new partitions
// on its target, and that Check and Erase include it.
func TestCopyAreas(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		t.Run(string(view), func(t *testing.T) {
			cfg := newStore(t, 256*nvmf.MiB, 128*nvmf.MiB, 128*nvmf.MiB)
			cfg.View, cfg.Copies = view, config.CopiesPartner
			_, err := OpenCopies(ctx, cfg, 1, Options{ReadOnly: true})
			require.ErrorIs(t, err, parttable.ErrNoTable)
			mustOpen(t, cfg, 8)
			for target := range cfg.Targets {
				p, err := OpenCopies(ctx, cfg, target, Options{})
				require.NoError(t, err)
				_, err = OpenCopies(ctx, cfg, target, Options{})
				require.ErrorContains(t, err, "copy area of store")
				require.NoError(t, writeFile(p.FS, "copy", []byte{byte(target)}))
				require.NoError(t, p.Close())
				assert.Equal(t, p.Device.Identity().Capacity()/2, p.Table.Copies.Length)
			}
			if view == config.ViewJob {
				runRanks(t, cfg, 20, 20, map[int][]byte{})
			}
			for target := range cfg.Targets {
				p, err := OpenCopies(ctx, cfg, target, Options{ReadOnly: true})
				require.NoError(t, err)
				assert.Equal(t, []byte{byte(target)}, contentOf(t, p.FS, "copy"))
				require.NoError(t, p.Close())
			}
			_, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
			areas := 0
			for _, p := range parts {
				require.NoError(t, p.Err)
				require.Empty(t, p.Findings)
				if p.Rank == parttable.Copies {
					areas++
				}
			}
			assert.Equal(t, len(cfg.Targets), areas)
			require.NoError(t, Erase(ctx, cfg, nil))
			for target := range cfg.Targets {
				_, err := OpenCopies(ctx, cfg, target, Options{ReadOnly: true})
				require.Error(t, err)
			}
		})
	}
}

// TestNoCopyArea checks the error of OpenCopies for a store that was formatted without copy areas.
func TestNoCopyArea(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB)
	mustOpen(t, cfg, 2)
	cfg.Copies = config.CopiesPartner
	_, err := OpenCopies(ctx, cfg, 0, Options{})
	require.ErrorIs(t, err, ErrNoCopies)
}

// TestCopyAreasWithoutRanks checks that a target without a rank's partition has a copy area, and that the area keeps
// its content when later ranks get partitions on the target.
func TestCopyAreasWithoutRanks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		view  config.View
		sizes []int // numbers of ranks of consecutive jobs
	}{
		{"one tree", config.ViewJob, []int{1, 2, 1, 8}},
		{"private trees", config.ViewRank, []int{2, 2}},
		{"a script, then private trees", config.ViewRank, []int{1, 8, 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := newStore(t, 256*nvmf.MiB, 128*nvmf.MiB, 128*nvmf.MiB)
			cfg.View, cfg.Copies = c.view, config.CopiesPartner
			require.NoError(t, MakeCopyAreas(ctx, cfg))
			_, err := Ranks(ctx, cfg)
			require.ErrorIs(t, err, parttable.ErrNoTable, "no rank has written anything")
			files, limit := map[int][]byte{}, 1
			for i, size := range c.sizes {
				require.NoError(t, MakeCopyAreas(ctx, cfg))
				if limit = max(limit, size); c.view == config.ViewJob {
					runRanks(t, cfg, size, limit, files)
				} else {
					mustOpen(t, cfg, size)
				}
				for target := range cfg.Targets {
					withCopies(t, cfg, target, func(p *Partition) {
						if i > 0 {
							assert.Equal(t, []byte{byte(target)}, contentOf(t, p.FS, "copy"), "target %d before %d ranks", target, size)
						}
						require.NoError(t, writeFile(p.FS, "copy", []byte{byte(target)}))
					})
				}
			}
			ranks, err := Ranks(ctx, cfg)
			require.NoError(t, err)
			assert.Len(t, ranks, limit)
			assert.Empty(t, Missing(ranks))
			_, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
			for _, p := range parts {
				require.NoError(t, p.Err)
				require.Empty(t, p.Findings)
			}
		})
	}
}

// TestOnlyCopies checks that the error for a store that has only copy areas differs from the error for a store that
// was never written. It replaces each target in turn.
func TestOnlyCopies(t *testing.T) {
	t.Parallel()
	for replaced := range 3 {
		cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB, 64*nvmf.MiB)
		_, err := Ranks(ctx, cfg)
		require.ErrorIs(t, err, parttable.ErrNoTable)
		require.NotErrorIs(t, err, ErrOnlyCopies)
		cfg.Copies = config.CopiesPartner
		require.NoError(t, MakeCopyAreas(ctx, cfg))
		require.NoError(t, os.Truncate(cfg.Targets[replaced].Address, 0))
		require.NoError(t, os.Truncate(cfg.Targets[replaced].Address, 64<<20))
		_, err = Ranks(ctx, cfg)
		require.ErrorIs(t, err, ErrOnlyCopies)
	}
}

// withCopies calls f with the copy area of a target, open for writing.
func withCopies(t *testing.T, cfg *config.Config, target int, f func(p *Partition)) {
	t.Helper()
	p, err := OpenCopies(ctx, cfg, target, Options{})
	require.NoError(t, err)
	f(p)
	require.NoError(t, p.Close())
}

// TestRepairCopyAreaAlone checks that the table of a target that has a copy area and no partition can be repaired.
func TestRepairCopyAreaAlone(t *testing.T) {
	t.Parallel()
	cfg := newTree(t, 128*nvmf.MiB, 128*nvmf.MiB)
	cfg.Copies = config.CopiesPartner
	require.NoError(t, MakeCopyAreas(ctx, cfg))
	withCopies(t, cfg, 1, func(p *Partition) { require.NoError(t, writeFile(p.FS, "copy", []byte("x"))) })
	f, err := os.OpenFile(cfg.Targets[1].Address, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("damage"), int64(parttable.CopyOffset(0))+40)
	require.NoError(t, errors.Join(err, f.Close()))
	targets, _ := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
	require.Len(t, targets[0].Findings, 1)
	assert.Equal(t, microfs.Repairable, targets[0].Findings[0].Severity)
	assert.Contains(t, targets[0].Findings[0].Remedy, "--repair writes it again")
	targets, _ = checkAll(t, cfg, CheckOptions{Rank: AllRanks, Repair: true})
	require.Empty(t, targets[0].Findings)
	withCopies(t, cfg, 1, func(p *Partition) { assert.Equal(t, []byte("x"), contentOf(t, p.FS, "copy")) })
}
