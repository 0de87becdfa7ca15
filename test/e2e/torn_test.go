package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/internal/proc"
)

// tornTargets is the index of --target in the flags of the runs.
const tornTargets = 3

// A torn is a store with a tree, ranks that write to it, and the promises made to them.
type torn struct {
	*demo.Stage
	t       *testing.T
	random  *rand.Rand
	mpi     string
	size    int // number of ranks
	program string
	logs    string
	flags   []string
	target  *demo.Job // nil: each run has an embedded target
	again   []string  // command that starts the target
	agent   string    // starts ranks on another host; "" for this host
	round   int
}

// aKill describes what is done to a run in progress.
type aKill struct {
	name string
	hit  func(s *torn, run *demo.Job)
	// said is the message of ranks that continue; "" if none does.
	said string
	// goesOn is true if the rest of the job's script finds all data.
	goesOn bool
	// timeout is the time-out of the run, after which lost data is an error.
	timeout time.Duration
}

var theIndex = aKill{"the index", (*torn).killIndex, "and is started again", true, hang}

var kills = []aKill{
	{"a rank", func(s *torn, _ *demo.Job) { s.kill(s.ranks()[s.random.IntN(s.size)]) }, "", true, hang},
	{"all ranks", func(s *torn, _ *demo.Job) { s.kill(s.ranks()...) }, "", true, hang},
	theIndex,
	{"all of it", func(s *torn, run *demo.Job) { s.kill(append(proc.Descendants(run.PID()), run.PID())...) }, "", false, hang},
	{"the target", func(s *torn, _ *demo.Job) { s.kill(s.processes("target")...) }, "Input/output error", false, 3 * time.Second},
}

// TestIndexKilledFarAway checks that ranks of another host continue with the successor of a killed index.
func TestIndexKilledFarAway(t *testing.T) {
	t.Parallel()
	s := newTorn(t, "mpich", "127.0.0.1")
	s.agent = otherhost(t, s.Stage)
	s.flags[len(s.flags)-1] = strings.Replace(s.flags[len(s.flags)-1], "traddr:127.0.0.1", "traddr:localhost", 1) // a name, which launchers carry elsewhere
	s.tear(theIndex)
	s.check(theIndex)
}

// killIndex kills the index several times, and the ranks after they have continued.
func (s *torn) killIndex(run *demo.Job) {
	for range 3 {
		s.kill(s.processes("serve")...)
		s.await(run, s.progress()+1+s.random.IntN(40))
	}
	s.kill(s.ranks()...)
}

// TestTreeKilled kills ranks, the index, the target, and all of them at random times. The effects of completed calls exist afterwards:
// for another number of ranks, for processes that are not ranks, and from outside.
func TestTreeKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ mpi, address string }{{"mpich", ""}, {"openmpi", awayAddress()}} {
		t.Run(c.mpi, func(t *testing.T) {
			s := newTorn(t, c.mpi, c.address)
			for _, k := range kills {
				s.tear(k)
				s.check(k)
			}
		})
	}
}

// TestTreeKilledOnTwoTargets continues with fewer and with more ranks after each kill, on two targets.
func TestTreeKilledOnTwoTargets(t *testing.T) {
	t.Parallel()
	s := newTorn(t, "mpich", "127.0.0.1")
	_, second := serve(t, s.Stage, "--listen", "127.0.0.1:0", "--namespace", "mem:1G")
	s.flags = append(s.flags, "--target", second)
	for _, s.size = range []int{4, 2, 6} {
		for _, k := range kills[1:4] {
			s.tear(k)
			s.check(k)
		}
	}
}

// newTorn creates a store on a target at an address, or, if that is empty, on the embedded target.
func newTorn(t *testing.T, mpi, address string) *torn {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	program, err := filepath.Abs("testdata/torn.py")
	require.NoError(t, err)
	s := &torn{Stage: newStage(t), t: t, random: rand.New(rand.NewPCG(seed, 0)), mpi: "mpirun." + mpi, size: 3, program: program}
	s.logs = filepath.Join(s.Dir, "logs")
	require.NoError(t, os.Mkdir(s.logs, 0o700))
	s.flags = []string{"--name", "torn", "--view=job"}
	if address != "" {
		namespace := "file:" + filepath.Join(s.Dir, "image") + "?size=1G"
		job, id := serve(t, s.Stage, "--listen", address+":0", "--namespace", namespace)
		s.target, s.again = job, []string{"--listen", net.JoinHostPort(address, portOf(t, id)), "--namespace", namespace}
		s.flags = append(s.flags, "--target", id)
	}
	return s
}

// tear starts ranks that write, and kills.
func (s *torn) tear(k aKill) {
	s.round++
	line := strings.Join(s.launch("env", "ROUND="+strconv.Itoa(s.round), python, s.program, "write", "/nvmecr/d", s.logs), " ")
	script := line + `; echo "ended with $?"; exec ` + python + ` ` + s.program + " check /nvmecr/d " + s.logs
	argv := append(append([]string{s.Nvmecr, "run", "--timeout", k.timeout.String()}, s.flags...), "--", "sh", "-c", script)
	run, err := s.Start(argv, "STAGE="+s.Dir)
	require.NoError(s.t, err)
	s.await(run, 2+s.random.IntN(60)) // the first line of a log is no promise: the directory may not exist
	time.Sleep(time.Duration(s.random.Int64N(int64(20 * time.Millisecond))))
	begin := time.Now()
	k.hit(s, run)
	err = s.wait(run)
	s.t.Logf("%s: ended after %v", k.name, time.Since(begin))
	out, said := strings.Join(run.Stdout.Lines(), "\n"), strings.Join(run.Stderr.Lines(), "\n")
	assert.NotContains(s.t, out, "ended with 0", k.name)
	assert.Contains(s.t, said, k.said, k.name)
	if k.goesOn {
		assert.NoError(s.t, err, k.name)
	} else {
		assert.Error(s.t, err, k.name)
	}
}

// launch returns the command line that starts the ranks.
func (s *torn) launch(argv ...string) []string {
	if s.agent != "" {
		return append(onNode7(strings.TrimPrefix(s.mpi, "mpirun."), s.agent, s.size), argv...)
	}
	return demo.MPIRun(s.mpi, s.size, argv...)
}

// await waits until each rank has at least a number of promises.
func (s *torn) await(run *demo.Job, least int) {
	for deadline := time.Now().Add(hang); s.progress() < least; time.Sleep(10 * time.Millisecond) {
		if run.Ended() || time.Now().After(deadline) {
			s.t.Fatalf("there is no progress: %v: %s", run.Wait(s.t.Context()), run.Stderr.Tail(20))
		}
	}
}

func (s *torn) wait(run *demo.Job) error {
	for deadline := time.Now().Add(hang); !run.Ended(); time.Sleep(10 * time.Millisecond) {
		require.False(s.t, time.Now().After(deadline), "it hangs: %s", run.Stderr.Tail(20))
	}
	return run.Wait(s.t.Context())
}

// check verifies all promises.
func (s *torn) check(k aKill) {
	if s.target != nil && s.target.Ended() {
		s.target, _ = serve(s.t, s.Stage, s.again...)
	}
	look := []string{python, s.program, "check", "/nvmecr/d", s.logs}
	n := []int{1, 2, 5}[s.random.IntN(3)]
	for who, argv := range map[string][]string{"no rank": look, fmt.Sprintf("%d ranks", n): demo.MPIRun(s.mpi, n, look...)} {
		r := call(s.t, s.Stage, append(append(append([]string{"run"}, s.flags...), "--"), argv...)...)
		require.Equal(s.t, 0, r.code, "%s, %s: %s%s", k.name, who, r.stdout, r.stderr)
	}
	out := filepath.Join(s.Dir, "out"+strconv.Itoa(s.round))
	where := s.flags[:2]
	if s.target != nil {
		where = append(where[:2:2], s.flags[tornTargets:]...)
	}
	for _, argv := range [][]string{{"cp", "/d", out}, {"fsck"}, {"verify"}} {
		r := call(s.t, s.Stage, append(append(argv[:1:1], where...), argv[1:]...)...)
		require.Equal(s.t, 0, r.code, "%s, %v: %s%s", k.name, argv, r.stdout, r.stderr)
	}
	local, err := s.Start([]string{python, s.program, "check", out, s.logs})
	require.NoError(s.t, err)
	require.NoError(s.t, s.wait(local), "%s: from outside", k.name)
}

// logsOf returns the logs of the ranks of this round.
func (s *torn) logsOf() (texts [][]byte) {
	for rank := range s.size {
		if text, err := os.ReadFile(filepath.Join(s.logs, fmt.Sprintf("%d-%d", s.round, rank))); err == nil {
			texts = append(texts, text)
		}
	}
	return texts
}

// progress returns the smallest number of promises of a rank.
func (s *torn) progress() int {
	texts := s.logsOf()
	if len(texts) < s.size {
		return 0
	}
	least := bytes.Count(texts[0], []byte("\n"))
	for _, text := range texts[1:] {
		least = min(least, bytes.Count(text, []byte("\n")))
	}
	return least
}

// ranks returns the processes of the ranks.
func (s *torn) ranks() (pids []int) {
	for _, text := range s.logsOf() {
		var pid int
		_, err := fmt.Sscanf(string(text), "pid %d\n", &pid)
		require.NoError(s.t, err)
		pids = append(pids, pid)
	}
	return pids
}

// processes returns the processes of the stage that run a command of nvmecr.
func (s *torn) processes(command string) (pids []int) {
	for _, pid := range s.Processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if argv := strings.Split(string(line), "\x00"); len(argv) > 1 && argv[0] == s.Nvmecr && argv[1] == command {
			pids = append(pids, pid)
		}
	}
	require.NotEmpty(s.t, pids, "no nvmecr %s", command)
	return pids
}

func (s *torn) kill(pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// TestCheckOfTree checks that fsck reports shards of removed files while no rank exists that could remove them, and removes them with
// --repair.
func TestCheckOfTree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program := treeProgram(t, s.Dir, "mpich")
	_, id := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:256M")
	target := []string{"--target", id}
	run := append([]string{"run", "--view=job"}, append(target, "--")...)
	call(t, s, append(run, demo.MPIRun("mpirun.mpich", 3, program, "/nvmecr", "write")...)...).ok(t)
	fsck := append([]string{"fsck"}, target...)
	assert.NotContains(t, call(t, s, fsck...).ok(t), "tree:")
	call(t, s, append(run, "sh", "-c", "rm -r /nvmecr/*")...).ok(t)
	assert.Contains(t, call(t, s, fsck...).ok(t), "tree: note: partition of rank 0: ")
	assert.Contains(t, call(t, s, append(fsck, "--repair")...).ok(t), "rank 0: repair: ")
	assert.NotContains(t, call(t, s, fsck...).ok(t), "tree:")
}

// TestTreeOpenFiles checks that open files are unaffected when the rank takes its partition, or leaves it to a child.
func TestTreeOpenFiles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program, err := filepath.Abs("testdata/moved.py")
	require.NoError(t, err)
	for _, how := range []string{"unlinked", "renamed", "yielded"} {
		t.Run(how, func(t *testing.T) {
			r := call(t, s, "run", "--view=job", "--", "env", "PMI_RANK=0", "PMI_SIZE=2", python, program, how, "/nvmecr")
			r.ok(t)
			assert.NotContains(t, r.stderr, "cannot be used any more")
		})
	}
}
