package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer/site"
)

func script(name, text string) site.Target {
	return site.Target{Name: name, Admin: []string{"sh", "-c", text}}
}

// TestSilentTarget checks that a target which never answers delays the caller by one command only, and other targets
// not at all.
func TestSilentTarget(t *testing.T) {
	c := &Commands{limit: 50 * time.Millisecond}
	_, err := c.List(t.Context(), script("a", "sleep 5; echo []"))
	require.ErrorIs(t, err, ErrSilent)
	require.ErrorContains(t, err, "target a: ")
	asked := filepath.Join(t.TempDir(), "asked")
	require.ErrorIs(t, c.Delete(t.Context(), script("a", "touch "+asked), "x"), ErrSilent)
	assert.NoFileExists(t, asked)
	c.limit = 0
	names, err := c.List(t.Context(), script("b", `sleep 5 & echo '[{"job":"x"}]'`))
	require.NoError(t, err, "what ssh leaves behind for the next one has its output")
	assert.Equal(t, []string{"x"}, names)
	_, err = c.List(t.Context(), script("c", "echo no key >&2; exit 3"))
	require.ErrorContains(t, err, "exit status 3: no key")
}

// TestHookScript checks the exit status of the script: Slurm takes a node out of service if its Prolog or Epilog
// fails, and requeues a job if its PrologSlurmctld fails.
func TestHookScript(t *testing.T) {
	text, err := os.ReadFile("etc/nvmecr-hook.sh")
	require.NoError(t, err)
	for name, nvmecr := range map[string]string{"killed": "kill -9 $$", "wrong setting": "exit 2", "no program": "", "works": "exit 0"} {
		dir := filepath.Join(t.TempDir(), "a", "b", "c", "d")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		hook := filepath.Join(dir, "hook.sh")
		require.NoError(t, os.WriteFile(hook, text, 0o755))
		if nvmecr != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "nvmecr"), []byte("#!/bin/sh\n"+nvmecr+"\n"), 0o755))
		}
		for context, may := range map[string]bool{"prolog_slurmctld": true, "epilog_slurmctld": true, "prolog_slurmd": false, "epilog_slurmd": false, "prolog_task": false} {
			cmd := exec.Command(hook)
			cmd.Env = append(os.Environ(), "SLURM_SCRIPT_CONTEXT="+context)
			out, err := cmd.CombinedOutput()
			assert.Equal(t, may && name != "works", err != nil, "%s, nvmecr %s: %s", context, name, out)
		}
	}
}
