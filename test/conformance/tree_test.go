package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/demo/demotest"
)

// patience is the time limit for all cases together.
const patience = 10 * time.Minute

// TestConformanceTree runs every case in the tree of a job.
func TestConformanceTree(t *testing.T) {
	s := newStage(t)
	nvmecr := filepath.Join(s.dir, "nvmecr")
	copyFile(t, demotest.Nvmecr(t), nvmecr)
	plain := s.compile("plain", "-O1")
	verbs := set(ask(t, plain, "verbs"))
	cases := slices.DeleteFunc(readCases(t), func(c testCase) bool { return !c.has(verbs) })
	for _, mode := range []struct {
		name        string
		ranks       []string // variables that a launcher sets for each process
		differences []string
	}{
		{"no rank", []string{""}, []string{"differences.txt", "differences_tree.txt"}},
		{"one rank", []string{"PMI_RANK=0 PMI_SIZE=2"}, []string{"differences.txt", "differences_tree.txt"}},
		{"two ranks in turn", []string{"PMI_RANK=0 PMI_SIZE=2", "PMI_RANK=1 PMI_SIZE=2"},
			[]string{"differences.txt", "differences_tree.txt", "differences_ranks.txt"}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			s.t = t
			accepted := readDifferences(t, mode.differences...)
			for _, user := range []bool{false, true} {
				some := slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.user != user })
				local := filepath.Join(s.dir, fmt.Sprint("local", s.runs))
				require.NoError(t, os.Mkdir(local, 0o700))
				require.NoError(t, os.Chmod(local, 0o777))
				want := s.inTurn(plain, local, user, some, mode.ranks)
				got := s.inTurn(plain, mount, user, some, mode.ranks, nvmecr, "run", "--view=job", "--")
				accepted.compare(t, some, want, got)
			}
			if os.Getuid() == 0 && !t.Failed() {
				accepted.stale(t)
			}
		})
	}
}

// TestConformanceOfSiblings runs the cases that have several descriptors of a file by two processes of a rank: one has the partition, and
// executes the calls of the other one.
func TestConformanceOfSiblings(t *testing.T) {
	s := newStage(t)
	nvmecr := filepath.Join(s.dir, "nvmecr")
	copyFile(t, demotest.Nvmecr(t), nvmecr)
	plain := s.compile("plain", "-O1")
	cases := slices.DeleteFunc(readCases(t), func(c testCase) bool { return !severalDescriptors.MatchString(c.name) || c.user })
	require.NotEmpty(t, cases)
	ranks := []string{"PMI_RANK=0 PMI_SIZE=2", "PMI_RANK=0 PMI_SIZE=2"}
	local := filepath.Join(s.dir, "local")
	require.NoError(t, os.Mkdir(local, 0o700))
	want := s.inTurn(plain, local, false, cases, ranks)
	got := s.inTurn(plain, mount, false, cases, ranks, nvmecr, "run", "--view=rank", "--size=1G", "--")
	readDifferences(t, "differences.txt").compare(t, cases, want, got)
}

var severalDescriptors = regexp.MustCompile("/(by another|sees other|two) descriptors?$")

// A process executes requested steps.
type process struct {
	in, out *os.File
	lines   *bufio.Reader // of out
}

func (p *process) send(t *testing.T, line string) {
	t.Helper()
	_, err := p.in.WriteString(line + "\n")
	require.NoError(t, err)
}

func (p *process) receive(t *testing.T) string {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	require.NoError(t, err)
	require.NotRegexp(t, "(died|^end)\n", line)
	return strings.TrimRight(line, " \n")
}

// turns returns the process for each step of a case: one after the other, but a step that uses a register is executed by the process that
// has it. A case that a single process has to run is for the last one.
func turns(steps []string, processes int) []int {
	turns := make([]int, len(steps))
	alone := slices.Repeat([]int{processes - 1}, len(steps))
	has := map[string]int{}
	for i, step := range steps {
		words := strings.Fields(step)
		turns[i] = i % processes
		bound := false
		for _, word := range words[1:] {
			turn, ok := has[word]
			if ofProcess(step) || ok && bound && turn != turns[i] {
				return alone
			}
			if ok {
				turns[i], bound = turn, true
			}
		}
		if register, _, ok := strings.Cut(words[0], "="); ok {
			has[register] = turns[i]
		}
	}
	return turns
}

// ofProcess reports whether a step changes a process, and no file.
func ofProcess(step string) bool {
	return slices.Contains([]string{"become", "groups", "setgid", "initgroups", "setuid", "seteuid", "setegid", "setreuid", "setregid",
		"umask", "descriptors", "chdir", "fchdir", "locale"}, verb(step))
}

// inTurn runs the cases in a directory, as a user, with a process for each rank, which execute the steps in turn (see turns).
func (s *stage) inTurn(program, dir string, user bool, cases []testCase, ranks []string, wrapper ...string) trace {
	s.t.Helper()
	processes, finish := s.launch(program, dir, user, ranks, wrapper...)
	tr := trace{}
	before := ""
	begin := func(name string) {
		for _, p := range processes {
			p.send(s.t, "case "+name)
			for line := p.receive(s.t); line != "case "+name; line = p.receive(s.t) {
				require.Contains(s.t, line, "left open", "at the end of %s", before)
				tr[before] = append(tr[before], line)
			}
		}
		before = name
	}
	for _, c := range cases {
		begin(c.name)
		for i, turn := range turns(c.steps, len(processes)) {
			p, step := processes[turn], c.steps[i]
			p.send(s.t, step)
			tr[c.name] = append(tr[c.name], p.receive(s.t))
		}
	}
	begin("none")
	delete(tr, "none")
	finish()
	return tr
}

// launch starts a process for each rank, with its variables, in a job of the wrapper. finish ends the processes.
func (s *stage) launch(program, dir string, user bool, ranks []string, wrapper ...string) (processes []*process, finish func()) {
	s.t.Helper()
	s.runs++
	base := filepath.Join(s.dir, fmt.Sprint(s.runs))
	require.NoError(s.t, os.Mkdir(base, 0o700))
	require.NoError(s.t, os.Chmod(base, 0o777))
	var script strings.Builder
	for i, settings := range ranks {
		in, out := filepath.Join(base, fmt.Sprint("in", i)), filepath.Join(base, fmt.Sprint("out", i))
		p := &process{in: pipe(s.t, in), out: pipe(s.t, out)}
		p.lines = bufio.NewReader(p.out)
		processes = append(processes, p)
		fmt.Fprintf(&script, "env %s %s %s plain <%s >%s || echo died >%s &\n", settings, program, dir, in, out, out)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	argv := append(slices.Clone(wrapper), "sh", "-c", script.String()+"wait")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.WaitDelay = "/", 10*time.Second
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+base, "XDG_RUNTIME_DIR="+base, "TMPDIR="+base)
	if user && os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(s.t, cmd.Start())
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		for _, p := range processes { // no further requests
			_ = p.out.SetReadDeadline(time.Now())
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		if s.t.Failed() {
			s.t.Logf("%s", stderr.String())
		}
	})
	return processes, func() {
		for _, p := range processes {
			require.NoError(s.t, p.in.Close())
		}
		require.NoError(s.t, <-ended, "%s", stderr.String())
		for _, p := range processes {
			require.NoError(s.t, p.out.Close())
		}
	}
}

// pipe creates a FIFO that every user may use.
func pipe(t *testing.T, path string) *os.File {
	t.Helper()
	require.NoError(t, unix.Mkfifo(path, 0o600))
	require.NoError(t, os.Chmod(path, 0o666))
	f, err := os.OpenFile(path, os.O_RDWR, 0) // O_RDWR does not wait for the other end
	require.NoError(t, err)
	return f
}
