package store

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
)

func newTree(t *testing.T, sizes ...nvmf.Bytes) *config.Config {
	cfg := newStore(t, sizes...)
	cfg.View = config.ViewJob
	return cfg
}

func quietly(string, ...any) {}

// runRanks runs a job of size ranks, after which the store must have limit partitions for ranks. Each rank must find
// the file that it wrote in an earlier run, and writes it again. files has the expected content by rank.
func runRanks(t *testing.T, cfg *config.Config, size, limit int, files map[int][]byte) {
	t.Helper()
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		n, err := singleton.Grow(ctx, cfg, size, quietly)
		require.NoError(t, err)
		require.Equal(t, limit, n)
		for rank := 0; rank < size && size > 1; rank++ { // the only rank of a job uses the singleton partition
			withPartition(t, cfg, Proc{Rank: rank, Size: size}, Options{}, func(p *Partition) {
				if old, ok := files[rank]; ok {
					require.Equal(t, old, contentOf(t, p.FS, "file"))
				}
				files[rank] = bytes.Repeat(fmt.Appendf(nil, "rank %d of %d ", rank, size), 20000)
				require.NoError(t, writeFile(p.FS, "file", files[rank]))
			})
		}
	})
	for rank, want := range files { // also those of ranks that only earlier jobs had
		withPartition(t, cfg, Proc{Rank: rank}, Options{ReadOnly: true}, func(p *Partition) {
			require.Equal(t, want, contentOf(t, p.FS, "file"))
		})
	}
}

// TestGrow runs jobs with different numbers of ranks, one after the other. Each must find the files of the earlier
// ones.
func TestGrow(t *testing.T) {
	t.Parallel()
	for _, targets := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d targets", targets), func(t *testing.T) {
			cfg := newTree(t, []nvmf.Bytes{256 * nvmf.MiB, 128 * nvmf.MiB, 128 * nvmf.MiB}[:targets]...)
			files, limit := map[int][]byte{}, 1
			for _, size := range []int{8, 3, 11, 1, 8, 20} {
				limit = max(limit, size)
				runRanks(t, cfg, size, limit, files)
			}
			infos, err := Partitions(ctx, cfg)
			require.NoError(t, err)
			require.Len(t, infos, 21)
			for _, info := range infos {
				assert.GreaterOrEqual(t, info.Segment.Length, minLength(cfg.Hugeblock))
			}
			_, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
			for _, p := range parts {
				require.NoError(t, p.Err)
				require.Empty(t, p.Findings)
			}
		})
	}
}

// TestGrowBeside adds partitions while a rank has its partition open, which must keep its length and files. If there
// is no space for the partitions the error must be ENOSPC.
func TestGrowBeside(t *testing.T) {
	cfg := newTree(t, 64*nvmf.MiB)
	files := map[int][]byte{}
	runRanks(t, cfg, 2, 2, files)
	withPartition(t, cfg, Proc{Rank: 0, Size: 2}, Options{}, func(p *Partition) {
		before, _ := p.Table.Entry(0)
		runRanksFrom(t, cfg, 1, 4)
		require.NoError(t, writeFile(p.FS, "file", scriptFile))
		withPartition(t, cfg, Proc{Rank: 0}, Options{ReadOnly: true}, func(p *Partition) {
			entry, _ := p.Table.Entry(0)
			require.Equal(t, before, entry)
			require.Equal(t, scriptFile, contentOf(t, p.FS, "file"))
		})
	})
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		_, err := singleton.Grow(ctx, cfg, 100, quietly)
		require.ErrorIs(t, err, syscall.ENOSPC)
	})
	runRanksFrom(t, cfg, 0, 4)
}

// TestGrowToLargest checks that with --max-ranks the first job creates partitions for that number of ranks, so that
// more ranks can start while the first ones have their partitions open.
func TestGrowToLargest(t *testing.T) {
	cfg := newTree(t, 64*nvmf.MiB)
	cfg.MaxRanks = 5
	files := map[int][]byte{}
	runRanks(t, cfg, 2, 5, files)
	withPartition(t, cfg, Proc{Rank: 0, Size: 2}, Options{}, func(*Partition) {
		withPartition(t, cfg, Proc{Rank: 1, Size: 2}, Options{}, func(*Partition) { runRanksFrom(t, cfg, 2, 5) })
	})
}

func runRanksFrom(t *testing.T, cfg *config.Config, first, size int) {
	t.Helper()
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		_, err := singleton.Grow(ctx, cfg, size, quietly)
		require.NoError(t, err)
		for rank := first; rank < size; rank++ {
			withPartition(t, cfg, Proc{Rank: rank, Size: size}, Options{}, func(p *Partition) {
				require.NoError(t, writeFile(p.FS, fmt.Sprint("file", rank), scriptFile))
			})
		}
	})
}

// TestGrowKilled kills a process at different moments while it adds partitions. The existing partitions must keep
// their files.
func TestGrowKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills a process at each step of growing: not in a short run")
	}
	cfg := newTree(t, 64*nvmf.MiB)
	files := map[int][]byte{}
	runRanks(t, cfg, 3, 3, files)
	image := content(t, cfg)
	for delay := time.Duration(0); delay < 80*time.Millisecond; delay += 4 * time.Millisecond {
		require.NoError(t, os.WriteFile(cfg.Targets[0].Address, image, 0o600))
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(cfg.Environ(os.Environ()), "STORE_TEST_GROW=6")
		require.NoError(t, cmd.Start())
		time.Sleep(delay)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		now := map[int][]byte{0: files[0], 1: files[1], 2: files[2]}
		runRanks(t, cfg, 6, 6, now)
	}
}

// TestOtherTree checks that a store can only be opened with the --view that it was formatted with, and that readers
// from outside can list its ranks in either case.
func TestOtherTree(t *testing.T) {
	for _, view := range []config.View{config.ViewJob, config.ViewRank} {
		cfg := newStore(t, 64*nvmf.MiB)
		cfg.View = view
		mustOpen(t, cfg, 2)
		other := *cfg
		other.View = map[config.View]config.View{config.ViewJob: config.ViewRank, config.ViewRank: config.ViewJob}[view]
		_, err := Open(ctx, &other, Proc{Rank: 0, Size: 2}, Options{})
		require.ErrorIs(t, err, parttable.ErrOtherTree)
		assert.ErrorContains(t, err, "--view="+string(view))
		ranks, err := Ranks(ctx, &other)
		require.NoError(t, err, "whoever looks from outside")
		assert.Len(t, ranks, 2)
	}
}

// TestCarve checks the segments that are cut from gaps between partitions.
func TestCarve(t *testing.T) {
	const mib = nvmf.MiB
	for _, tt := range []struct {
		gaps []balancer.Segment
		n    int
		want []balancer.Segment
	}{
		{nil, 1, nil},
		{[]balancer.Segment{{Start: 2 * mib, Length: 10 * mib}}, 3, []balancer.Segment{{Start: 2 * mib, Length: 3 * mib}, {Start: 5 * mib, Length: 3 * mib}, {Start: 8 * mib, Length: 3 * mib}}},
		{[]balancer.Segment{{Start: 2*mib + 1, Length: 2 * mib}}, 1, []balancer.Segment{{Start: 3 * mib, Length: mib}}},
		{[]balancer.Segment{{Start: 2 * mib, Length: mib}, {Start: 9 * mib, Length: 5 * mib}}, 2, []balancer.Segment{{Start: 9 * mib, Length: 2 * mib}, {Start: 11 * mib, Length: 2 * mib}}},
		{[]balancer.Segment{{Start: 2 * mib, Length: mib}}, 2, nil},
	} {
		assert.Equal(t, tt.want, carve(tt.gaps, tt.n, mib), "%v", tt.gaps)
	}
}
