package demo

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/proc"
)

// TestStageLeavesNothing kills a job that runs under its own launcher, and checks that nothing is left.
func TestStageLeavesNothing(t *testing.T) {
	if _, err := exec.LookPath("mpirun.openmpi"); err != nil {
		t.Skip("OpenMPI (mpirun.openmpi) is not installed: make deps")
	}
	stage, err := NewStage("unused")
	require.NoError(t, err)
	job, err := stage.Start(MPIRun("mpirun.openmpi", 2, "sh", "-c", "echo up; sleep 1000"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(job.Stdout.Lines()) == 2 }, 5*time.Minute, time.Millisecond)

	n, err := stage.Kill()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, n, 3, "mpirun and two shells at least")
	assert.ErrorContains(t, job.Wait(t.Context()), "killed")
	require.NoError(t, stage.Close())
	assert.NoDirExists(t, stage.Dir)
	assert.NoDirExists(t, stage.shm)
	assert.Empty(t, proc.WithEnv(token, stage.id))
}
