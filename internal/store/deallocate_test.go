package store

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
	"nvmecr/nvmf/filedev"
)

// TestGiveBack checks that Release and Reset deallocate the partitions of a store, and that they do not deallocate
// those of another store.
func TestGiveBack(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(*config.Config) error
	}{
		{"release", func(cfg *config.Config) error { _, err := Release(context.Background(), cfg); return err }},
		{"fresh", func(cfg *config.Config) error { return Reset(context.Background(), cfg) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			d, err := filedev.Create(path, 256*nvmf.MiB, filedev.Options{LBASize: 4096})
			require.NoError(t, err)
			if !d.Identity().CanDeallocate {
				t.Skip("the file system of the temporary directory cannot punch holes")
			}
			require.NoError(t, d.Close())
			cfg := config.Default()
			require.NoError(t, cfg.Set("name", "mine"))
			cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: path}}
			for rank := range 2 {
				p, err := Open(t.Context(), cfg, Proc{Rank: rank, Size: 2}, Options{})
				require.NoError(t, err)
				f, err := p.FS.Open(1, "/f", unix.O_CREAT|unix.O_RDWR, 0o600)
				require.NoError(t, err)
				_, err = f.WriteAt([][]byte{make([]byte, 16<<20)}, 0)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				require.NoError(t, p.Close())
			}
			require.Greater(t, stored(t, path), 32*nvmf.MiB)
			other := *cfg
			require.NoError(t, other.Set("name", "other"))
			require.Error(t, tc.do(&other))
			require.Greater(t, stored(t, path), 32*nvmf.MiB)
			require.NoError(t, tc.do(cfg))
			assert.Less(t, stored(t, path), 4*nvmf.MiB)
			require.NoError(t, tc.do(cfg), "there is nothing to give back")
		})
	}
}

// stored returns the space that a file occupies on its disk.
func stored(t *testing.T, path string) nvmf.Bytes {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return nvmf.Bytes(st.Blocks) * 512
}
