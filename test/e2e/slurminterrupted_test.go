package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// batch submits a job of two ranks with space on two targets, and returns its id.
func (c *slurmCluster) batch(script string, options ...string) string {
	line := append([]string{"sbatch", "--parsable", "--checkpoint=nvmf:2,capacity=512M", "--ntasks=2", "--requeue", "--open-mode=append", "--output=%j.out"}, options...)
	id, err := c.on("ctl", append(line, "--wrap", script)...)
	require.NoError(c.t, err)
	return id
}

// control runs scontrol.
func (c *slurmCluster) control(args ...string) {
	c.t.Helper()
	_, err := c.on("ctl", append([]string{"scontrol"}, args...)...)
	require.NoError(c.t, err)
}

// freed checks that nothing is left of any job after Reconcile.
func (c *slurmCluster) freed() {
	c.t.Helper()
	eventually(c.t, func() bool {
		_, err := c.admin("reconcile", "--grace=1s")
		require.NoError(c.t, err)
		return len(c.leases()) == 0
	}, "space that is free again")
}

// TestSlurmInterrupted checks that jobs continue, or leave nothing behind, after interruptions of jobs and of the controller.
func TestSlurmInterrupted(t *testing.T) {
	t.Parallel()
	c := newSlurmCluster(t)
	t.Run("writes from a lost node", c.lateWrite)
	t.Run("requeued with another number of nodes", c.requeuedOnFewer)
	t.Run("controller stopped under a job", c.controllerStopped)
	t.Run("cancelled while its space is made", c.cancelledInProlog)
	t.Run("controller stopped while space is made", c.stoppedInProlog)
	t.Run("heterogeneous", c.heterogeneous)
}

// requeuedOnFewer requeues a job of two nodes on one node, with as many ranks.
func (c *slurmCluster) requeuedOnFewer(t *testing.T) {
	id := c.batch("APP_STAYS=600 exec sh steps.sh", "--nodes=2")
	eventually(t, func() bool { return c.job(id, "JobState") == "RUNNING" }, "the first start")
	c.awaitStep(c.batchHost(id), id, "ckpt.{step}.*", 500)
	c.control("requeuehold", id)
	eventually(t, func() bool { return c.job(id, "Reason") == "job_requeued_in_held_state" }, "the end of the first start")
	c.control("update", "JobId="+id, "NumNodes=1-1")
	c.control("release", id)
	text := says(t, c.Stage, id+".out", "app: done")
	assert.Regexp(t, `(?s)app: 2 ranks, from step 0\n.*app: 2 ranks, from step 500\n.*app: done`, text)
	assert.Equal(t, c.job(id, "BatchHost"), c.lease("slurm-j"+id).Nodes)
	c.freed()
}

// controllerStopped stops slurmctld while a job runs. Nothing of the job is freed while it is unknown whether the job has ended.
func (c *slurmCluster) controllerStopped(t *testing.T) {
	id := c.batch(`srun sh -c 'f=/nvmecr/f.$SLURM_PROCID; echo kept by $SLURM_PROCID >$f; touch wrote.$SLURM_PROCID; while [ ! -e go ]; do sleep 0.1; done; cat $f'`)
	for _, name := range []string{"wrote.0", "wrote.1"} {
		eventually(t, func() bool { return exists(filepath.Join(c.Dir, name)) }, "a file of a rank")
	}
	c.endController()
	_, err := c.admin("reconcile", "--grace=0s")
	require.Error(t, err, "the controller is away")
	c.startController(id)
	_, err = c.admin("reconcile", "--grace=0s")
	require.NoError(t, err)
	assert.Equal(t, "in use", c.lease("slurm-j"+id).State)
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "go"), nil, 0o644))
	eventually(t, func() bool { return c.job(id, "JobState") == "COMPLETED" }, "the end of the job")
	text := says(t, c.Stage, id+".out", "kept by 1")
	assert.Contains(t, text, "kept by 0")
	c.freed()
}

// cancelledInProlog cancels a job whose PrologSlurmctld waits for a target.
func (c *slurmCluster) cancelledInProlog(t *testing.T) {
	c.signal(c.targets["st1"], syscall.SIGSTOP)
	id := c.batch("echo started")
	eventually(t, func() bool { return len(c.stored()) == 1 }, "a lease")
	_, err := c.on("ctl", "scancel", id)
	require.NoError(t, err)
	c.signal(c.targets["st1"], syscall.SIGCONT)
	eventually(t, func() bool { return c.job(id, "JobState") == "CANCELLED" }, "the end of the job")
	c.freed()
	assert.NoFileExists(t, filepath.Join(c.Dir, id+".out"))
	out, err := c.admin("check")
	require.NoError(t, err)
	assert.Contains(t, out, "all namespaces of the targets are leased")
}

// endController ends slurmctld after it has saved its state. Then it is killed, since it may hang after it has ended a hook.
func (c *slurmCluster) endController() {
	known, begin := filepath.Join(c.Dir, "slurm", "state", "job_state"), time.Now()
	c.signal(c.controller, syscall.SIGTERM)
	eventually(c.t, func() bool {
		info, err := os.Stat(known)
		return err == nil && info.ModTime().After(begin)
	}, "what the controller keeps")
	if pid, err := childOf(c.controller.PID()); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	_ = c.controller.Wait(c.t.Context()) // returns an error: killed
}

// startController starts slurmctld, and waits until it knows a job.
func (c *slurmCluster) startController(id string) {
	c.controller = c.daemon("ctl", "slurmctld", "-D")
	eventually(c.t, func() bool {
		_, err := c.on("ctl", "scontrol", "show", "job", id)
		return err == nil
	}, "the controller")
}

// stoppedInProlog stops slurmctld while the PrologSlurmctld of a job waits for a target. The job starts nevertheless.
func (c *slurmCluster) stoppedInProlog(t *testing.T) {
	c.signal(c.targets["st1"], syscall.SIGSTOP)
	id := c.batch("srun sh -c 'echo kept > /nvmecr/f; cat /nvmecr/f'")
	eventually(t, func() bool { return len(c.stored()) == 1 }, "a lease")
	c.endController()
	c.startController(id)
	c.signal(c.targets["st1"], syscall.SIGCONT)
	says(t, c.Stage, id+".out", "kept")
	eventually(t, func() bool { return c.job(id, "JobState") == "COMPLETED" }, "the end of the job")
	c.freed()
}

// lateWrite cuts off a node on which a process of the job survives all that Slurm ends. The job is started on another node. When the
// first node is back, writes of the process fail.
func (c *slurmCluster) lateWrite(t *testing.T) {
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "late.py"), []byte(orphan+lateRank), 0o644))
	id := c.batch(`[ $SLURM_RESTART_COUNT ] || exec srun python3 late.py wake
exec srun sh -c 'cat /nvmecr/late.0; echo next >/nvmecr/late.0; echo written; while [ ! -e over ]; do sleep 0.1; done; cat /nvmecr/late.0'`,
		"--ntasks=1", "--export=ALL,NVMECR_VIEW=rank,NVMECR_TIMEOUT=10s")
	eventually(t, func() bool { return c.job(id, "JobState") == "RUNNING" }, "the first start")
	lost := c.batchHost(id)
	outcome := filepath.Join(c.Dir, "wake."+lost.Name)
	eventually(t, func() bool { return exists(outcome) }, "what the first start writes in time")
	lost.Cut()
	assert.Regexp(t, `(?m)^in time\n`, says(t, c.Stage, id+".out", "written"))
	lost.Join()
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "wake"), nil, 0o644))
	eventually(t, func() bool { return exists(outcome + ".end") }, "what comes of the late write")
	b, err := os.ReadFile(outcome + ".end")
	require.NoError(t, err)
	assert.Equal(t, "Input/output error", string(b))
	require.NoError(t, os.WriteFile(filepath.Join(c.Dir, "over"), nil, 0o644))
	says(t, c.Stage, id+".out", "\nnext\n")
	c.freed()
}

// orphan runs the rest of the command line in a process that is not a child of the step any more, while the step continues.
const orphan = `
import os, time
if os.fork():
    os.wait()
    time.sleep(3600)
os.setsid()
if os.fork():
    os._exit(0)
os.environ["OMPI_COMM_WORLD_RANK"] = os.environ["SLURM_PROCID"]
`

// heterogeneous runs a step over two components, the first of which has space. Ranks of the other one get the message that they have
// none.
func (c *slurmCluster) heterogeneous(t *testing.T) {
	id := c.batch("srun --het-group=0,1 sh -c 'echo of rank $SLURM_PROCID > /nvmecr/f.$SLURM_PROCID; cat /nvmecr/f.$SLURM_PROCID'", "--ntasks=1", ":", "--ntasks=1", "--output=%j.out")
	eventually(t, func() bool { state := c.job(id, "JobState"); return state != "PENDING" && state != "RUNNING" }, "the end of the job")
	text := says(t, c.Stage, id+".out", "newest complete")
	assert.Regexp(t, `(?m)^of rank 0$`, text)
	assert.Contains(t, text, "nvmecr: rank 1: --dhchap-secret: open /run/nvmecr/"+id+"/key: no such file or directory")
	assert.NotContains(t, text, "of rank 1\n")
	c.freed()
}
