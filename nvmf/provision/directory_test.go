package provision

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOpenDirectory checks that OpenDirectory refuses a directory that other users can write to.
func TestOpenDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	for _, x := range []struct {
		mode   os.FileMode
		remedy string // empty if the directory is accepted
	}{
		{0o700, ""}, {0o755, ""},
		{0o775, "mode 0775"}, {0o702, "chmod go-w " + path}, {0o777 | os.ModeSticky, "mode 1777"},
	} {
		d, err := OpenDirectory(path)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		require.NoError(t, os.Chmod(path, x.mode))
		d, err = OpenDirectory(path)
		if x.remedy == "" {
			require.NoError(t, err)
			require.NoError(t, d.Close())
		} else {
			require.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, x.remedy)
		}
		require.NoError(t, os.Chmod(path, 0o700))
	}
	file := filepath.Join(path, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := OpenDirectory(file)
	require.Error(t, err)
	if os.Geteuid() != 0 {
		t.Skip("only root can change the owner of a directory")
	}
	require.NoError(t, os.Chown(path, 1234, -1))
	_, err = OpenDirectory(path)
	require.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "belongs to user 1234")
}
