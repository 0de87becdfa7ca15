package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Jobs ask for space, and use it, in all the ways that there are.
func TestSlurmAsked(t *testing.T) {
	t.Parallel()
	c := newSlurmCluster(t)
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
	for name, tt := range map[string]struct {
		env     string
		command string   // options of sbatch, and then the script, or srun
		want    []string // in its output
		fails   bool
	}{
		"GRES":          {command: `--gres=nvmf:2|echo "targets: $NVMECR_TARGET"`, want: []string{"targets: .*;.*slurm-j"}},
		"comment":       {command: `--comment=nvmf:1,capacity=32M|echo "targets: $NVMECR_TARGET"`, want: []string{"targets: [^;]*slurm-j[^;]*\n"}},
		"nothing":       {command: `--comment=other|echo "targets: $NVMECR_TARGET"`, want: []string{`^targets: \n?$`}},
		"array":         {command: `--array=1-2 --open-mode=append --comment=nvmf:1,capacity=32M|[ "$NVMECR_NAME" = slurm-j$SLURM_JOB_ID ] && echo its own`, want: []string{`(?s)its own\n.*its own\n`}},
		"srun":          {command: nodes + two + "|srun ./app --from 0", want: []string{done}},
		"mpirun":        {command: nodes + two + "|mpirun -n 4 ./app --from 0", want: []string{done}},
		"nvmecr run":    {command: nodes + two + "|nvmecr run -- srun ./app --from 0", want: []string{done, `at /nvmecr: joined job "slurm-\d+.0.batch"\n`}},
		"another view":  {command: two + "|nvmecr run --view=rank -- srun ./app", want: []string{`--view=rank: job "slurm-\d+.0.batch" has store`}, fails: true},
		"srun alone":    {command: "srun " + nodes + two + " ./app --from 0", want: []string{done}},
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

// neverGiven has a job ask for more than all targets have: Slurm does not try it again and again, and says why.
func neverGiven(t *testing.T, c *slurmCluster) {
	id, err := c.on("ctl", "sbatch", "--parsable", "--checkpoint=nvmf:2,capacity=9T", "--wrap", "true")
	require.NoError(t, err)
	var job string
	eventually(t, func() bool {
		job, _ = c.on("ctl", "scontrol", "show", "job", id)
		return strings.Contains(job, "Reason=job_requeued_in_held_state")
	}, "a job that is held")
	assert.Contains(t, job, "AdminComment=nvmecr: 2 targets are wanted, and 0 of 2 can be had")
	_, err = c.on("ctl", "scancel", id)
	require.NoError(t, err)
}
