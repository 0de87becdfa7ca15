package apps

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// TestTraining does what training frameworks do to files (testdata/training.py): 4 ranks save three steps, a rank is killed in
// the middle of the fourth, and 2 and 3 ranks load the newest that is whole.
func TestTraining(t *testing.T) {
	need(t, "mpirun.openmpi", python, "python:mpi4py")
	for _, c := range []struct{ kind, writer string }{
		{"dcp", "fork"}, {"dcp", "spawn"}, {"zero", "thread"}, {"local", "fork"}, {"stage", "thread"},
	} {
		t.Run(c.kind+" "+c.writer, func(t *testing.T) {
			s := newStage(t)
			line := func(ranks int, dir string, more ...string) []string {
				return demo.MPIRun("mpirun.openmpi", ranks, append([]string{python, source(t, "training.py"), c.kind, dir}, more...)...)
			}
			alikeInTree(t, s, "", whole, func(dir string) (all [][]string) {
				for step := 1; step <= 3; step++ {
					all = append(all, line(4, dir, "save", strconv.Itoa(step), c.writer))
				}
				return append(all, line(2, dir, "load"))
			})
			killed := runs(t, s, append(s.RunFlags("tree"), line(4, mount, "save", "4", c.writer, "kill")...)...)
			require.Error(t, killed.err)
			for _, ranks := range []int{3, 2} {
				loaded := runs(t, s, append(s.RunFlags("tree"), line(ranks, mount, "load")...)...)
				require.NoError(t, loaded.err)
				// The others may have whole copies of what the killed rank has saved.
				assert.Contains(t, []string{"load 3\n", map[bool]string{true: "load 4\n"}[c.kind == "local"]}, loaded.stdout)
			}
		})
	}
}

// TestTorchrun trains in parallel under torchrun (testdata/ddp.py): what rank 0 saves all load, with other numbers of workers and after a kill.
func TestTorchrun(t *testing.T) {
	need(t, "torchrun", python, "python:torch")
	s := newStage(t)
	line := func(workers int, dir string, more ...string) []string {
		// Debian's torch 1.13 with Python 3.11 takes no default for these two; there is no worker 9.
		return append([]string{"torchrun", "--redirects=9:3", "--tee=9:3", "--standalone", "--nproc_per_node=" + strconv.Itoa(workers), source(t, "ddp.py"), dir}, more...)
	}
	alikeInTree(t, s, "", whole, func(dir string) (all [][]string) {
		for _, workers := range []int{2, 3} {
			all = append(all, line(workers, dir, "10"))
		}
		return all
	})
	require.Error(t, runs(t, s, append(s.RunFlags("tree"), line(2, mount, "10", "die")...)...).err)
	r := runs(t, s, s.Nvmecr, "latest", "--name", "tree", "step-{step}/**")
	require.NoError(t, r.err)
	assert.Equal(t, "25\n", r.stdout, "30 is cut short")
	r = runs(t, s, append(s.RunFlags("tree"), line(1, mount, "3")...)...)
	require.NoError(t, r.err)
}
