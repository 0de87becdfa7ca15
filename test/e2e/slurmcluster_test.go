package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/test/hosts"
)

// A slurmCluster is Slurm on hosts of its own: the controller, two racks of two nodes, and in each rack a host with a target. The hooks
// are those of an installation. Jobs run as a user that is not root.
type slurmCluster struct {
	*demo.Stage
	*hosts.Network
	t          *testing.T
	env        []string
	controller *demo.Job
	targets    map[string]*demo.Job // by host
}

// slurmConf follows the settings that all clusters have in common.
const slurmConf = `SlurmctldHost=ctl(CTL)
SlurmUser=root
AuthInfo=cred_expire=5
SlurmdTimeout=5
MessageTimeout=5
TCPTimeout=1
TopologyPlugin=topology/tree
GresTypes=nvmf
StateSaveLocation=DIR/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=DIR/slurmctld.log
SlurmdLogFile=DIR/%n.log
PlugStackConfig=DIR/plugstack.conf
PrologFlags=Alloc
PrologSlurmctld=DIR/hook.sh
EpilogSlurmctld=DIR/hook.sh
Prolog=DIR/hook.sh
Epilog=DIR/hook.sh
TaskProlog=DIR/hook.sh
NodeName=st[1-3] State=DOWN Reason=storage
PartitionName=main Nodes=cn[1-4] Default=YES State=UP
`

// newSlurmCluster starts a cluster, with additional settings of slurm.conf.
func newSlurmCluster(t *testing.T, settings ...string) *slurmCluster {
	for _, program := range []string{"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun", "/usr/include/slurm/spank.h"} {
		if _, err := os.Stat(program); err != nil {
			t.Skipf("Slurm is not installed (%s): apt-get install slurmctld slurmd slurm-client libslurm-dev", program)
		}
	}
	s := newStage(t)
	dir := filepath.Join(s.Dir, "slurm")
	env := append(jobScripts(t, s, "openmpi"), "HOME="+s.Dir, "SLURM_CONF="+filepath.Join(dir, "slurm.conf"))
	c := &slurmCluster{Stage: s, t: t, env: slices.Clip(env), targets: make(map[string]*demo.Job)} // parallel tests append to it
	c.Network = hosts.New(t, s.Dir, "ctl", "cn1", "cn2", "cn3", "cn4", "st1", "st2", "st3")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "state"), 0o755))
	c.configure(dir, settings)
	c.serve("st1")
	c.serve("st2")
	c.controller = c.daemon("ctl", "slurmctld", "-D")
	for i := range 4 {
		c.daemon(fmt.Sprint("cn", i+1), "slurmd", "-D", "-N", fmt.Sprint("cn", i+1))
	}
	eventually(t, func() bool {
		out, err := c.on("ctl", "sinfo", "--noheader", "--Node", "--states=idle")
		return err == nil && strings.Count(out, "idle") == 4
	}, "nodes that are idle")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.log())
		}
	})
	return c
}

// configure writes what an administrator does.
func (c *slurmCluster) configure(dir string, settings []string) {
	spool := filepath.Join(dir, "spool")
	require.NoError(c.t, os.Mkdir(spool, 0o700))
	plugin := filepath.Join(dir, "nvmecr-spank.so")
	out, err := exec.Command("cc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o", plugin, "../../slurm/spank/nvmecr.c").CombinedOutput()
	require.NoError(c.t, err, string(out))
	common, err := os.ReadFile("testdata/slurm.conf")
	require.NoError(c.t, err)
	conf := strings.NewReplacer("DIR", dir, "CTL", c.Host("ctl").Address).Replace(string(common) + slurmConf)
	for i := range 4 {
		conf += fmt.Sprintf("NodeName=cn%d NodeAddr=%s CPUs=2 RealMemory=500 Gres=nvmf:4\n", i+1, c.Host(fmt.Sprint("cn", i+1)).Address)
	}
	conf += strings.Join(settings, "\n") + "\n"
	hook, err := filepath.Abs("../../slurm/etc/nvmecr-hook.sh")
	require.NoError(c.t, err)
	for name, text := range map[string]string{
		"slurm.conf":     conf,
		"cgroup.conf":    "CgroupPlugin=cgroup/v1\n", // for ProctrackType=proctrack/cgroup
		"gres.conf":      "NodeName=cn[1-4] Name=nvmf Count=4\n",
		"topology.conf":  "SwitchName=rack1 Nodes=cn[1-2],st1\nSwitchName=rack2 Nodes=cn[3-4],st[2-3]\nSwitchName=spine Switches=rack[1-2]\n",
		"plugstack.conf": "optional " + plugin + " " + c.Nvmecr + "\n",
		"hook.sh": fmt.Sprintf("#!/bin/sh\nexport NVMECR_CAPACITY=64M NVMECR_STATE=%s NVMECR_INVENTORY=%s/site.yaml NVMECR_TOPOLOGY=%[2]s/topology.conf SLURM_CONF=%[2]s/slurm.conf\n[ $SLURM_SCRIPT_CONTEXT = prolog_task ] || exec 2>>%[2]s/hook.$SLURM_SCRIPT_CONTEXT.log\nexec %[3]s\n",
			spool, dir, hook),
	} {
		require.NoError(c.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	c.inventory(map[string]string{"st1": "ok", "st2": "ok"})
}

// inventory writes the inventory with the health of the targets.
func (c *slurmCluster) inventory(health map[string]string) {
	dir, text := filepath.Join(c.Dir, "slurm"), "version: 1\ntargets:\n"
	for _, st := range slices.Sorted(maps.Keys(health)) {
		text += fmt.Sprintf("  - {name: %s, node: %[1]s, capacity: 2GiB, health: %s, admin: [%s, admin, --provisioner, 'nvmecr:%s/%[1]s.sock']}\n", st, health[st], c.Nvmecr, dir)
	}
	require.NoError(c.t, os.WriteFile(filepath.Join(dir, "site.yaml"), []byte(text), 0o644))
}

// serve starts the target of a host.
func (c *slurmCluster) serve(name string) {
	h := c.Host(name)
	job, err := c.Start(h.Root(c.Nvmecr, "target", "--listen", h.Address+":4420", "--admin", filepath.Join(c.Dir, "slurm", name+".sock"), "--pool", "mem:2G"))
	require.NoError(c.t, err)
	c.targets[name] = job
	eventually(c.t, func() bool { return len(job.Stderr.Lines()) > 0 || job.Ended() }, "the target's line")
	require.False(c.t, job.Ended(), "%v", job.Stderr.Lines())
}

// daemon starts a daemon on a host, as root.
func (c *slurmCluster) daemon(host string, argv ...string) *demo.Job {
	job, err := c.Start(c.Host(host).Root(append([]string{"/usr/sbin/" + argv[0]}, argv[1:]...)...), c.env...)
	require.NoError(c.t, err)
	return job
}

// signal sends a signal to the process that nsenter has started on a host.
func (c *slurmCluster) signal(job *demo.Job, s syscall.Signal) {
	c.t.Helper()
	pid, err := childOf(job.PID())
	require.NoError(c.t, err)
	if s == syscall.SIGSTOP {
		stop(c.t, pid)
		return
	}
	require.NoError(c.t, syscall.Kill(pid, s))
}

// on runs a command on a host as the user.
func (c *slurmCluster) on(host string, argv ...string) (string, error) {
	job, err := c.Start(c.Host(host).In(argv...), c.env...)
	require.NoError(c.t, err)
	err = job.Wait(c.t.Context())
	return strings.Join(job.Stdout.Lines(), "\n"), err
}

// admin runs `nvmecr slurm` on the controller, as root.
func (c *slurmCluster) admin(args ...string) (string, error) {
	dir := filepath.Join(c.Dir, "slurm")
	line := append([]string{c.Nvmecr, "slurm", "--state", dir + "/spool", "--inventory", dir + "/site.yaml", "--topology", dir + "/topology.conf"}, args...)
	job, err := c.Start(c.Host("ctl").Root(line...), c.env...)
	require.NoError(c.t, err)
	err = job.Wait(c.t.Context())
	return strings.Join(job.Stdout.Lines(), "\n"), err
}

// stored returns the names of the leases, even if targets do not answer.
func (c *slurmCluster) stored() []string {
	names, err := filepath.Glob(filepath.Join(c.Dir, "slurm", "spool", "*.lease"))
	require.NoError(c.t, err)
	return names
}

type lease struct {
	Name, State, Nodes string
	Targets            []string
	Used               int64
}

// leases returns the list of `nvmecr slurm status`.
func (c *slurmCluster) leases() (leases []lease) {
	out, err := c.admin("status", "--json")
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal([]byte(out), &leases))
	return leases
}

func (c *slurmCluster) lease(name string) lease {
	leases := c.leases()
	at := slices.IndexFunc(leases, func(l lease) bool { return l.Name == name })
	require.GreaterOrEqual(c.t, at, 0, "%v", leases)
	return leases[at]
}

// job returns a field of Slurm's description of a job.
func (c *slurmCluster) job(id, field string) string {
	out, err := c.on("ctl", "scontrol", "-o", "show", "job", id)
	require.NoError(c.t, err)
	m := regexp.MustCompile(`(?:^| )` + field + `=(\S*)`).FindStringSubmatch(out)
	require.NotNil(c.t, m, out)
	return m[1]
}

// batchHost returns the host of a job's script.
func (c *slurmCluster) batchHost(id string) *hosts.Host { return c.Host(c.job(id, "BatchHost")) }

// checkPage runs `nvmecr check` on a node like a page of the docs, and compares the output with the page.
func (c *slurmCluster) checkPage(page string) {
	text, err := os.ReadFile("../../docs/" + page)
	require.NoError(c.t, err)
	require.Contains(c.t, string(text), "\n       $ nvmecr check\n\n   Every line begins with `ok`, or names ")
	out, err := c.on("cn1", "nvmecr", "check")
	require.NoError(c.t, err, out)
	for line := range strings.Lines(out) {
		assert.Regexp(c.t, `^(ok |poor .*: .)`, line)
	}
}

// submitPage submits a script from a page as the page says, and returns the id of the job.
func (c *slurmCluster) submitPage(page, script string, env ...string) string {
	text, err := os.ReadFile("../../docs/" + page)
	require.NoError(c.t, err)
	require.Contains(c.t, string(text), "       $ sbatch "+script+"\n")
	m := regexp.MustCompile("(?s)```sh\n( *#!/bin/sh\n *# " + regexp.QuoteMeta(script) + ":.*?)```").FindSubmatch(text)
	require.NotNil(c.t, m)
	lines := regexp.MustCompile(`(?m)^ +`).ReplaceAllString(string(m[1]), "")
	require.NoError(c.t, os.WriteFile(filepath.Join(c.Dir, script), []byte(lines), 0o755))
	job, err := c.Start(c.Host("ctl").In("sbatch", "--parsable", script), append(c.env, env...)...)
	require.NoError(c.t, err)
	require.NoError(c.t, job.Wait(c.t.Context()))
	return job.Stdout.Lines()[0]
}

func (c *slurmCluster) log() string {
	out, _ := exec.Command("sh", "-c", "tail -n 30 "+c.Dir+"/slurm/*.log "+c.Dir+"/*.out").CombinedOutput()
	return string(out)
}

// TestSlurmNodeLost cuts off the node with the batch script of a job. Slurm requeues the job, which continues from its checkpoint on
// other nodes, and ends. The old processes on the lost node cannot reach the job's data when the node is back.
func TestSlurmNodeLost(t *testing.T) {
	t.Parallel()
	c := newSlurmCluster(t)
	c.checkPage("quickstart-cluster.md")
	id := c.submitPage("quickstart-cluster.md", "cluster.sbatch", "APP_STAYS=600")
	eventually(t, func() bool {
		out, _ := os.ReadFile(filepath.Join(c.Dir, "cluster.out"))
		return strings.Contains(string(out), "from step 0")
	}, "the job's first line")
	lost := c.batchHost(id)
	assert.Equal(t, "in use", c.lease("slurm-j"+id).State)
	ls, err := exec.Command("sh", "-c", strings.Join(lost.Root("ls", "-ln", "/run/nvmecr/"+id), " ")).Output()
	require.NoError(t, err)
	assert.Regexp(t, `-r-------- 1 65534 +0 .* environment\n-r-------- 1 65534 +0 .* key\n`, string(ls))
	c.awaitStep(lost, id, "ckpt.{step}.*", 200)
	assert.Positive(t, c.leases()[0].Used, "what the checkpoint has")
	t.Logf("Job %s writes checkpoints to two targets, in both racks. Step 200 is complete.", id)
	old := credentials(t, c, lost, id)
	said, err := c.with(lost, old, c.Nvmecr, "ls")
	require.NoError(t, err, said)
	lost.Cut()
	t.Logf("%s is cut off, with the batch script and two ranks on it, which live on. Nothing more is done.", lost.Name)
	text := says(t, c.Stage, "cluster.out", "app: done")
	assert.Regexp(t, `(?s)app: 4 ranks, from step 0\n.*app: 4 ranks, from step [2-9]00\n.*app: done`, text)
	t.Logf("Slurm has started the job again, which has gone on from its newest complete checkpoint, and ended. Its output:\n%s", text)
	lost.Join()
	said, err = c.with(lost, old, c.Nvmecr, "ls")
	require.Error(t, err, "the space is there until it is freed, and the key is that of another start")
	assert.Contains(t, said, "authentication")
	t.Logf("%s is back, and gets at nothing with what it had: %s", lost.Name, said)
	eventually(t, func() bool {
		return !slices.ContainsFunc(c.leases(), func(l lease) bool { return l.State != "retained" })
	}, "the end of the job")
	eventually(t, func() bool {
		_, err := c.admin("reconcile", "--grace=1s")
		require.NoError(t, err)
		return len(c.leases()) == 0
	}, "space that is free again")
	t.Log("The space of the job is free again.")
}

// credentials returns the present settings and key of a job on a host.
func credentials(t *testing.T, c *slurmCluster, h *hosts.Host, id string) []string {
	read := func(name string) string {
		b, err := exec.Command("sh", "-c", strings.Join(h.Root("cat", "/run/nvmecr/"+id+"/"+name), " ")).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(b))
	}
	key := filepath.Join(c.Dir, "old.key")
	require.NoError(t, os.WriteFile(key, []byte(read("key")+"\n"), 0o400))
	require.NoError(t, os.Chown(key, hosts.User, hosts.User))
	return append(strings.Split(read("environment"), "\n"), "NVMECR_DHCHAP_SECRET="+key, "NVMECR_STATE_HOME="+c.Dir)
}

// with runs a command on a host as the user, with additional variables, and returns its standard error.
func (c *slurmCluster) with(h *hosts.Host, env []string, argv ...string) (string, error) {
	job, err := c.Start(h.In(argv...), append(c.env, env...)...)
	require.NoError(c.t, err)
	err = job.Wait(c.t.Context())
	return strings.Join(job.Stderr.Lines(), "\n"), err
}

// inJob runs a command on a node of a job as its user, with the job's settings.
func (c *slurmCluster) inJob(h *hosts.Host, id string, argv ...string) (string, error) {
	env, err := exec.Command("sh", "-c", strings.Join(h.Root("cat", "/run/nvmecr/"+id+"/environment"), " ")).Output()
	if err != nil {
		return "", err
	}
	job, err := c.Start(h.In(argv...), append(c.env, strings.Split(strings.TrimSpace(string(env)), "\n")...)...)
	require.NoError(c.t, err)
	err = job.Wait(c.t.Context())
	return strings.Join(job.Stdout.Lines(), "\n"), err
}

// awaitStep waits until the job's user sees a checkpoint on a node of the job.
func (c *slurmCluster) awaitStep(h *hosts.Host, id, pattern string, least int) {
	eventually(c.t, func() bool {
		out, err := c.inJob(h, id, c.Nvmecr, "latest", pattern)
		step, _ := strconv.Atoi(out)
		return err == nil && step >= least
	}, "a checkpoint")
}
