package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// meltSteps is the number of steps of the melt.
const meltSteps = 1000

// writeMelt writes the LAMMPS input of the demonstration, with a small box, to a directory. After each hundred steps LAMMPS waits while a
// file names that step.
func writeMelt(t *testing.T, dir string) {
	text, err := os.ReadFile("../../internal/demo/melt.in")
	require.NoError(t, err)
	body, ok := strings.CutSuffix(string(text), "run          ${steps} upto\n")
	require.True(t, ok)
	head := fmt.Sprintf("variable cells index 8\nvariable every index 100\nvariable steps index %d\nvariable now equal step\n", meltSteps)
	body = head + body + "run ${steps} upto every ${every} \"shell sh wait.sh ${now}\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "melt.in"), []byte(body), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "wait.sh"), []byte("while [ \"$1\" = \"$(cat waits)\" ]; do sleep 0.1; done\n"), 0o644))
}

// waitAt makes the melt wait at a step; "" at none.
func waitAt(t *testing.T, dir, step string) {
	path := filepath.Join(dir, "waits")
	require.NoError(t, os.WriteFile(path+".new", []byte(step), 0o644))
	require.NoError(t, os.Rename(path+".new", path))
}

// thermo matches a line of LAMMPS's output with the values of a step.
var thermo = regexp.MustCompile(`(?m)^ +(\d+)((?: +-?\d[\d.e+-]*){5}) *$`)

// compareMelt checks that each line of values is in the reference, and that the last step exists. It returns the last line.
func compareMelt(t *testing.T, reference, text string) (last string) {
	want := make(map[string]string)
	for _, m := range thermo.FindAllStringSubmatch(reference, -1) {
		want[m[1]] = m[2]
	}
	require.Contains(t, want, fmt.Sprint(meltSteps), reference)
	for _, m := range thermo.FindAllStringSubmatch(text, -1) {
		require.Equal(t, want[m[1]], m[2], "step %s", m[1])
		last = strings.Join(strings.Fields(m[0]), " ")
	}
	require.True(t, strings.HasPrefix(last, fmt.Sprint(meltSteps)), last)
	return last
}

// TestSlurmMelt submits LAMMPS. A node is lost, and Slurm starts the job again. Then a target is lost for good, and the user submits the
// job again. The values are those of an undisturbed run.
func TestSlurmMelt(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("lmp"); err != nil {
		t.Skip("LAMMPS (lmp) is not installed: make deps")
	}
	c := newSlurmCluster(t)
	say := func(format string, args ...any) { fmt.Fprintf(t.Output(), format+"\n\n", args...) }
	writeMelt(t, c.Dir)
	waitAt(t, c.Dir, "")
	still, err := c.Start(demo.MPIRun("mpirun.openmpi", 4, "lmp", "-in", "melt.in", "-log", "none", "-var", "dir", c.Dir, "-var", "from", "0"), c.env...)
	require.NoError(t, err)
	require.NoError(t, still.Wait(t.Context()))
	say("1. LAMMPS, Lennard-Jones melt of 2048 atoms on 4 ranks, %d steps, without nvmecr: done. It is what the job is compared with.", meltSteps)

	waitAt(t, c.Dir, "200")
	const timeout = "NVMECR_TIMEOUT=15s"
	id := c.submitPage("quickstart-cluster.md", "melt.sbatch", timeout)
	says(t, c.Stage, "melt.out", "Step Temp")
	node := c.batchHost(id)
	c.awaitStep(node, id, "melt.{step}.*", 200)
	name := "slurm-u65534-melt"
	say("2. sbatch melt.sbatch: job %s runs on %s, with a checkpoint each 100 steps to targets %s.\n   Cluster: cn1, cn2, st1 in rack 1; cn3, cn4, st2 in rack 2.",
		id, c.job(id, "NodeList"), strings.Join(c.lease(name).Targets, " and "))
	waitAt(t, c.Dir, "600")
	node.Cut()
	from := c.started(1)
	assert.Equal(t, "200", from)
	c.awaitCopies(id, "600")
	say("3. Host %s is cut off from the network, with the script and two ranks. Slurm has queued the job again and started it on %s, from step %s.\n   Its checkpoint of step 600 is on both targets.",
		node.Name, c.job(id, "NodeList"), from)

	lost := c.lease(name).Targets[0]
	c.Host(lost).Kill()
	waitAt(t, c.Dir, "")
	eventually(t, func() bool { return c.job(id, "JobState") == "FAILED" }, "the end of the job")
	say("4. Host %s with its target and all that was on it is gone for good. The job has waited for it, and failed.", lost)
	c.serve("st3")
	health := map[string]string{"st1": "ok", "st2": "ok", "st3": "ok"}
	health[lost] = "failed"
	c.inventory(health)
	node.Join()
	again := c.submitPage("quickstart-cluster.md", "melt.sbatch", timeout)
	from = c.started(2)
	assert.Equal(t, "600", from)
	text := says(t, c.Stage, "melt.out", "Total wall time")
	targets := c.lease(name).Targets
	assert.NotContains(t, targets, lost)
	say("5. The administrator calls it failed in the inventory, and adds st3. sbatch melt.sbatch: job %s has targets %s,\n   has copied back what was lost, and went on from step %s.",
		again, strings.Join(targets, " and "), from)
	say("6. All numbers of all three starts are those of the undisturbed run, to the last digit. The last line:\n   %s", compareMelt(t, strings.Join(still.Stdout.Lines(), "\n"), text))
}

// started waits for the n-th start of LAMMPS from a restart file in the job, and returns its step.
func (c *slurmCluster) started(n int) (step string) {
	pattern := regexp.MustCompile(`(?s)Reading restart file.*?Current step +: (\d+)\n`)
	eventually(c.t, func() bool {
		out, _ := os.ReadFile(filepath.Join(c.Dir, "melt.out"))
		all := pattern.FindAllStringSubmatch(string(out), -1)
		if len(all) == n {
			step = all[n-1][1]
		}
		return step != ""
	}, "a start from a checkpoint")
	return step
}

// awaitCopies waits for copies of a checkpoint.
func (c *slurmCluster) awaitCopies(id, step string) {
	node, copied := c.batchHost(id), regexp.MustCompile(`(?m)^melt\S+ +`+step+` .* store, copies `)
	eventually(c.t, func() bool {
		out, _ := c.inJob(node, id, c.Nvmecr, "checkpoints")
		return copied.MatchString(out)
	}, "copies")
}
