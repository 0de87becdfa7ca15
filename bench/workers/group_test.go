package workers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/proc"
	"nvmecr/internal/store"
)

// asRank is the environment variable that makes the test program a rank in Go.
const asRank = "WORKERS_TEST_AS_RANK"

func TestMain(m *testing.M) {
	if os.Getenv(asRank) == "" {
		os.Exit(m.Run())
	}
	err := Serve(context.Background(), os.Args[2], func(command string) (Work, error) {
		if command != "add" {
			return nil, fmt.Errorf("no such command: %s\nat all", command)
		}
		return func() (map[string]int64, error) { return map[string]int64{"sum": 42}, nil }, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// program compiles the rank in C once, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "workers-test-")
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob("rank/*.c")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "rank")
	out, err := exec.Command("cc", append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-O1", "-pthread", "-o", path}, sources...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// start starts ranks that end with the test.
func start(t *testing.T, o Options) *Group {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	if o.Argv == nil {
		o.Argv = []string{path}
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	c, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Stop()) })
	return c
}

// TestCheckpoints checks the files and the measurements of checkpoints.
func TestCheckpoints(t *testing.T) {
	c, dir := start(t, Options{Ranks: 3}), t.TempDir()
	assert.Equal(t, 3, c.Size())
	assert.Equal(t, 1, c.Hosts())
	file := func(rank int) string { return filepath.Join(dir, fmt.Sprintf("a file of %d", rank)) }
	began := Now()
	for _, size := range []int{100_000, 65536, 1, 0, 4096 * 9} {
		w, err := c.Do(t.Context(), func(r int) string { return fmt.Sprintf("write %d 32768 %d 1 %s", size, size, file(r)) })
		require.NoError(t, err)
		require.Len(t, w, 3)
		for rank, r := range w {
			assert.Equal(t, rank, r.Rank)
			assert.EqualValues(t, (size+32767)/32768, r.Number("calls"))
			assert.LessOrEqual(t, r.Time("p50"), r.Time("max"))
			assert.GreaterOrEqual(t, r.Number("begin"), began)
			assert.InDelta(t, float64(r.Took()), float64(r.Time("open")+r.Time("body")+r.Time("sync")+r.Time("close")), 1e6)
			info, err := os.Stat(file(rank))
			require.NoError(t, err)
			assert.EqualValues(t, size, info.Size())
		}
		assert.GreaterOrEqual(t, w.Span(), time.Duration(w.Max("end")-int64(slices.Min(w.Sample("begin")))))
		_, err = c.Do(t.Context(), func(r int) string { return fmt.Sprintf("read %d 32768 %d 1 %s", size, size, file(r)) })
		require.NoError(t, err)
	}
}

// TestReadsCompare checks that a read fails for data of another checkpoint or of another rank. A
// read that compares all bytes must also find damage between the stamps.
func TestReadsCompare(t *testing.T) {
	c, dir := start(t, Options{Ranks: 2}), t.TempDir()
	file := func(rank int) string { return filepath.Join(dir, fmt.Sprint(rank)) }
	read := func(stamp, whole int, shift int) error {
		_, err := c.Do(t.Context(), func(r int) string { return fmt.Sprintf("read 200000 65536 %d %d %s", stamp, whole, file((r+shift)%2)) })
		return err
	}
	_, err := c.Do(t.Context(), func(r int) string { return "write 200000 65536 7 0 " + file(r) })
	require.NoError(t, err)
	require.NoError(t, read(7, 1, 0))
	assert.ErrorContains(t, read(8, 0, 0), "is not what was written there")
	assert.ErrorContains(t, read(7, 1, 1), "is not what was written there")

	b, err := os.ReadFile(file(1))
	require.NoError(t, err)
	b[150_001] ^= 1
	require.NoError(t, os.WriteFile(file(1), b, 0o600))
	require.NoError(t, read(7, 0, 0), "this read compares only the stamps")
	err = read(7, 1, 0)
	assert.ErrorContains(t, err, "rank 1: ")
	assert.ErrorContains(t, err, "offset 131072")
	require.NoError(t, os.Truncate(file(0), 199_999))
	assert.ErrorContains(t, read(7, 0, 0), "only 3391 bytes")
}

// TestOtherOrders checks the commands other than write and read.
func TestOtherOrders(t *testing.T) {
	c, dir := start(t, Options{Ranks: 2}), t.TempDir()
	say := func(command string) (Round, error) { return c.DoAll(t.Context(), command) }
	_, err := say("mkdir " + dir + "/sub")
	require.NoError(t, err, "mkdir of the same directory by all ranks")
	r, err := c.Do(t.Context(), func(rank int) string { return fmt.Sprintf("create 10 %s/sub/new.%d.", dir, rank) })
	require.NoError(t, err)
	assert.EqualValues(t, 20, r.Sum("calls"))
	all, err := os.ReadDir(dir + "/sub")
	require.NoError(t, err)
	assert.Len(t, all, 20)
	_, err = say("create 10 " + dir + "/sub/new.0.")
	assert.ErrorContains(t, err, "File exists (and 1 other ranks)")
	_, err = c.Do(t.Context(), func(rank int) string { return fmt.Sprintf("remove 10 %s/sub/new.%d.", dir, rank) })
	require.NoError(t, err)
	_, err = say("unlink " + dir + "/sub/none")
	require.NoError(t, err, "unlink of a missing file")
	_, err = say("unlink " + dir + "/sub")
	require.NoError(t, err)
	assert.NoDirExists(t, dir+"/sub")
	r, err = say("compute 20000000")
	require.NoError(t, err)
	assert.GreaterOrEqual(t, r[0].Took(), 20*time.Millisecond)
	assert.Positive(t, r[0].Number("turns"))
	_, err = say("watch")
	require.NoError(t, err)
	r, err = say("watch")
	require.NoError(t, err)
	assert.Zero(t, r[0].Number("threads"), "no thread is called nvmecr")
	assert.Zero(t, r[0].Number("wakes"))
	assert.Positive(t, r[0].Number("watched"))
	r, err = say("memory " + dir)
	require.NoError(t, err)
	assert.Greater(t, r[1].Number("resident"), int64(100_000))
	_, err = say("pin 0")
	require.NoError(t, err)
	_, err = say("dance")
	assert.ErrorContains(t, err, "no such command: dance")
}

// TestOneRefuses checks that no rank begins if one of them refuses its command, and that the other
// ranks can execute the next command.
func TestOneRefuses(t *testing.T) {
	c, dir := start(t, Options{Ranks: 3}), t.TempDir()
	_, err := c.Do(t.Context(), func(rank int) string {
		if rank == 1 {
			return "nonsense"
		}
		return "write 10 10 1 1 " + filepath.Join(dir, "x")
	})
	assert.ErrorContains(t, err, "rank 1: no such command")
	assert.NoFileExists(t, filepath.Join(dir, "x"), "no rank has begun")
	r, err := c.Do(t.Context(), func(rank int) string {
		if rank == 1 {
			return ""
		}
		return "compute 1000"
	})
	require.NoError(t, err)
	require.Len(t, r, 2)
	assert.Equal(t, 2, r[1].Rank)
}

// TestBareSockets checks the sockets baseline, also after its server has ended.
func TestBareSockets(t *testing.T) {
	path, err := program()
	require.NoError(t, err)
	server := exec.Command(path, "--serve-sockets", "8388608", "2")
	stdin, err := server.StdinPipe()
	require.NoError(t, err)
	stdout, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	var port int
	_, err = fmt.Fscanln(stdout, &port)
	require.NoError(t, err)
	c := start(t, Options{Ranks: 3})
	for range 3 {
		w, err := c.DoAll(t.Context(), fmt.Sprintf("write 3145728 1048576 1 1 tcp:127.0.0.1:%d", port))
		require.NoError(t, err)
		assert.EqualValues(t, 9, w.Sum("calls"))
		_, err = c.DoAll(t.Context(), fmt.Sprintf("read 3145728 1048576 1 0 tcp:127.0.0.1:%d", port))
		require.NoError(t, err)
	}
	require.NoError(t, stdin.Close())
	require.NoError(t, server.Wait())
	_, err = c.DoAll(t.Context(), fmt.Sprintf("write 3145728 1048576 1 1 tcp:127.0.0.1:%d", port))
	assert.ErrorContains(t, err, "write tcp:")
}

// TestRankInGo checks ranks in Go.
func TestRankInGo(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	c := start(t, Options{Ranks: 2, Argv: []string{self}, Env: append(os.Environ(), asRank+"=1")})
	r, err := c.DoAll(t.Context(), "add")
	require.NoError(t, err)
	assert.EqualValues(t, 84, r.Sum("sum"))
	_, err = c.DoAll(t.Context(), "subtract")
	assert.ErrorContains(t, err, "no such command: subtract; at all")
}

// TestGone checks the errors after a rank was killed.
func TestGone(t *testing.T) {
	path, err := program()
	require.NoError(t, err)
	c, err := Start(t.Context(), Options{Ranks: 2, Argv: []string{path}, Env: os.Environ()})
	require.NoError(t, err)
	require.NoError(t, c.job.(*processes).cmds[1].Process.Signal(syscall.SIGKILL))
	_, err = c.DoAll(t.Context(), "compute 1000")
	assert.ErrorContains(t, err, "rank 1 on ")
	assert.ErrorContains(t, c.Stop(), "signal: killed")
}

// TestInterrupted checks that the end of the context ends a command.
func TestInterrupted(t *testing.T) {
	path, err := program()
	require.NoError(t, err)
	c, err := Start(t.Context(), Options{Ranks: 1, Argv: []string{path}, Env: os.Environ()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(fmt.Errorf("enough")) })
	begin := time.Now()
	_, err = c.DoAll(ctx, "compute 3600000000000")
	assert.ErrorContains(t, err, "enough")
	assert.Less(t, time.Since(begin), 10*time.Minute)
	c.Kill()
}

// TestThatNeverCome checks the errors if ranks do not connect, or connect with inconsistent
// numbers.
func TestThatNeverCome(t *testing.T) {
	for name, tt := range map[string]struct {
		o    Options
		want string
	}{
		"end at once":   {Options{Ranks: 2, Argv: []string{"sh", "-c", "echo out of order; exit 3"}}, "out of order"},
		"are no ranks":  {Options{Ranks: 1, Argv: []string{"sleep", "60"}}, "ended at once"},
		"wait":          {Options{Ranks: 1, Argv: []string{"sh", "-c", "sleep 60"}, Wait: 50 * time.Millisecond}, "not all ranks were there within 50ms, 0 have come"},
		"do not exist":  {Options{Ranks: 1, Argv: []string{"/no/such/program"}}, "cannot start /no/such/program"},
		"same rank":     {Options{Launch: []string{"sh", "-c", `PMI_RANK=0 PMI_SIZE=2 "$@" & PMI_RANK=0 PMI_SIZE=2 "$@"; wait`, "sh"}}, "two processes say that they are rank 0"},
		"other numbers": {Options{Launch: []string{"sh", "-c", `PMI_RANK=0 PMI_SIZE=2 "$@" & PMI_RANK=1 PMI_SIZE=3 "$@"; wait`, "sh"}}, "is of "},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := program()
			require.NoError(t, err)
			if tt.o.Argv == nil {
				tt.o.Argv = []string{path}
			}
			tt.o.Env = Without(os.Environ())
			_, err = Start(t.Context(), tt.o)
			assert.ErrorContains(t, err, tt.want)
		})
	}
}

// TestStranger checks that a connection without the secret, or with an invalid rank, is not
// accepted.
func TestStranger(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	come, done := make(chan *member), make(chan struct{})
	defer close(done)
	go accept(l, "secret", come, done)
	for _, line := range []string{
		"hello wrong 0 1 host boot 1", "hello secret 1 1 host boot 1", "hello secret -1 1 host boot 1", "GET / HTTP/1.1", "hello secret 0 1 host boot 1",
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = fmt.Fprintln(conn, line)
		require.NoError(t, err)
	}
	m := <-come
	assert.Equal(t, "host", m.host)
	select {
	case m := <-come:
		assert.Fail(t, "unexpected second member", "%+v", m)
	case <-time.After(50 * time.Millisecond):
	}
}

// TestLaunchers checks that the MPI launchers give each rank its number, and pass the environment
// on.
func TestLaunchers(t *testing.T) {
	for _, line := range []string{"mpirun.openmpi --oversubscribe -n 3", "mpirun.openmpi --oversubscribe -x HOME -n 3", "mpirun.mpich -n 3"} {
		t.Run(line, func(t *testing.T) {
			launch := strings.Fields(line)
			if _, err := exec.LookPath(launch[0]); err != nil {
				t.Skip(launch[0] + " is not installed: make deps")
			}
			c := start(t, Options{Launch: launch, Env: append(Without(os.Environ()),
				"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")})
			assert.Equal(t, 3, c.Size())
			r, err := c.DoAll(t.Context(), "compute 1000")
			require.NoError(t, err)
			assert.Len(t, r, 3)
		})
	}
}

// TestAgents checks that the processes of a job find each other, start programs in their places,
// and end with rank 0.
func TestAgents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meet")
	require.NoError(t, os.WriteFile(file, []byte("127.0.0.1:1\nold\n"), 0o600), "the file of an earlier job")
	joined := make(chan error, 2)
	for rank := 1; rank < 3; rank++ {
		go func() { joined <- Join(t.Context(), file, store.Proc{Rank: rank, Size: 3}) }()
	}
	a, err := Gather(t.Context(), file, store.Proc{Rank: 0, Size: 3})
	require.NoError(t, err)
	assert.NoFileExists(t, file)
	assert.Equal(t, 3, a.Size())

	dir := t.TempDir()
	j, err := a.start([]string{"sh", "-c", `echo "$WORD" > "$DIR/$$"`}, append(os.Environ(), "WORD=it", "DIR="+dir))
	require.NoError(t, err)
	require.NoError(t, j.end(time.Minute))
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, all, 3)

	j, err = a.start([]string{"sh", "-c", "exit 3"}, nil)
	require.NoError(t, err)
	<-j.ended()
	assert.ErrorContains(t, j.end(time.Minute), "exit status 3")

	j, err = a.start([]string{"sleep", "600"}, nil)
	require.NoError(t, err)
	assert.ErrorContains(t, j.end(time.Millisecond), "were killed")

	_, err = a.start([]string{"sleep", "600"}, nil)
	require.NoError(t, err)
	a.Close()
	require.NoError(t, <-joined)
	require.NoError(t, <-joined)
	assert.Empty(t, proc.Descendants(os.Getpid()), "no program outlives the agents")
}

// TestJobID checks the id of a job for the environments of launchers.
func TestJobID(t *testing.T) {
	none := func() []string { return nil }
	for _, tt := range []struct {
		env    map[string]string
		parent func() []string
		want   string
	}{
		{map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "PMI_RANK": "0"}, none, "slurm-7-1"},
		{map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_ess_base_jobid": "99"}, none, "pmix-99"},
		{map[string]string{"PMIX_NAMESPACE": "prte@1"}, none, "pmix-prte@1"},
		{nil, func() []string { return []string{"hydra_pmi_proxy", "--control-port", "host:4711", "--rmk"} }, "hydra-host:4711"},
		{nil, none, ""},
	} {
		id, err := jobID(func(name string) string { return tt.env[name] }, tt.parent)
		assert.Equal(t, tt.want, id)
		assert.Equal(t, tt.want == "", err != nil)
	}
}

// TestSpan checks the duration of a round on one host and on several hosts.
func TestSpan(t *testing.T) {
	at := func(boot string, begin, end int64) Report {
		return Report{boot: boot, values: map[string]int64{"begin": begin, "end": end}}
	}
	assert.EqualValues(t, 25, Round{at("a", 5, 10), at("a", 10, 30)}.Span(), "from the first begin to the last end")
	assert.EqualValues(t, 20, Round{at("a", 5, 10), at("b", 1000, 1020)}.Span(), "times of different hosts are not comparable")
	assert.Zero(t, Round(nil).Span())
}
