package apps

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// A killed is a save that is killed, and what is loaded then.
type killed struct {
	at     string // options of the save
	load   string // options of the load
	loaded []int  // steps that may be the newest complete one then; nil: nothing is loaded before the next kill
}

// trainings are stand-ins for training frameworks (testdata/training). Each one saves three steps, and then a fourth one.
var trainings = []struct {
	kind    string
	options string // of saves and loads
	nodes   int    // of the four ranks that save
	restart string // a kill, after which the agents restart the ranks in the same run
	kills   []killed
}{
	{"dcp", "writer=fork threads=2 late=1", 1, "", []killed{
		{"kill=data", "", nil}, {"kill=metadata", "", []int{3}}, {"kill=rename", "", nil}, {"kill=tracker again=1", "", []int{4}}}},
	{"dcp", "writer=thread threads=1", 2, "kill=data", nil},
	{"zero", "format=save", 1, "", []killed{{"kill=data", "elastic=1", []int{3}}}},
	{"zero", "format=fast block=65536 local=1", 2, "", []killed{{"kill=window", "elastic=1", []int{3}}}},
	// The child of the killed rank may complete the step, and another rank may have copies of its data.
	{"local", "writer=spawn clique=2", 1, "", []killed{{"kill=parent", "lose=2 left=3,4", []int{3, 4}}}},
	{"local", "writer=thread clique=2", 2, "kill=data", nil},
	{"tree", "", 2, "", []killed{{"kill=agent", "", []int{3}}, {"kill=data", "", []int{4}}}},
}

// TestTraining makes the file calls of training frameworks: 4 ranks save three steps, in a local directory and in the tree of a job, and
// others load the last one. Then a rank is killed at each of several points of the next step, and another number of ranks loads the newest
// complete one.
func TestTraining(t *testing.T) {
	for _, c := range trainings {
		t.Run(c.kind+" "+c.options, func(t *testing.T) {
			need(t, python, "g++")
			s := newStage(t)
			options := strings.Fields(c.options)
			if c.kind == "zero" {
				options = append(options, "direct="+direct(t, s))
			}
			alikeInTree(t, s, "", whole, func(dir string) [][]string {
				return [][]string{agents(t, s, c.nodes, 4, 0, c.kind, dir, append([]string{"save", "1", "3"}, options...)...),
					agents(t, s, 1, 2, 0, c.kind, dir, append([]string{"load"}, options...)...)}
			})
			for i, k := range c.kills {
				save := append(append([]string{"save", "4", "4"}, options...), strings.Fields(k.at)...)
				killed := runs(t, s, append(s.RunFlags("tree"), agents(t, s, c.nodes, 4, 0, c.kind, mount, save...)...)...)
				require.Error(t, killed.err)
				if c.kind == "zero" {
					latest := runs(t, s, s.Nvmecr, "latest", "--name", "tree", "global_step{step}/**")
					assert.Equal(t, "3\n", latest.stdout, "the file latest says 4: %s", latest.stderr)
				}
				if k.loaded == nil {
					continue
				}
				load := append(append([]string{"load"}, options...), strings.Fields(k.load)...)
				loaded := runs(t, s, append(s.RunFlags("tree"), agents(t, s, 1, []int{2, 3, 4, 8}[i], 0, c.kind, mount, load...)...)...)
				require.NoError(t, loaded.err, "after %s", k.at)
				assert.Contains(t, k.loaded, step(t, loaded.stdout), "after %s", k.at)
			}
			if c.restart != "" {
				save := append(append([]string{"save", "4", "5"}, options...), c.restart)
				restarted := runs(t, s, append(s.RunFlags("tree"), agents(t, s, c.nodes, 4, 1, c.kind, mount, save...)...)...)
				require.NoError(t, restarted.err)
				loaded := runs(t, s, append(s.RunFlags("tree"), agents(t, s, 1, 8, 0, c.kind, mount, append([]string{"load"}, options...)...)...)...)
				require.NoError(t, loaded.err)
				assert.Equal(t, 5, step(t, loaded.stdout))
			}
		})
	}
}

// large makes TestLargeTensor run.
var large = flag.Bool("large", false, "run TestLargeTensor, which writes 2.3 GiB")

// TestLargeTensor saves a tensor by calls that write more than the 2 GiB that a call of Linux can write, and loads it by another rank.
func TestLargeTensor(t *testing.T) {
	if !*large {
		t.Skip("it writes 2.3 GiB: go test ./test/apps -run TestLargeTensor -large")
	}
	need(t, python)
	s := newStage(t)
	for _, what := range []string{"save 1 1 writer=thread threads=1", "load"} {
		line := agents(t, s, 1, 2, 0, "dcp", mount, append(strings.Fields(what), "large=1")...)
		require.NoError(t, runs(t, s, append(s.RunFlags("tree", "--view=job"), line...)...).err)
	}
	require.NoError(t, runs(t, s, s.Nvmecr, "verify", "--name", "tree").err)
}

// agents returns a command line that starts the agents of all nodes (testdata/training/elastic.py), with ranks in total.
func agents(t *testing.T, s *demo.Stage, nodes, ranks, restarts int, kind, dir string, more ...string) []string {
	address, err := os.CreateTemp(s.Dir, "address")
	require.NoError(t, err)
	require.NoError(t, address.Close())
	require.NoError(t, os.Remove(address.Name())) // the agent of node 0 creates it
	line := append([]string{source(t, "training/"+kind+"_sim.py"), dir}, more...)
	agent := fmt.Sprintf("%s %s nodes=%d meet=%s ranks=%d restarts=%d",
		python, source(t, "training/elastic.py"), nodes, address.Name(), ranks/nodes, restarts)
	script := ""
	for node := 1; node < nodes; node++ {
		script += fmt.Sprintf(`%s node=%d "$@" & `, agent, node)
	}
	return append([]string{"sh", "-c", script + agent + ` "$@"; r=$?; wait; exit $r`, "sh"}, line...)
}

// direct builds the native part of zero_sim.py, over libaio where it is installed. It has no header here.
func direct(t *testing.T, s *demo.Stage) string {
	library := filepath.Join(s.Dir, "direct.so")
	build := []string{"-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source(t, "training/direct.cc")}
	if out, err := exec.Command("g++", append(build, "-DLIBAIO", "-l:libaio.so.1")...).CombinedOutput(); err != nil {
		t.Logf("libaio is not installed: its system calls are made: %s", out)
		out, err = exec.Command("g++", build...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return library
}

// step returns the step that a load printed.
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
