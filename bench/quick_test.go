package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/result"
	"nvmecr/internal/demo/demotest"
	"nvmecr/nvmf"
)

// measured runs `nvmecr bench` with little work, under the launcher if there is one, and returns
// its only result.
func measured(t *testing.T, launcher []string, args ...string) *result.Result {
	t.Helper()
	dir := t.TempDir()
	argv := append(append(launcher[:len(launcher):len(launcher)], demotest.Nvmecr(t), "bench"), args...)
	argv = append(argv, "--quick", "--rounds", "1", "--size", "2M", "--count", "2", "--compute", "5ms", "--json", filepath.Join(dir, "json"))
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(base(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	assert.NotEmpty(t, said)
	f, err := os.Open(filepath.Join(dir, "json"))
	require.NoError(t, err)
	defer f.Close()
	r, err := result.Read(f)
	require.NoError(t, err)
	require.Len(t, r.Results, 1)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1, "nothing but the JSON is left")
	return r.Results[0]
}

// TestExperiments runs each experiment that starts ranks, and checks the form of its result.
func TestExperiments(t *testing.T) {
	second := t.TempDir()
	for name, tt := range map[string]struct {
		args  []string
		check func(r *result.Result)
	}{
		"checkpoint": {[]string{"--peer", "dir:" + second}, func(r *result.Result) {
			var peers []string
			for _, c := range r.Comparisons {
				peers = append(peers, strings.Fields(c.What)[0]+" "+c.Peer)
			}
			for _, p := range []string{"raw NVMe/TCP", "sockets baseline", second} {
				assert.Contains(t, peers, "write, "+p)
				assert.Contains(t, peers, "read, "+p)
			}
		}},
		"recovery":   {nil, func(r *result.Result) { assert.NotEmpty(t, r.Comparisons) }},
		"create":     {[]string{"--peer", "dir:" + second}, func(r *result.Result) { assert.Len(t, r.Comparisons, 2) }},
		"raw":        {nil, func(r *result.Result) { assert.Len(t, r.Comparisons, 12) }},
		"hugeblock":  {nil, func(r *result.Result) { assert.Len(t, r.Tables[0].Lines, len(hugeblocks)) }},
		"overhead":   {nil, func(r *result.Result) { assert.NotEmpty(t, r.Tables[0].Lines) }},
		"multilevel": {[]string{"--peer", "dir:" + second}, func(r *result.Result) { assert.Len(t, r.Tables[0].Lines, 5) }},
		"view":       {nil, func(r *result.Result) { assert.Len(t, r.Goals, 8) }},
		"tree":       {[]string{"--names", "1000"}, func(r *result.Result) { checkTree(t, r) }},
		"startup":    {nil, func(r *result.Result) { assert.Len(t, r.Goals, 2) }},
	} {
		t.Run(name, func(t *testing.T) {
			tt.check(measured(t, nil, append([]string{name, "--ranks", "2"}, tt.args...)...))
		})
	}
	left, err := os.ReadDir(second)
	require.NoError(t, err)
	assert.Empty(t, left, "the peer's directory is clean")
}

// checkTree checks that the result of the tree has all rows, and that rates and memory of the index
// have the right order of magnitude.
func checkTree(t *testing.T, r *result.Result) {
	assert.Len(t, r.Goals, 6+5+1+len(treeCallList)+2+3)
	assert.Len(t, r.Claims, 3)
	for _, g := range r.Goals {
		assert.False(t, g.Absent, g.What)
		if strings.HasPrefix(g.What, "memory of the index for a name") {
			assert.Greater(t, g.Measured.Value, 100.0, g.What)
			assert.Less(t, g.Measured.Value, 10_000.0, g.What)
		}
	}
	require.Len(t, r.Tables, 2)
	require.Len(t, r.Tables[1].Lines, len(indexLoads))
	for _, line := range r.Tables[1].Lines {
		assert.Greater(t, line.Cells[0].Value, 10.0, line.Name)
	}
}

// TestGoals checks that all goals of some parts are measured.
func TestGoals(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var names []string
	for _, part := range []string{"bandwidth", "latency", "creates", "quiet", "allocations", "plan", "calls"} {
		for _, g := range measured(t, nil, "goals", "--ranks", "2", "--only", part).Goals {
			names = append(names, g.What)
			assert.False(t, g.Absent, g.What)
		}
	}
	assert.Len(t, names, 8+3+1+2+2+2+16)
}

// TestInJob checks that the processes of an MPI job become the ranks, and that only one of them
// prints.
func TestInJob(t *testing.T) {
	for _, line := range []string{"mpirun.openmpi --oversubscribe -n 2", "mpirun.mpich -n 2"} {
		t.Run(line, func(t *testing.T) {
			launcher := strings.Fields(line)
			if _, err := exec.LookPath(launcher[0]); err != nil {
				t.Skip(launcher[0] + " is not installed: make deps")
			}
			r := measured(t, launcher, "checkpoint")
			require.NotEmpty(t, r.Comparisons)
			assert.Equal(t, rawName, r.Comparisons[0].Peer)
			assert.Contains(t, r.Comparisons[0].What, "2 ranks")
		})
	}
}

// TestLaunch checks that --launch starts the ranks, and that a peer's directory is left empty.
func TestLaunch(t *testing.T) {
	if _, err := exec.LookPath("mpirun.mpich"); err != nil {
		t.Skip("MPICH (mpirun.mpich) is not installed: make deps")
	}
	peer := t.TempDir()
	r := measured(t, nil, "checkpoint", "--launch", `mpirun.mpich -n 3 -genv WORDS "two words"`, "--peer", "dir:"+peer)
	assert.Contains(t, r.Comparisons[0].What, "3 ranks")
	left, err := os.ReadDir(peer)
	require.NoError(t, err)
	assert.Empty(t, left, "the peer's directory is clean")
}

// TestMount checks that a file system in another mount namespace can be used, and is
// removed with its process.
func TestMount(t *testing.T) {
	loop := func(kind string) func(*Env) (*mountpoint, error) {
		return func(e *Env) (*mountpoint, error) { return e.startLoopback(t.Context(), kind, 64*nvmf.MiB) }
	}
	for name, start := range map[string]func(*Env) (*mountpoint, error){"xfs": loop("xfs"), "ext4": loop("ext4"),
		"glusterfs": func(e *Env) (*mountpoint, error) { return e.startGluster(t.Context(), 64*nvmf.MiB) }} {
		t.Run(name, func(t *testing.T) {
			e := &Env{scratch: t.TempDir()}
			l, err := start(e)
			if err != nil {
				t.Skip(err)
			}
			require.NoError(t, os.WriteFile(filepath.Join(l.dir, "file"), []byte("x"), 0o600))
			mounts, err := os.ReadFile("/proc/self/mounts")
			require.NoError(t, err)
			assert.NotContains(t, string(mounts), e.scratch, "nobody else sees it")
			require.NoError(t, l.Close())
			assert.NoDirExists(t, l.dir)
			left, err := os.ReadDir(e.scratch)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

// TestParsePerf checks the values that are read from the output of SPDK's tool.
func TestParsePerf(t *testing.T) {
	const printed = `Initializing NVMe Controllers
                                                                                                               Latency(us)
Device Information                                                       :       IOPS      MiB/s    Average        min        max
TCP  (addr:127.0.0.1 subnqn:nqn.x) NSID 1 from core  1:   30064.00    3758.00     266.03      92.71    1502.08
========================================================
Total                                                                    :   30064.00    3758.25     266.03      92.71    1502.08
`
	rate, err := parsePerf([]byte(printed))
	require.NoError(t, err)
	assert.InDelta(t, 3758.25, rate, 1e-9)
	_, err = parsePerf([]byte("Initializing NVMe Controllers\nno such device\n"))
	assert.ErrorContains(t, err, "no such device")
	p99, err := parsePerfP99([]byte(printed + "Summary latency data for TCP  (addr:127.0.0.1) from core 1:\n 98.00000% :   200.123us\n 99.00000% :   276.480us\n 99.50000% :   300.000us\n"))
	require.NoError(t, err)
	assert.InDelta(t, 276.48e-6, p99, 1e-12)
	_, err = parsePerfP99([]byte(printed))
	assert.ErrorContains(t, err, "no 99th percentile")
}

// TestRanksWithoutSPDK checks that the goals are listed as not measured if SPDK is not installed.
func TestRanksWithoutSPDK(t *testing.T) {
	e := &Env{SPDK: t.TempDir()}
	e.Ranks = 4
	g := &goalRun{Env: e, res: &result.Result{}}
	require.NoError(t, g.spdkRanks(t.Context()))
	require.Len(t, g.res.Goals, 2*len(ranksLoads))
	for i, l := range ranksLoads {
		faster, p99 := g.res.Goals[2*i], g.res.Goals[2*i+1]
		assert.True(t, faster.Absent && p99.Absent, l.name)
		assert.False(t, faster.AtMost, faster.What)
		assert.True(t, p99.AtMost, p99.What)
	}
}
