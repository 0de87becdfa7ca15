package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestClaims checks that a benchmark removes directories of killed benchmarks, and keeps those that
// are in use or belong to other programs.
func TestClaims(t *testing.T) {
	parent := t.TempDir()
	others := filepath.Join(parent, "nvmecr-other")
	require.NoError(t, os.Mkdir(others, 0o700))
	alive, err := newClaim(parent)
	require.NoError(t, err)
	dead, err := newClaim(parent)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dead.path, "image"), []byte("x"), 0o600))
	require.NoError(t, dead.lock.Close(), "the lock is released, as if the process was killed")

	next, err := newClaim(parent)
	require.NoError(t, err)
	assert.NoDirExists(t, dead.path)
	assert.DirExists(t, alive.path)
	assert.DirExists(t, others)
	require.NoError(t, next.Close())
	require.NoError(t, alive.Close())
	left, err := os.ReadDir(parent)
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

// TestLockOfNothing checks the error if a directory was removed before it could be locked.
func TestLockOfNothing(t *testing.T) {
	dir := t.TempDir()
	_, err := lockDirectory(filepath.Join(dir, "none"), 0)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = newClaim(filepath.Join(dir, "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}
