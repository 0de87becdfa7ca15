package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a killed benchmark has left goes when the next one starts; what is in
// use, or is somebody else's, stays.
func TestClaims(t *testing.T) {
	parent := t.TempDir()
	others := filepath.Join(parent, "nvmecr-other")
	require.NoError(t, os.Mkdir(others, 0o700))
	alive, err := newClaim(parent)
	require.NoError(t, err)
	dead, err := newClaim(parent)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dead.path, "image"), []byte("x"), 0o600))
	require.NoError(t, dead.lock.Close(), "as when its process is killed")

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

// A directory that was swept between its making and its locking is not used.
func TestLockOfNothing(t *testing.T) {
	dir := t.TempDir()
	_, err := lockDirectory(filepath.Join(dir, "none"), 0)
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = newClaim(filepath.Join(dir, "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}
