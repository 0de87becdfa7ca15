package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestInstall checks that an installation below DESTDIR works there, and refers to PREFIX.
func TestInstall(t *testing.T) {
	s := newStage(t)
	dest := filepath.Join(s.Dir, "package")
	// Install the present bin/: this is no test of the build.
	out, err := exec.Command("make", "-C", "../..", "--old-file=all", "install", "PREFIX=/opt/nvmecr", "DESTDIR="+dest).CombinedOutput()
	require.NoError(t, err, string(out))
	root := filepath.Join(dest, "opt/nvmecr")
	for _, name := range []string{"bin/nvmecr-bench", "bin/nvmecr-bench-rank", "lib/nvmecr/libnvmecr.so", "lib/nvmecr/libnvmecr-plain.so", "lib/nvmecr/slurm/nvmecr-hook.sh"} {
		assert.FileExists(t, filepath.Join(root, name))
	}
	unit, err := os.ReadFile(filepath.Join(root, "lib/nvmecr/slurm/nvmecr-reconcile.service"))
	require.NoError(t, err)
	assert.Contains(t, string(unit), "ExecStart=/opt/nvmecr/bin/nvmecr slurm reconcile\n")

	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "file"), []byte("kept"), 0o600))
	// The preload library is found from the installed program, and the hook finds that program, too.
	said := command(t, s, []string{"NVMECR_FUSE=off"}, filepath.Join(root, "bin/nvmecr")+" run --size 64M -- cp "+filepath.Join(s.Dir, "file")+" /nvmecr/file")
	assert.Regexp(t, `1 file of \d+ B new or changed`, said.stderr)
	said = command(t, s, []string{"SLURM_SCRIPT_CONTEXT=prolog_task", "SLURM_JOB_ID=none"}, filepath.Join(root, "lib/nvmecr/slurm/nvmecr-hook.sh"))
	assert.Contains(t, said.stderr, "Slurm calls this")
}
