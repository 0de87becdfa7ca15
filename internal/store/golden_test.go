package store

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

var update = flag.Bool("update", false, "write the golden stores anew: those of a version that has been in use are never replaced")

// goldenRanks is the number of ranks that have written each golden store.
const goldenRanks = 2

// goldenFile returns the content of the file that a process has written.
func goldenFile(proc Proc) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "rank %d of %d ", proc.Rank, proc.Size), 5000)
}

// fillGolden writes a golden store, first as a singleton, then as the ranks of a job. Each of them writes two files
// and deletes one.
func fillGolden(t *testing.T, cfg *config.Config) {
	fill := func(p *Partition, proc Proc) {
		require.NoError(t, writeFile(p.FS, "deleted", goldenFile(proc)))
		require.NoError(t, writeFile(p.FS, "file", goldenFile(proc)))
		require.NoError(t, p.FS.Unlink(microfs.RootIno, "deleted"))
	}
	withPartition(t, cfg, alone, Options{}, func(singleton *Partition) {
		if cfg.View == config.ViewJob {
			_, err := singleton.Grow(ctx, cfg, goldenRanks, quietly)
			require.NoError(t, err)
		}
		fill(singleton, alone)
	})
	for rank := range goldenRanks {
		proc := Proc{Rank: rank, Size: goldenRanks}
		withPartition(t, cfg, proc, Options{}, func(p *Partition) { fill(p, proc) })
	}
}

// TestGoldenStores checks that a store of an earlier version opens, has its files and can be written.
func TestGoldenStores(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the golden stores are root's")
	}
	for _, view := range []config.View{config.ViewRank, config.ViewJob} {
		t.Run(string(view), func(t *testing.T) {
			golden := filepath.Join("testdata", "store-"+string(view)+".img.gz.gz") // twice: it is mostly zeros
			cfg := newStore(t, 64*nvmf.MiB)
			cfg.View = view
			if *update {
				fillGolden(t, cfg)
				require.NoError(t, os.WriteFile(golden, packed(t, packed(t, content(t, cfg))), 0o644))
			}
			compressed, err := os.ReadFile(golden)
			require.NoError(t, err)
			image := unpacked(t, unpacked(t, compressed))
			require.NoError(t, os.WriteFile(cfg.Targets[0].Address, image, 0o600))
			places := []Proc{alone, {Rank: 0, Size: goldenRanks}, {Rank: 1, Size: goldenRanks}}
			for _, o := range []Options{{ReadOnly: true}, {}} {
				for _, proc := range places {
					withPartition(t, cfg, proc, o, func(p *Partition) {
						assert.True(t, bytes.Equal(goldenFile(proc), contentOf(t, p.FS, "file")), "%v", proc)
						if !o.ReadOnly {
							require.NoError(t, writeFile(p.FS, "new", goldenFile(proc)))
						}
					})
				}
			}
			_, parts := checkAll(t, cfg, CheckOptions{Rank: AllRanks})
			assert.Len(t, parts, len(places))
			for _, p := range parts {
				assert.NoError(t, p.Err)
				assert.True(t, p.Clean(), "%v", p.Findings)
			}
		})
	}
}

func packed(t *testing.T, data []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	require.NoError(t, err)
	_, err = z.Write(data)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func unpacked(t *testing.T, data []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(data))
	require.NoError(t, err)
	data, err = io.ReadAll(z)
	require.NoError(t, err)
	return data
}
