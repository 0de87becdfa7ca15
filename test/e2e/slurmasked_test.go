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
)

// controlGroups returns settings by which Slurm tracks processes with control groups, if the machine has those that this Slurm supports
// without systemd.
func controlGroups(t *testing.T) (settings []string) {
	const freezer = "/sys/fs/cgroup/freezer"
	if !exists(freezer + "/cgroup.procs") {
		t.Log("The machine has no cgroup v1: processes of jobs are tracked by their parents.")
		return nil
	}
	t.Cleanup(func() {
		_ = exec.Command("find", freezer, "-mindepth", "1", "-depth", "-type", "d", "-path", freezer+"/slurm_cn*", "-exec", "rmdir", "{}", "+").Run() // Slurm does not remove them
	})
	return []string{"ProctrackType=proctrack/cgroup"}
}

// A job may replace its nvmecr, which then sends arbitrary data to slurmstepd, a process of root: much data, and the marker that it is
// ready.
const talkative = `#include <string.h>
#include <unistd.h>
static char much[1 << 20];
__attribute__((constructor)) static void say(int argc, char **argv)
{
	if (argc < 3 || strcmp(argv[1], "slurm") || strcmp(argv[2], "step"))
		return;
	memset(much, 'x', sizeof much);
	much[1] = '=';
	for (int i = 0; i < 32; i++)
		if (write(1, much, sizeof much) < 0)
			_exit(1);
	_exit(write(1, "\0ready", 7) < 0);
}
`

// compiled returns the library built from a C source.
func compiled(c *slurmCluster, source string) string {
	library := filepath.Join(c.Dir, "compiled.so")
	require.NoError(c.t, os.WriteFile(library+".c", []byte(source), 0o644))
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, library+".c").CombinedOutput()
	require.NoError(c.t, err, string(out))
	return library
}

// TestSlurmAsked requests and uses space in all possible ways.
func TestSlurmAsked(t *testing.T) {
	t.Parallel()
	c := newSlurmCluster(t, controlGroups(t)...)
	out, err := c.admin("check")
	require.NoError(t, err, out)
	assert.NotContains(t, out, "missing")
	const (
		two   = "--checkpoint=nvmf:2,capacity=512M"
		nodes = "--nodes=2 --ntasks=4 "
		done  = `(?s)from step 0\n.*app: done\n.*newest complete: /ckpt.1000.\*`
	)
	out, err = c.on("ctl", "sh", "-c", "sbatch --checkpoint=nvmf:two --wrap true 2>&1")
	require.Error(t, err)
	assert.Contains(t, out, "a number of targets from 1")
	neverGiven(t, c)
	neverGivenToOneTask(t, c)
	for name, tt := range map[string]struct {
		env     string
		command string   // options of sbatch, and then the script, or srun
		want    []string // text in its output
		fails   bool
	}{
		"GRES":          {command: `--gres=nvmf:2|echo "targets: $NVMECR_TARGET"`, want: []string{"targets: .*;.*slurm-j"}},
		"comment":       {command: `--job-name="x UserId=root(0) JobState=FAILED" --comment=nvmf:1,capacity=32M|echo "targets: $NVMECR_TARGET"`, want: []string{"targets: [^;]*slurm-j[^;]*\n"}},
		"nothing":       {command: `--comment=other|echo "targets: $NVMECR_TARGET"`, want: []string{`^targets: \n?$`}},
		"array":         {command: `--array=1-2 --open-mode=append --comment=nvmf:1,capacity=32M|[ "$NVMECR_NAME" = slurm-j$SLURM_JOB_ID ] && echo its own`, want: []string{`(?s)its own\n.*its own\n`}},
		"srun":          {command: nodes + two + ",copies=rs:1+1|echo $NVMECR_COPIES; srun ./app --from 0", want: []string{`rs:1\+1\n`, done}},
		"four nodes":    {command: "--nodes=4 --ntasks=8 " + two + "|srun ./app --from 0", want: []string{"8 ranks, from", done}},
		"mpirun":        {command: nodes + `--checkpoint=nvmf:1,capacity=512M,copies-sync|echo "targets: $NVMECR_TARGET"; mpirun -n 4 ./app --from 0`, want: []string{"targets: .*;.*slurm-j", done}},
		"nvmecr run":    {command: nodes + two + "|nvmecr run -- srun ./app --from 0", want: []string{done, `at /nvmecr: joined job "slurm-\d+.0.batch"\n`}},
		"another view":  {command: two + "|nvmecr run --view=rank -- srun ./app", want: []string{`--view=rank: job "slurm-\d+.0.batch" has store`}, fails: true},
		"srun alone":    {command: "srun " + nodes + two + " ./app --from 0", want: []string{done}},
		"too much said": {env: "LD_PRELOAD=" + compiled(c, talkative), command: "--checkpoint=nvmf:1,capacity=32M|echo started", want: []string{`^\n?$`}, fails: true},
		"wrong setting": {env: "NVMECR_VIEW=wrong", command: two + "|echo started", want: []string{"^nvmecr: NVMECR_VIEW: .*\n?$"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, script, batch := strings.Cut(tt.command, "|")
			file := strings.ReplaceAll(name, " ", "-") + ".out"
			line := fmt.Sprintf("exec %s >%s 2>&1", tt.command, file)
			if batch {
				line = fmt.Sprintf("exec sbatch --wait --output=%s %s --wrap '%s'", file, options, script)
			}
			job, err := c.Start(c.Host("ctl").In("sh", "-c", line), append(c.env, tt.env)...)
			require.NoError(t, err)
			err = job.Wait(t.Context())
			text, _ := os.ReadFile(filepath.Join(c.Dir, file))
			assert.Equal(t, tt.fails, err != nil, "%v: %s", err, text)
			for _, want := range tt.want {
				assert.Regexp(t, regexp.MustCompile(want), string(text))
			}
		})
	}
}

// neverGiven requests more space than all targets have: Slurm does not retry, and shows the reason.
func neverGiven(t *testing.T, c *slurmCluster) {
	id, err := c.on("ctl", "sbatch", "--parsable", "--checkpoint=nvmf:2,capacity=9T", "--wrap", "true")
	require.NoError(t, err)
	c.awaitHeld(id)
	_, err = c.on("ctl", "scancel", id)
	require.NoError(t, err)
}

// neverGivenToOneTask requests too much space for one task of an array, the one whose job id is the id of the array: that task is held,
// and the other one runs.
func neverGivenToOneTask(t *testing.T, c *slurmCluster) {
	id, err := c.on("ctl", "sbatch", "--parsable", "--hold", "--array=1-2", "--comment=nvmf:2,capacity=9T", "--wrap", "while [ ! -e held ]; do sleep 0.1; done; echo went on")
	require.NoError(t, err)
	for _, args := range [][]string{{"update", "JobId=" + id + "_1", "Comment=nvmf:1,capacity=32M"}, {"release", id + "_1"}} {
		_, err = c.on("ctl", append([]string{"scontrol"}, args...)...)
		require.NoError(t, err)
	}
	eventually(t, func() bool { return c.job(id+"_1", "JobState") == "RUNNING" }, "the first task")
	_, err = c.on("ctl", "scontrol", "release", id+"_2")
	require.NoError(t, err)
	require.Equal(t, id, c.job(id+"_2", "JobId"))
	c.awaitHeld(id + "_2")
	assert.Equal(t, "RUNNING", c.job(id+"_1", "JobState"))
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "held"), nil, 0o644))
	says(t, c.Stage, "slurm-"+id+"_1.out", "went on")
	_, err = c.on("ctl", "scancel", id)
	require.NoError(t, err)
}

// awaitHeld waits until a job is held with a reason.
func (c *slurmCluster) awaitHeld(id string) {
	var job string
	eventually(c.t, func() bool {
		job, _ = c.on("ctl", "scontrol", "show", "job", id)
		return strings.Contains(job, "Reason=job_requeued_in_held_state")
	}, "a job that is held")
	assert.Contains(c.t, job, "AdminComment=nvmecr: 2 targets are wanted, and 0 of 2 are available")
}
