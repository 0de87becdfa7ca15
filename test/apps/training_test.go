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
