package apps

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// TestTraining makes the file calls of training frameworks (testdata/training.py): 4 ranks save three steps, then a rank is killed at
// each of several points of the next step, and another number of ranks loads the newest complete one.
func TestTraining(t *testing.T) {
	need(t, "mpirun.openmpi", python, "python:mpi4py")
	type kill struct {
		at     string
		loaded []int // steps that may be the newest complete one then; nil: before the next kill
	}
	for _, c := range []struct {
		kind, writer string
		kills        []kill
		last         string // load
	}{
		{"dcp", "fork", []kill{{"data", nil}, {"metadata", []int{3}}, {"tracker", []int{4}}}, "load"},
		{"dcp", "spawn", []kill{{"parent", []int{3}}}, "load"},
		{"zero", "thread", []kill{{"data", []int{3}}}, "load"},
		{"local", "fork", []kill{{"data", []int{3, 4}}}, "lose"}, // other ranks may have complete copies of the killed rank's data
		{"stage", "thread", []kill{{"data", nil}, {"tracker", []int{3}}}, "load"},
	} {
		t.Run(c.kind+" "+c.writer, func(t *testing.T) {
			s := newStage(t)
			line := func(ranks int, dir string, more ...string) []string {
				return demo.MPIRun("mpirun.openmpi", ranks, append([]string{python, source(t, "training.py"), c.kind, dir}, more...)...)
			}
			alikeInTree(t, s, "", whole, func(dir string) [][]string {
				return [][]string{line(4, dir, "save", "1", "3", c.writer), line(2, dir, "load")}
			})
			for i, k := range c.kills {
				killed := runs(t, s, append(s.RunFlags("tree"), line(4, mount, "save", "4", "4", c.writer, k.at)...)...)
				require.Error(t, killed.err)
				if c.kind == "zero" {
					latest := runs(t, s, s.Nvmecr, "latest", "--name", "tree", "global_step{step}/**")
					assert.Equal(t, "3\n", latest.stdout, "the file latest says 4: %s", latest.stderr)
				}
				if k.loaded == nil {
					continue
				}
				load := "load"
				if i == len(c.kills)-1 {
					load = c.last
				}
				loaded := runs(t, s, append(s.RunFlags("tree"), line([]int{3, 2, 8}[i], mount, load)...)...)
				require.NoError(t, loaded.err, "after a kill at %s", k.at)
				assert.Contains(t, k.loaded, step(t, loaded.stdout), "after a kill at %s", k.at)
			}
		})
	}
}

// step returns the step that training.py has loaded.
func step(t *testing.T, said string) (n int) {
	_, err := fmt.Sscanf(said[strings.LastIndexByte(strings.TrimSpace(said), ' ')+1:], "%d", &n)
	require.NoError(t, err, said)
	return n
}

// TestTorchrun trains in parallel under torchrun (testdata/ddp.py): all ranks load the state that rank 0 has saved, with other numbers of
// workers and after a kill.
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
