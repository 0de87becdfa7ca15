package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
)

// TestBarrierOfHosts checks that MPI_Barrier orders the writes of ranks on two hosts to the same bytes of a file. See TestBarrier of test/apps.
func TestBarrierOfHosts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, config.ViewJob)
	program := filepath.Join(c.Dir, "barrier")
	out, err := exec.Command("mpicc.openmpi", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "../apps/testdata/barrier.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	targets := c.serve("mem:256M")
	flags := []string{"--name", "barrier", "--target", targets[0], "--target", targets[1]}
	for _, run := range []struct {
		on    []string
		ranks int
		what  string
	}{{[]string{"n1", "n2"}, 4, "write"}, {[]string{"n3", "n2"}, 3, "read"}} {
		job := c.run(run.on[0], flags, c.mpirun(run.on, run.ranks, program, "/nvmecr", run.what))
		require.NoError(t, job.Wait(t.Context()))
		assert.Equal(t, []string{run.what + " ok"}, job.Stdout.Lines())
	}
}
