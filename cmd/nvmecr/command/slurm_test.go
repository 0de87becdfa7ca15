package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSlurmPrologOfOtherJobs checks that errors of the inventory, or of a setting, do not delay jobs that request no space:
// PrologSlurmctld runs for all jobs of the cluster.
func TestSlurmPrologOfOtherJobs(t *testing.T) {
	dir := t.TempDir()
	inventory, squeue := filepath.Join(dir, "site.yaml"), filepath.Join(dir, "squeue")
	require.NoError(t, os.WriteFile(inventory, []byte("version: 1\ntargets: [{nam: a}]\n"), 0o600))
	require.NoError(t, os.WriteFile(squeue, []byte("#!/bin/sh\necho '7|1000|CONFIGURING|cn1|1|0|7|N/A|N/A|N/A|N/A|'\n"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scontrol"), []byte("#!/bin/sh\necho \"$@\" >>"+dir+"/told\n"), 0o755))
	for name, value := range map[string]string{"PATH": dir + ":" + os.Getenv("PATH"), "SLURM_JOB_ID": "7", "NVMECR_INVENTORY": inventory, "NVMECR_TOPOLOGY": os.DevNull, "NVMECR_STATE": dir,
		"SPANK_NVMECR_CHECKPOINT": ""} {
		t.Setenv(name, value)
	}
	run := func(hook string) error {
		root := newRoot()
		root.SetArgs([]string{"slurm", hook})
		return root.Execute()
	}
	for _, retain := range []string{"1d", "forever"} {
		t.Setenv("NVMECR_RETAIN", retain)
		for _, hook := range []string{"prolog-ctld", "epilog-ctld"} {
			require.NoError(t, run(hook), hook)
		}
		assert.NoFileExists(t, filepath.Join(dir, "told"))
	}
	t.Setenv("NVMECR_RETAIN", "1d")
	t.Setenv("SLURM_JOB_COMMENT", "nvmf:1 for run 7")
	require.ErrorContains(t, run("prolog-ctld"), "field nam not found")
	told, err := os.ReadFile(filepath.Join(dir, "told"))
	require.NoError(t, err)
	assert.Regexp(t, "^update JobId=7 AdminComment=nvmecr: .*field nam not found", string(told))
}
