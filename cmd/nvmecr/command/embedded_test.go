package command

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/nvmf/dhchap"
)

// TestEmbeddedKeys checks that the target can read the keys of the embedded target, which are in an anonymous file.
func TestEmbeddedKeys(t *testing.T) {
	const host = "nqn.2014-08.org.example:host"
	secret := dhchap.NewSecret(dhchap.SHA256)
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(secret.Reveal()), 0o600))
	f, err := embeddedKeys(&config.Config{HostNQN: host, Secret: path})
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	link := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	name, err := os.Readlink(link)
	require.NoError(t, err)
	assert.NoFileExists(t, name)
	keys, err := config.ReadKeys(link)
	require.NoError(t, err)
	require.Len(t, keys, 1)
	assert.Equal(t, secret.Reveal(), keys[host].Host.Reveal())
}
