package slurm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/nvmf"
)

const (
	network   = "SwitchName=rack1 Nodes=cn[1-2],st1\nSwitchName=rack2 Nodes=cn[3-4],st2\nSwitchName=spine Switches=rack[1-2]\n"
	inventory = `
version: 1
targets:
  - {name: a, admin: [a], node: st1, capacity: 3GiB}
  - {name: b, admin: [b], node: st2, capacity: 3GiB}
  - {name: other, target: "file:x"}
`
)

// cluster is a controller with emulated targets and an emulated Slurm.
type cluster struct {
	Hooks
	jobs map[uint32]Job
	held map[string]map[string]*held // by target, by namespace
	said []string
	now  time.Time

	hang  func(name string) // in Create
	gone  string            // target that does not answer
	shut  string            // target that fails in Expose
	told  map[uint32]string
	holds []uint32
}

var errGone = errors.New("connection refused")

type held struct {
	size nvmf.Bytes
	key  string
}

func newCluster(t *testing.T) *cluster {
	path := filepath.Join(t.TempDir(), "topology.conf")
	require.NoError(t, os.WriteFile(path, []byte(network), 0o600))
	net, err := topology.Load(path)
	require.NoError(t, err)
	inv, err := site.Parse([]byte(inventory))
	require.NoError(t, err)
	c := &cluster{jobs: make(map[uint32]Job), held: map[string]map[string]*held{"a": {}, "b": {}}, now: time.Unix(1e9, 0), told: make(map[uint32]string)}
	c.Hooks = Hooks{State: t.TempDir(), Inventory: inv, Network: net, Queue: c, Targets: c, Defaults: Request{Capacity: nvmf.GiB, Retain: time.Hour}, Grace: time.Minute,
		Logf: func(format string, args ...any) { c.said = append(c.said, fmt.Sprintf(format, args...)) }, Now: func() time.Time { return c.now }}
	return c
}

func (c *cluster) Job(_ context.Context, id uint32) (Job, error) {
	if j, ok := c.jobs[id]; ok {
		return j, nil
	}
	return Job{}, ErrNoJob
}

func (c *cluster) Explain(_ context.Context, job Job, text string) error {
	c.told[job.ID] = text
	return nil
}

func (c *cluster) Hold(_ context.Context, job Job) error {
	c.holds = append(c.holds, job.ID)
	return nil
}

func (c *cluster) Create(_ context.Context, on site.Target, name string, size nvmf.Bytes) (string, error) {
	if c.hang != nil {
		c.hang(name)
	}
	if c.gone == on.Name {
		return "", errGone
	}
	if c.held[on.Name][name] == nil {
		c.held[on.Name][name] = &held{size: size}
	}
	return "trtype:TCP traddr:" + on.Name + " subnqn:nqn." + name, nil
}

func (c *cluster) Expose(_ context.Context, on site.Target, name, _, key string) error {
	if c.shut == on.Name {
		return errGone
	}
	c.held[on.Name][name].key = key
	return nil
}

func (c *cluster) Delete(_ context.Context, on site.Target, name string) error {
	if c.gone == on.Name {
		return errGone
	}
	delete(c.held[on.Name], name)
	return nil
}

func (c *cluster) List(_ context.Context, on site.Target) ([]string, error) {
	if c.gone == on.Name {
		return nil, errGone
	}
	return slices.Sorted(maps.Keys(c.held[on.Name])), nil
}

// leased checks that each namespace on the targets belongs to a lease.
func (c *cluster) leased(t *testing.T) {
	t.Helper()
	c.step = nil
	orphans, err := c.Orphans(t.Context())
	require.NoError(t, err)
	assert.Empty(t, orphans)
}

func (c *cluster) start(t *testing.T, id uint32, request string) error {
	j := c.jobs[id]
	j.ID, j.User, j.Nodes, j.Ranks, j.Request = id, 1000, "cn[1-2]", 4, request
	c.jobs[id] = j
	return c.PrologController(t.Context(), id, "")
}

// end ends a job, which will not start again.
func (c *cluster) end(t *testing.T, id uint32) {
	j := c.jobs[id]
	j.Over = true
	c.jobs[id] = j
	require.NoError(t, c.EpilogController(id))
}

func (c *cluster) lease(t *testing.T, name string) *Lease {
	l, err := c.store().load(name)
	require.NoError(t, err)
	return l
}

func TestLife(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 7, "nvmf:2,capacity=1G"))
	l := c.lease(t, "slurm-j7")
	assert.True(t, l.Ready)
	assert.Equal(t, nvmf.Bytes(512*nvmf.MiB), c.held["a"]["slurm-j7"].size)
	assert.Equal(t, l.Key, c.held["b"]["slurm-j7"].key)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.Len(t, c.held["a"], 1, "it runs")

	// A node is lost: the epilog is called, the job starts again, and finds its namespaces, with another key.
	require.NoError(t, c.EpilogController(7))
	c.now = c.now.Add(c.Grace)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.Len(t, c.held["a"], 1, "it will be started again")
	j := c.jobs[7]
	j.Restarts = 1
	c.jobs[7] = j
	require.NoError(t, c.start(t, 7, "nvmf:2,capacity=1G"))
	again := c.lease(t, "slurm-j7")
	assert.NotEqual(t, l.Key, again.Key)
	assert.Equal(t, again.Key, c.held["a"]["slurm-j7"].key)
	assert.Equal(t, l.Targets, again.Targets)
	assert.Nil(t, again.Ended)

	c.end(t, 7)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.Len(t, c.held["a"], 1, "it may be queued again any moment")
	c.now = c.now.Add(c.Grace)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.Empty(t, c.held["a"])
	assert.Empty(t, c.held["b"])
	assert.NoFileExists(t, c.store().path("slurm-j7"))
}

// TestPlanned checks that the data of a job is in another rack if possible.
func TestPlanned(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 1, "nvmf:1"))
	assert.Equal(t, "b", c.lease(t, "slurm-j1").Targets[0].Target)
	require.Error(t, c.start(t, 2, "nvmf:2,strict"))
	assert.Equal(t, []uint32{2}, c.holds)
}

// TestLateEpilog checks that the retain time begins at the last end of a job, not at an earlier epilog for a lost
// node.
func TestLateEpilog(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 1, "nvmf:1,name=x,retain=2h"))
	require.NoError(t, c.EpilogController(1))
	c.now = c.now.Add(3 * time.Hour)
	c.end(t, 1)
	c.now = c.now.Add(time.Hour)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.FileExists(t, c.store().path("slurm-u1000-x"))
	c.now = c.now.Add(time.Hour)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.NoFileExists(t, c.store().path("slurm-u1000-x"))
}

// TestNamed checks that later jobs can use a lease by its name for the retain time, one job at a time.
func TestNamed(t *testing.T) {
	c := newCluster(t)
	const request = "nvmf:1,name=run7,retain=2h"
	require.NoError(t, c.start(t, 1, request))
	require.ErrorContains(t, c.start(t, 2, request), "in use by job 1")
	c.end(t, 1)
	delete(c.jobs, 1)
	c.now = c.now.Add(2*time.Hour - 1)
	require.NoError(t, c.Reconcile(t.Context()))
	require.NoError(t, c.start(t, 2, request))
	assert.True(t, c.lease(t, "slurm-u1000-run7").Reused)
	require.ErrorContains(t, c.start(t, 2, "nvmf:1,name=run7,capacity=2G"), "request the same")
	c.end(t, 2)
	c.now = c.now.Add(2 * time.Hour)
	require.NoError(t, c.Reconcile(t.Context()))
	leases, err := c.Leases()
	require.NoError(t, err)
	assert.Empty(t, leases)
	c.leased(t)
}

// TestPartlyFreed checks that an unreachable target does not delay freeing on others, and that a later job of the
// name does not use the rest of the lease.
func TestPartlyFreed(t *testing.T) {
	c := newCluster(t)
	const request = "nvmf:2,name=x,retain=0"
	require.NoError(t, c.start(t, 1, request))
	c.end(t, 1)
	c.now = c.now.Add(c.Grace)
	for _, gone := range []string{"a", "b", "a"} {
		c.gone = gone
		err := c.Reconcile(t.Context())
		if len(c.held["a"])+len(c.held["b"]) == 0 {
			break
		}
		require.ErrorIs(t, err, errGone)
		assert.Len(t, c.held[gone], 1)
		require.ErrorContains(t, c.start(t, 2, request), "a part of it is freed")
		assert.Empty(t, c.holds)
	}
	assert.Empty(t, c.held["a"])
	assert.Empty(t, c.held["b"])
	c.gone = ""
	require.NoError(t, c.Reconcile(t.Context()))
	require.NoError(t, c.start(t, 2, request))
	assert.False(t, c.lease(t, "slurm-u1000-x").Reused)
}

// TestTargetReplaced checks that the next start replaces a permanently failed target, and that the end frees the
// rest.
func TestTargetReplaced(t *testing.T) {
	c := newCluster(t)
	const request = "nvmf:2,capacity=2G,copies"
	require.NoError(t, c.start(t, 1, request))
	a := slices.IndexFunc(c.Inventory.Targets, func(t site.Target) bool { return t.Name == "a" })
	c.Inventory.Targets[a].Health, c.gone = site.Failed, "a"
	require.NoError(t, c.EpilogController(1))
	require.ErrorContains(t, c.start(t, 1, request), "in the place of a, which has failed")

	c.held["c"] = map[string]*held{}
	c.Inventory.Targets = append(c.Inventory.Targets, site.Target{Name: "c", Admin: []string{"c"}, Node: "st1", Capacity: 3 * nvmf.GiB, Health: site.OK})
	require.NoError(t, c.start(t, 1, request))
	l := c.lease(t, "slurm-j1")
	assert.Equal(t, []LeasedSpot{{"c", "trtype:TCP traddr:c subnqn:nqn.slurm-j1"}, {"b", "trtype:TCP traddr:b subnqn:nqn.slurm-j1"}}, l.Targets)
	assert.Contains(t, l.Settings("key"), "NVMECR_COPIES=partner")
	assert.Equal(t, l.Key, c.held["c"]["slurm-j1"].key)
	c.leased(t)

	c.gone = "b"
	c.end(t, 1)
	c.now = c.now.Add(c.Grace)
	require.ErrorIs(t, c.Reconcile(t.Context()), errGone)
	assert.FileExists(t, c.store().path("slurm-j1"), "what it has is not free yet")
	c.Inventory.Targets[a+1].Health = site.Failed
	require.NoError(t, c.Reconcile(t.Context()))
	assert.Empty(t, c.held["c"])
	assert.NoFileExists(t, c.store().path("slurm-j1"))
	c.gone = ""
	orphans, err := c.Orphans(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []Orphan{{"a", "slurm-j1"}, {"b", "slurm-j1"}}, orphans, "they are seen when they are back")
}

// TestElsewhere checks that a job without data gets another target instead of one that fails, and that the namespace
// of the failed target is freed with the others, wherever the hook was killed.
func TestElsewhere(t *testing.T) {
	for n, killed := 0, true; killed; n++ {
		c := newCluster(t)
		c.held["c"] = map[string]*held{}
		c.Inventory.Targets = append(c.Inventory.Targets, site.Target{Name: "c", Admin: []string{"c"}, Node: "st2", Capacity: 3 * nvmf.GiB, Health: site.OK})
		c.shut = "b"
		start := func() error { return c.start(t, 1, "nvmf:2,capacity=6GiB") }
		var where string
		where, killed = c.killedAt(n, start)
		c.leased(t)
		require.NoError(t, start(), where)
		l := c.lease(t, "slurm-j1")
		var got []string
		for _, spot := range l.Targets {
			got = append(got, spot.Target)
		}
		assert.ElementsMatch(t, []string{"a", "c"}, got, where)
		assert.Equal(t, []string{"b"}, l.Abandoned, where)
		assert.Equal(t, []string{l.Key, l.Key}, []string{c.held["a"]["slurm-j1"].key, c.held["c"]["slurm-j1"].key}, where)
		assert.Len(t, c.held["b"], 1, where)
		assert.Empty(t, c.told[1])

		c.end(t, 1)
		c.now = c.now.Add(c.Grace)
		c.gone = "b"
		require.ErrorIs(t, c.Reconcile(t.Context()), errGone)
		assert.FileExists(t, c.store().path("slurm-j1"), "b may have a namespace")
		c.gone = ""
		require.NoError(t, c.Reconcile(t.Context()))
		for _, target := range []string{"a", "b", "c"} {
			assert.Empty(t, c.held[target], where)
		}
		assert.NoFileExists(t, c.store().path("slurm-j1"))
	}
}

// TestNowhereElse checks that a job waits for a target that has its data, or that no other target can replace.
func TestNowhereElse(t *testing.T) {
	c := newCluster(t)
	c.gone = "b"
	require.ErrorIs(t, c.start(t, 1, "nvmf:2,capacity=5G"), errGone)
	assert.Contains(t, c.told[1], "connection refused")
	assert.Empty(t, c.holds)
	c.gone = ""
	require.NoError(t, c.start(t, 1, "nvmf:2,capacity=5G"))
	require.NoError(t, c.start(t, 2, "nvmf:1,name=x,capacity=256M"))
	l := c.lease(t, "slurm-u1000-x")
	c.end(t, 2)
	c.gone = l.Targets[0].Target
	require.ErrorIs(t, c.start(t, 3, "nvmf:1,name=x,capacity=256M"), errGone)
	assert.Equal(t, l.Targets, c.lease(t, "slurm-u1000-x").Targets)
}

func TestNothingAskedFor(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 3, ""))
	require.NoError(t, c.EpilogController(3))
	require.NoError(t, c.Prolog(3, t.TempDir()))
	entries, err := os.ReadDir(c.State)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(entries), 1, "the lock")
}

// TestFull checks that space of a lease is not given to another job.
func TestFull(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 1, "nvmf:2,capacity=4G"))
	require.NoError(t, c.start(t, 2, "nvmf:2,capacity=2G"))
	require.Error(t, c.start(t, 3, "nvmf:2,capacity=1G"))
	c.end(t, 1)
	c.now = c.now.Add(c.Grace)
	require.NoError(t, c.Reconcile(t.Context()))
	require.NoError(t, c.start(t, 3, "nvmf:2,capacity=1G"))
}

// TestRefused checks that the user learns why a job does not start, and that a job whose request can never be met is
// held.
func TestRefused(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 1, "nvmf:2,capacity=5G,name=x"))
	for _, tt := range []struct {
		request, told string
		held          bool
	}{
		{"nvmf:2,capacity=2G", "too few targets", false}, // possible after the end of job 1
		{"nvmf:2,capacity=9G", "too few targets", true},
		{"nvmf:2,capacity=5G,name=x", `name "x" is in use by job 1`, false},
		{"nvmf:2,capacity=much", "not a request", true},
		{"nvmf:3", "targets", true},
	} {
		c.holds = nil
		require.Error(t, c.start(t, 2, tt.request), tt.request)
		assert.Contains(t, c.told[2], tt.told)
		assert.Equal(t, tt.held, len(c.holds) > 0, "%s: %s", tt.request, c.told[2])
	}
	c.end(t, 1)
	c.holds = nil
	require.ErrorContains(t, c.start(t, 2, "nvmf:1,name=x"), "request the same")
	assert.Equal(t, []uint32{2}, c.holds)
	require.NoError(t, c.start(t, 2, "nvmf:2,capacity=5G,name=x"))
	assert.Empty(t, c.told[2], "it has started")
}

// TestTargetHangs checks that while a target hangs for one job, other jobs start and end, and do not get the space
// planned for that job.
func TestTargetHangs(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.start(t, 1, "nvmf:1,capacity=1G"))
	c.hang = func(name string) {
		if name != "slurm-j2" {
			return
		}
		c.hang = nil
		require.NoError(t, c.start(t, 3, "nvmf:1,capacity=1G"))
		require.Error(t, c.start(t, 4, "nvmf:2,capacity=2G"))
		c.end(t, 1)
		c.now = c.now.Add(c.Grace)
		require.NoError(t, c.Reconcile(t.Context()))
	}
	require.NoError(t, c.start(t, 2, "nvmf:2,capacity=3G"))
	assert.Nil(t, c.hang)
	leases, err := c.Leases()
	require.NoError(t, err)
	assert.Len(t, leases, 2, "job 1 is freed")
	c.leased(t)
}

var errKilled = errors.New("killed")

// killedAt runs do and kills it at the nth step. It reports whether do reached that step.
func (c *cluster) killedAt(n int, do func() error) (where string, killed bool) {
	c.step = func(what string) error {
		if n--; n >= 0 {
			return nil
		}
		where = what
		return errKilled
	}
	err := do()
	c.step = nil
	return where, errors.Is(err, errKilled)
}

// TestKilledAnywhere kills every hook at every step. Each namespace always belongs to a lease. Repeating the hook, or
// Reconcile, completes the work.
func TestKilledAnywhere(t *testing.T) {
	const request = "nvmf:2,capacity=1G,name=x,retain=1h"
	ready := func(t *testing.T) *cluster {
		c := newCluster(t)
		require.NoError(t, c.start(t, 1, request))
		return c
	}
	for _, hook := range []struct {
		name  string
		from  func(t *testing.T) *cluster
		do    func(t *testing.T, c *cluster) error
		steps int
	}{
		{"PrologController", newCluster, func(t *testing.T, c *cluster) error { return c.start(t, 1, request) }, 6},
		{"PrologController again", ready, func(t *testing.T, c *cluster) error {
			j := c.jobs[1]
			j.Restarts = 1
			c.jobs[1] = j
			return c.start(t, 1, request)
		}, 6},
		{"EpilogController", ready, func(_ *testing.T, c *cluster) error { return c.EpilogController(1) }, 1},
		{"Reconcile", func(t *testing.T) *cluster {
			c := ready(t)
			j := c.jobs[1]
			j.Over = true
			c.jobs[1] = j
			require.NoError(t, c.Reconcile(t.Context()))
			c.now = c.now.Add(time.Hour)
			return c
		}, func(t *testing.T, c *cluster) error { return c.Reconcile(t.Context()) }, 3},
	} {
		for n := range hook.steps + 1 {
			t.Run(fmt.Sprintf("%s/%d", hook.name, n), func(t *testing.T) {
				c := hook.from(t)
				where, killed := c.killedAt(n, func() error { return hook.do(t, c) })
				require.Equal(t, n < hook.steps, killed, "%d steps, killed %s", hook.steps, where)
				c.leased(t)
				if strings.HasPrefix(hook.name, "Prolog") {
					require.NoError(t, hook.do(t, c), "killed %s", where)
					l := c.lease(t, "slurm-u1000-x")
					assert.True(t, l.Ready)
					for _, target := range []string{"a", "b"} {
						assert.Equal(t, l.Key, c.held[target][l.Name].key, "killed %s", where)
					}
				}
				j := c.jobs[1]
				j.Over = true
				c.jobs[1] = j
				require.NoError(t, c.Reconcile(t.Context()))
				c.now = c.now.Add(2 * time.Hour)
				require.NoError(t, c.Reconcile(t.Context()))
				leases, err := c.Leases()
				require.NoError(t, err)
				assert.Empty(t, leases)
				assert.Empty(t, c.held["a"], "killed %s", where)
				assert.Empty(t, c.held["b"], "killed %s", where)
			})
		}
	}
}

// TestNeverReady checks that a namespace that the job never got is freed with the job, whatever its retain time.
func TestNeverReady(t *testing.T) {
	c := newCluster(t)
	_, killed := c.killedAt(3, func() error { return c.start(t, 1, "nvmf:2,name=x,retain=9d") })
	require.True(t, killed)
	delete(c.jobs, 1)
	require.NoError(t, c.Reconcile(t.Context()))
	c.now = c.now.Add(c.Grace)
	require.NoError(t, c.Reconcile(t.Context()))
	assert.Empty(t, c.held["a"])
	assert.Empty(t, c.held["b"])
}

func TestManifest(t *testing.T) {
	c := newCluster(t)
	runtime := filepath.Join(t.TempDir(), "run")
	require.NoError(t, c.start(t, 7, "nvmf:2"))
	l := c.lease(t, "slurm-j7")
	l.User = uint32(os.Getuid()) // lets the test run without root
	require.NoError(t, c.store().save(l))
	for range 2 { // hooks can be repeated
		require.NoError(t, c.Prolog(7, runtime))
	}
	for name, mode := range map[string]os.FileMode{"7": os.ModeDir | 0o700, "7/key": 0o400, "7/environment": 0o400, "7/restarts": 0o400} {
		info, err := os.Stat(filepath.Join(runtime, name))
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), name)
	}
	var out strings.Builder
	require.NoError(t, TaskProlog(&out, 7, runtime))
	assert.Equal(t, "export NVMECR_NAME=slurm-j7\nexport NVMECR_TARGET="+l.Targets[0].Namespace+";"+l.Targets[1].Namespace+
		"\nexport NVMECR_HOSTNQN="+l.HostNQN+"\nexport NVMECR_DHCHAP_SECRET="+runtime+"/7/key\nexport NVMECR_STATE_HOME="+runtime+"/7/state\nexport NVMECR_MAPPING="+l.Mapping+"\n", out.String())
	assert.NotContains(t, out.String(), l.Key)
	require.NoError(t, c.Epilog(7, runtime))
	assert.NoDirExists(t, filepath.Join(runtime, "7"))
	require.NoError(t, TaskProlog(&out, 7, runtime), "a job without a lease")
}

// TestUnusable checks that an unreadable inventory delays only jobs that request space: the hook is called for all
// jobs of the cluster.
func TestUnusable(t *testing.T) {
	c := newCluster(t)
	c.Inventory, c.Network, c.Unusable = nil, nil, errors.New("site.yaml: line 3: field nod not found")
	require.NoError(t, c.start(t, 1, ""))
	require.ErrorContains(t, c.start(t, 2, "nvmf:1"), "field nod")
	assert.Contains(t, c.told[2], "field nod")
	assert.Empty(t, c.holds, "it starts when the administrator has mended the file")
	require.NoError(t, c.EpilogController(2))
}
