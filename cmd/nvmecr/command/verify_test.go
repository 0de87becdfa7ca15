package command

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/store"
	"nvmecr/microfs"
)

// namespace creates a store in a file, with /f of size bytes, and returns the target.
func namespace(t *testing.T, size int) string {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 128<<20))
	cfg := config.Default()
	require.NoError(t, cfg.Set("target", "file:"+path))
	p, err := store.Open(t.Context(), cfg, store.Proc{Rank: 0, Size: 1}, store.Options{})
	require.NoError(t, err)
	f, err := p.FS.Open(microfs.RootIno, "f", syscall.O_CREAT|syscall.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt([][]byte{make([]byte, size)}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, p.Close())
	return "file:" + path
}

// TestVerifyAtATerminal checks that a bar is drawn only on a terminal, and that results are on stdout.
func TestVerifyAtATerminal(t *testing.T) {
	target := namespace(t, 40<<20)
	keyboard, screen := terminal(t)
	defer keyboard.Close()
	var stdout, stderr bytes.Buffer
	cmd := nvmecr("main", "verify", "--target", target)
	cmd.Stdout, cmd.Stderr = &stdout, screen
	require.NoError(t, cmd.Start())
	require.NoError(t, screen.Close())
	drawn, _ := io.ReadAll(keyboard) // ends with EIO at the end of the program
	require.NoError(t, cmd.Wait())
	assert.Contains(t, string(drawn), "rank 0 of 1")
	assert.Contains(t, string(drawn), "%")
	assert.Contains(t, stdout.String(), "rank 0: 1 file, 40 MiB verified\n")
	assert.NotContains(t, stdout.String(), "\r")

	stdout.Reset()
	cmd = nvmecr("main", "verify", "--target", target)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run())
	assert.Empty(t, stderr.String())
	assert.Contains(t, stdout.String(), "all data matches its checksums\n")
}

// TestVerifiedUntilDamage checks that a store in which a verification found damage is no longer recorded as verified.
func TestVerifiedUntilDamage(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir, err := store.OpenStateDir("melt")
	require.NoError(t, err)
	o := &verifyOptions{reader: reader{cfg: config.Default(), rank: allRanks}}
	require.NoError(t, o.cfg.Set("name", "melt"))
	require.NoError(t, dir.Record(o.cfg, true))
	require.NoError(t, o.conclude(io.Discard, &verifyReport{}, time.Now()))
	require.False(t, dir.Verified().IsZero())
	require.Error(t, o.conclude(io.Discard, &verifyReport{Damaged: 1}, time.Now()))
	require.True(t, dir.Verified().IsZero())
}
