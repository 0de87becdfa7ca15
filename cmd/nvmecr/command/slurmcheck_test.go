package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer/site"
	"nvmecr/slurm"
)

// What is wrong with an installation is said in the words of what to do.
func TestSlurmCheckState(t *testing.T) {
	dir := t.TempDir()
	open, file := filepath.Join(dir, "open"), filepath.Join(dir, "file")
	require.NoError(t, os.Mkdir(open, 0o755))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chmod(dir, 0o700))
	for state, remedy := range map[string]string{
		dir:                        "",
		open:                       "chmod 700",
		file:                       "no directory",
		filepath.Join(dir, "gone"): "make it",
	} {
		f := (&slurmOptions{state: state}).checkState()
		assert.Contains(t, f.Remedy, remedy)
		assert.Equal(t, remedy == "", f.State == findingOK, state)
	}
}

func TestSlurmCheckLeases(t *testing.T) {
	h := &slurm.Hooks{State: t.TempDir(), Inventory: &site.Inventory{Targets: []site.Target{{Name: "a", Admin: []string{"false"}}}}, Targets: slurm.Commands{}}
	f := checkOrphans(t.Context(), h)
	assert.Equal(t, findingPoor, f.State)
	assert.Equal(t, "target a: false list: exit status 1", f.Found)
}
