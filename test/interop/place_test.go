//go:build interop

package interop

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/spdklib"
	"nvmecr/test/interop/guest"
)

// TestLongTemporaryDirectory checks that peers also start if paths of temporary files are longer than the name of a socket can be.
func TestLongTemporaryDirectory(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	require.NoError(t, os.Mkdir(long, 0o700))
	t.Setenv("TMPDIR", long)
	t.Run("guest", func(t *testing.T) {
		g := boot(t, guest.Options{Kernel: kernels(t)[0]})
		assert.Equal(t, "here\n", sh(t, g, "echo here"))
	})
	t.Run("SPDK", func(t *testing.T) {
		call(t, startProcess(t), "framework_wait_init", nil)
	})
}

// TestSPDKInGuest checks that a guest has the libraries of SPDK's programs, wherever pkg-config has found them.
func TestSPDKInGuest(t *testing.T) {
	program := spdkProgram(t, "nvmf_tgt")
	g := boot(t, guest.Options{Kernel: kernels(t)[0], Programs: []string{program}})
	assert.Contains(t, sh(t, g, "%s=%s %s --version", spdklib.Variable, os.Getenv(spdklib.Variable), program), "SPDK")
}
