package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
)

// TestTrainingOnHosts runs the stand-in for NVIDIA's resiliency extension (test/apps/testdata/training) on two nodes, by an agent on each, as
// torchrun does: each rank keeps one part, and nvmecr its copy. The agents restart the ranks of which one was killed. Then the host of
// a target is lost with its drive, and ranks on other nodes load the newest step.
func TestTrainingOnHosts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, config.ViewJob)
	namespace := "file:" + filepath.Join(c.Dir, "HOST.img") + "?size=256M"
	targets := c.serve(namespace)
	for _, run := range []struct {
		nodes []string
		line  string // options of the agents, and of the ranks
		said  string
	}{
		{[]string{"n1", "n2"}, "restarts=0 local_sim.py save 1 2", "save 2"},
		{[]string{"n1", "n2"}, "restarts=1 local_sim.py save 3 4 kill=data", "save 4"},
		{[]string{"n3", "n4"}, "restarts=0 local_sim.py load", "load 4"},
	} {
		if run.nodes[0] == "n3" {
			c.Host("t2").Kill()
			require.NoError(t, os.Remove(filepath.Join(c.Dir, "t2.img")))
			c.Host("t2").Boot()
			targets[1] = c.serveOn(1, namespace)[0]
		}
		_ = os.Remove(filepath.Join(c.Dir, "meet")) // that of the run before
		var jobs []*demo.Job
		for i, node := range run.nodes {
			flags := []string{"--name", "training", "--job-id", run.said, "--copies", "partner", "--target", targets[0], "--target", targets[1]}
			jobs = append(jobs, c.run(node, flags, c.elastic(i, run.nodes, run.line)))
		}
		for _, job := range jobs {
			require.NoError(t, job.Wait(t.Context()), run.line)
		}
		assert.Equal(t, []string{run.said}, jobs[0].Stdout.Lines())
		if run.nodes[0] == "n3" {
			assert.Contains(t, strings.Join(append(jobs[0].Stderr.Lines(), jobs[1].Stderr.Lines()...), "\n"), "copied back")
		}
	}
}

// elastic returns the command line of the agent of a node, with two ranks.
func (c *cluster) elastic(node int, nodes []string, line string) []string {
	dir, err := filepath.Abs("../apps/testdata/training")
	require.NoError(c.t, err)
	words := strings.Fields(line)
	argv := []string{python, filepath.Join(dir, "elastic.py"), fmt.Sprint("nodes=", len(nodes)), fmt.Sprint("node=", node), "meet=" + filepath.Join(c.Dir, "meet"),
		"address=" + c.Host(nodes[0]).Address, "ranks=2", words[0], filepath.Join(dir, words[1]), "/nvmecr"}
	return append(append(argv, words[2:]...), "writer=thread", "clique=1")
}
