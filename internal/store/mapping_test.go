package store

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// targetsOf returns the name of the target of each rank, according to the tables.
func targetsOf(t *testing.T, infos []RankInfo) (targets []string) {
	t.Helper()
	for _, i := range infos {
		targets = append(targets, i.Target.Address[strings.LastIndexByte(i.Target.Address, '/')+1:])
	}
	return targets
}

// TestMissing checks which ranks are in no table.
func TestMissing(t *testing.T) {
	t.Parallel()
	of := func(size int, ranks ...int) (list []RankInfo) {
		for _, r := range ranks {
			list = append(list, RankInfo{Rank: r, JobSize: size})
		}
		return list
	}
	assert.Empty(t, Missing(nil))
	assert.Empty(t, Missing(of(1, 0)))
	assert.Empty(t, Missing(of(3, 0, 1, 2)))
	assert.Equal(t, []int{0, 2}, Missing(of(4, 1, 3)))
}

// TestMappings checks that ranks get the targets that the mapping names, and keep them if a later run has another
// mapping.
func TestMappings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		plan     string
		size     int
		want     []string
		recorded string
	}{
		{"round-robin", 5, []string{"0", "1", "2", "0", "1"}, "round-robin"},
		{"0*2,1*2", 5, []string{"0", "0", "1", "1", "0"}, "0*2,1*2,0"},
		{"0*2,2,1*2", 10, []string{"0", "0", "2", "1", "1", "0", "0", "2", "1", "1"}, "0*2,2,1*2"},
		{"2,1,0*3", 5, []string{"2", "1", "0", "0", "0"}, "2,1,0*3"},
		{"2,2,2,0", 4, []string{"2", "2", "2", "0"}, "2*3,0"},
		{"2*9,0", 1, []string{"0"}, ""},
	} {
		t.Run(c.plan, func(t *testing.T) {
			cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB, 64*nvmf.MiB)
			require.NoError(t, cfg.Set("mapping", c.plan))
			gens, entries := mustOpen(t, cfg, c.size)
			infos, err := Ranks(ctx, cfg)
			require.NoError(t, err)
			assert.Equal(t, c.want, targetsOf(t, infos))

			require.NoError(t, cfg.Set("mapping", "0*2,2,1*2"))
			require.NoError(t, ResolveMapping(cfg, infos))
			if c.size > 1 {
				assert.Equal(t, c.recorded, cfg.Mapping.String())
			}
			sameGens, sameEntries := mustOpen(t, cfg, c.size)
			assert.Equal(t, gens, sameGens)
			assert.Equal(t, entries, sameEntries)
			again, err := Ranks(ctx, cfg)
			require.NoError(t, err)
			assert.Equal(t, infos, again, "no rank has a second partition")
		})
	}
}

// TestDivideByMapping checks that a store which a script used first is divided by the mapping of the ranks, not of
// the script. The script's process has ended or still has the partition open.
func TestDivideByMapping(t *testing.T) {
	for _, living := range []bool{false, true} {
		cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
		require.NoError(t, cfg.Set("mapping", "1*2,0*2"))
		script := *cfg
		require.NoError(t, script.Set("mapping", "round-robin"), "the ranks say what theirs is")
		withPartition(t, &script, alone, Options{}, func(p *Partition) {
			require.NoError(t, writeFile(p.FS, "script", scriptFile))
			if living {
				mustOpen(t, cfg, 4)
			}
		})
		mustOpen(t, cfg, 4)
		infos, err := Ranks(ctx, cfg)
		require.NoError(t, err)
		assert.Equal(t, []string{"1", "1", "0", "0"}, targetsOf(t, infos))
		withPartition(t, cfg, alone, Options{ReadOnly: true}, func(p *Partition) {
			require.Equal(t, scriptFile, contentOf(t, p.FS, "script"))
		})
	}
}

// TestUnfinishedMapping checks a store in which only the first target is formatted, because the first run crashed or
// the other targets were replaced. Ranks that are in its table must stay there, and the first target must get no
// other ranks, whatever the mapping of the next run is.
func TestUnfinishedMapping(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB, 64*nvmf.MiB)
	require.NoError(t, cfg.Set("mapping", "0*2,1,2"))
	p, err := Open(ctx, cfg, Proc{Rank: 0, Size: 6}, Options{}) // formats target 0, for ranks 0, 1, 4 and 5
	require.NoError(t, err)
	require.NoError(t, p.Close())
	infos, err := Ranks(ctx, cfg)
	require.NoError(t, err)
	for _, c := range []struct{ plan, becomes, says string }{
		{"0*2,1,2", "0*2,1,2", ""},
		{"0*2,2,1", "0*2,2,1", ""},
		{"round-robin", "0*2,1,2,0*2", ""},
		{"0,1*3,2", "0*2,1,2,0*2", ""},
		{"0,3", "", "0 to 2"},
		{"1", "", "first one is used"},
	} {
		require.NoError(t, cfg.Set("mapping", c.plan))
		err := ResolveMapping(cfg, infos)
		if c.says == "" {
			require.NoError(t, err)
			assert.Equal(t, c.becomes, cfg.Mapping.String())
		} else {
			assert.ErrorContains(t, err, c.says)
		}
	}
}

// TestCopiesAreRefused checks that a mapping with several targets for a rank is refused before anything is written.
func TestCopiesAreRefused(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
	require.NoError(t, cfg.Set("mapping", "0+1,1+0"))
	_, err := Open(ctx, cfg, Proc{Rank: 0, Size: 2}, Options{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	b, err := os.ReadFile(cfg.Targets[0].Address)
	require.NoError(t, err)
	assert.Empty(t, strings.Trim(string(b), "\x00"))
}

// TestTooManyRanks checks that a number of ranks for which no table has space is refused. Memory must not be
// allocated for each of them.
func TestTooManyRanks(t *testing.T) {
	for _, plan := range []string{"round-robin", "0*2,1"} {
		cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
		require.NoError(t, cfg.Set("mapping", plan))
		_, err := Open(ctx, cfg, Proc{Rank: 1, Size: 1<<31 - 1}, Options{})
		require.ErrorContains(t, err, "name more targets")
	}
}

// TestFoundByTheTables checks that ranks find their partitions by the tables of formatted targets, although the
// mapping names other targets.
func TestFoundByTheTables(t *testing.T) {
	cfg := newStore(t, 64*nvmf.MiB, 64*nvmf.MiB)
	gens, _ := mustOpen(t, cfg, 4)
	require.NoError(t, cfg.Set("mapping", "0*2,1*2"))
	again, _ := mustOpen(t, cfg, 4)
	assert.Equal(t, gens, again)
}
