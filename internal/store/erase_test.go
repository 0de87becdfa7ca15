package store

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/config"
	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/filedev"
)

// TestErase checks that Erase leaves neither data nor file names in the partitions.
func TestErase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "image")
	d, err := filedev.Create(path, 32*nvmf.MiB, filedev.Options{LBASize: 4096})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	cfg := config.Default()
	require.NoError(t, cfg.Set("name", "secrets"))
	cfg.Targets = []nvmf.TransportID{{Transport: nvmf.File, Address: path}}
	secret := bytes.Repeat([]byte("very secret "), 1000)
	for rank := range 2 {
		p, err := Open(t.Context(), cfg, Proc{Rank: rank, Size: 2}, Options{})
		require.NoError(t, err)
		f, err := p.FS.Open(1, "/named-secret", unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(t, err)
		_, err = f.WriteAt([][]byte{secret}, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, p.Close())
	}
	image, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 2, bytes.Count(image, secret))
	require.Contains(t, string(image), "named-secret")

	var last, all nvmf.Bytes
	require.NoError(t, Erase(t.Context(), cfg, func(done, of nvmf.Bytes) {
		assert.Greater(t, done, last)
		last, all = done, of
	}))
	assert.Equal(t, all, last)
	require.NoError(t, Erase(t.Context(), cfg, nil), "again, as after an interruption")
	blocktest.RequireSynced(t, path, "Erase")
	n, err := Release(t.Context(), cfg)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	image, err = os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(image), "secret")
	require.NoError(t, Erase(t.Context(), cfg, nil), "there is nothing to erase")
}
