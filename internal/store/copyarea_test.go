package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
)

// TestCopyAreas: they are beside the partitions, whatever becomes of these, and are a file system each.
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

// TestNoCopyArea: a store that was formatted without one says so.
func TestNoCopyArea(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB)
	mustOpen(t, cfg, 2)
	cfg.Copies = config.CopiesPartner
	_, err := OpenCopies(ctx, cfg, 0, Options{})
	require.ErrorIs(t, err, ErrNoCopies)
}
