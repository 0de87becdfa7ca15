//go:build !race

package posixshim_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/owner"
	jobstore "nvmecr/internal/store"
	"nvmecr/posixshim"
)

// These tests build the preloaded library and the runtimes and run real
// programs under them, most of them twice: in a local directory and under the
// mount. What they print has to be the same.
//
// Under the race detector the package has no such tests: it would watch the test,
// not the programs.

const mount = "/nvmecr"

// libraries brings those beside bin/nvmecr up to date, once for all tests, and
// returns their directory.
var libraries = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("make", "-C", "..", "bin/nvmecr", "libraries").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make libraries: %w\n%s", err, out)
	}
	return filepath.Abs("../bin")
})

// scratch is removed when the tests are done.
var scratch string

func TestMain(m *testing.M) {
	// What the tests have inherited is not for their programs, some of which
	// print the numbers that descriptors get.
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil {
		fmt.Fprintln(os.Stderr, "inherited descriptors stay:", err)
	}
	if scratch, err = os.MkdirTemp("", "nvmecr-shim"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// tool skips the test if a compiler or launcher is not installed.
func tool(t testing.TB, name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// compile builds a program of testdata.
func compile(t testing.TB, compiler, source string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(source, filepath.Ext(source)))
	cmd := exec.Command(tool(t, compiler), append([]string{"-O1", "-o", program, filepath.Join("testdata", source)}, flags...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// store is a namespace and what a process needs to reach it.
type store struct {
	t       testing.TB
	preload string
	target  string
	run     string // XDG_RUNTIME_DIR, short because it holds sockets
	id      uuid.UUID
	serve   *exec.Cmd // nvmecr serve
	said    string    // by serve about the view
	viewed  string    // the directory of the view, once a test has asked for it
}

// What newStore may be asked to put beside the preloaded library.
const (
	noRuntime = ""
	runtimeOf = "libnvmecr-%s.so"
)

// newStore makes an empty store. The runtimes named, or all, lie beside the
// preloaded library.
func newStore(t testing.TB, runtimes ...string) *store {
	t.Helper()
	lib, err := libraries()
	require.NoError(t, err)
	dir, err := os.MkdirTemp(scratch, "s")
	require.NoError(t, err)
	s := &store{t: t, preload: filepath.Join(lib, "libnvmecr.so"), run: dir, id: uuid.New()}
	if len(runtimes) > 0 {
		s.preload = filepath.Join(dir, "libnvmecr.so")
		for _, name := range append(runtimes, "libnvmecr.so") {
			if name == noRuntime {
				continue
			}
			if _, err := os.Stat(filepath.Join(lib, name)); err != nil {
				t.Skipf("%s was not built", name)
			}
			require.NoError(t, os.Symlink(filepath.Join(lib, name), filepath.Join(dir, name)))
		}
	}
	image := filepath.Join(dir, "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 512<<20))
	s.target = "file:" + image
	s.startServe()
	return s
}

// startServe starts what `nvmecr run` starts beside its job. It ends with the test.
func (s *store) startServe() {
	group := jobstore.LockGroup(s.id)
	require.NoError(s.t, owner.Prepare(group))
	require.NoError(s.t, os.Mkdir(s.viewDir(), 0o700))
	s.serve = exec.Command(nvmecr(s.t), "serve")
	s.serve.Env = slices.DeleteFunc(s.environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
	s.serve.Env = append(s.serve.Env, "NVMECR_EXPORT="+s.viewDir())
	s.serve.Stderr = os.Stderr
	lifeline, err := s.serve.StdinPipe()
	require.NoError(s.t, err)
	stdout, err := s.serve.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.serve.Start())
	s.t.Cleanup(func() {
		_ = lifeline.Close()
		_ = s.serve.Wait() // a test may have killed it
		_ = unix.Unmount(s.viewDir(), unix.MNT_DETACH)
		_ = os.Remove(s.viewDir())
		owner.Abandon(group)
	})
	s.said, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(s.t, err)
}

func (s *store) viewDir() string {
	return filepath.Join(owner.Directory(jobstore.LockGroup(s.id)), "view")
}

// environ is that of a process that uses the store.
func (s *store) environ() []string {
	return append(os.Environ(), "LD_PRELOAD="+s.preload, "NVMECR_MOUNT="+mount, "NVMECR_TARGET="+s.target,
		"NVMECR_EXPORT="+s.viewed, "NVMECR_NAME=test", "NVMECR_VIEW=rank", "NVMECR_RUN="+s.id.String(), "NVMECR_TIMEOUT="+posixshim.Hang.String(), "XDG_RUNTIME_DIR="+s.run, "LC_ALL=C.UTF-8",
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
}

// command is one that runs under the preload.
func (s *store) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = s.environ()
	return cmd
}

// nvmecr is the path of the command.
func nvmecr(t testing.TB) string {
	lib, err := libraries()
	require.NoError(t, err)
	path := filepath.Join(lib, "nvmecr")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("make was not called: %v", err)
	}
	return path
}

// view has processes of the store use the view that `nvmecr serve` exports. The test is skipped where there is no FUSE.
func (s *store) view() *store {
	s.t.Helper()
	if s.said != "exported\n" {
		s.t.Skipf("there is no FUSE here: %s", s.said)
	}
	s.viewed = s.viewDir()
	return s
}

// slow is what processes say whose end takes long, as it may on a busy machine.
var slow = regexp.MustCompile(`(?m)^nvmecr: process \d+ is ending, and waits for its target .*\n`)

// output is what the command prints. It has to succeed.
func output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	stdout, stderr, err := finish(t, cmd)
	require.NoError(t, err, "%s\n%s%s", cmd, stdout, stderr)
	return stdout
}

// finish runs the command to its end. Of what it says on stderr it leaves out that
// something takes long.
func finish(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, err error) {
	t.Helper()
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	require.NoError(t, cmd.Start())
	watch := time.AfterFunc(posixshim.Hang, func() { _ = cmd.Process.Kill() })
	defer watch.Stop()
	err = cmd.Wait()
	return out.String(), slow.ReplaceAllString(errout.String(), ""), err
}

// diff shows the lines in which two outputs differ.
func diff(t testing.TB, want, got string) string {
	t.Helper()
	a, b := filepath.Join(t.TempDir(), "local"), filepath.Join(t.TempDir(), "mount")
	require.NoError(t, os.WriteFile(a, []byte(want), 0o600))
	require.NoError(t, os.WriteFile(b, []byte(got), 0o600))
	out, _ := exec.Command("diff", a, b).Output()
	return string(out)
}

// fortify makes the C library's headers use the checked forms of calls.
var fortify = []string{"-O2", "-D_FORTIFY_SOURCE=2"}

// TestPrograms runs each program in a local directory and under the mount.
func TestPrograms(t *testing.T) {
	for _, c := range []struct {
		name     string
		compiler string
		source   string
		flags    []string
		after    []string // files that it leaves for its end to write
	}{
		{"calls", "gcc", "calls.c", nil, nil},
		{"calls, fortified", "gcc", "calls.c", fortify, nil},
		{"streams", "gcc", "streams.c", nil, []string{"left-open", "stdout"}},
		{"streams, fortified", "gcc", "streams.c", fortify, []string{"left-open", "stdout"}},
		{"space", "gcc", "space.c", nil, nil},
		{"locks", "gcc", "locks.c", nil, nil},
		{"edges", "gcc", "edges.c", nil, nil},
		{"edges, fortified", "gcc", "edges.c", fortify, nil},
		{"system calls by number", "gcc", "raw.c", nil, nil},
		{"mappings", "gcc", "mappings.c", nil, []string{"at-exit"}},
		{"processes", "gcc", "forks.c", []string{"-pthread"}, nil},
		{"cancellation", "gcc", "cancels.c", []string{"-pthread"}, nil},
		{"OpenMP", "gcc", "openmp.c", []string{"-fopenmp"}, nil},
		{"interrupted", "gcc", "interrupts.c", nil, nil},
		{"bad buffers", "gcc", "faults.c", nil, nil},
		{"Fortran", "gfortran", "units.f90", nil, []string{"left-open"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := compile(t, c.compiler, c.source, c.flags...)
			local := t.TempDir()
			want := output(t, exec.Command(program, local))
			s := newStore(t)
			got := output(t, s.command(program, mount))
			assert.Empty(t, diff(t, want, got))
			assert.NotEmpty(t, got)
			for _, name := range c.after {
				content, err := os.ReadFile(filepath.Join(local, name))
				require.NoError(t, err)
				assert.NotEmpty(t, content)
				assert.Equal(t, string(content), output(t, s.command("cat", filepath.Join(mount, name))))
			}
		})
	}
}

func TestCoreutils(t *testing.T) {
	want := output(t, exec.Command("env", "LC_ALL=C.UTF-8", "sh", "testdata/coreutils.sh", t.TempDir(), t.TempDir()))
	got := output(t, newStore(t).command("sh", "testdata/coreutils.sh", mount, t.TempDir()))
	assert.Empty(t, diff(t, want, got))
	assert.Greater(t, strings.Count(got, "---"), 50)
}

func TestShell(t *testing.T) {
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			tool(t, shell)
			want := output(t, exec.Command(shell, "testdata/shell.sh", t.TempDir()))
			got := output(t, newStore(t).command(shell, "testdata/shell.sh", mount))
			assert.Empty(t, diff(t, want, got))
		})
	}
}

// A program without the library that is started in a directory of the mount
// must not find or leave anything.
func TestWorkingDirectoryWithoutLibrary(t *testing.T) {
	dir := t.TempDir()
	cmd := newStore(t).command("sh", "-c", "cd "+mount+" && unset LD_PRELOAD && touch lost; ls -A; exec touch /nvmecr/lost")
	cmd.Dir = dir
	stdout, stderr, err := finish(t, cmd)
	assert.Error(t, err)
	assert.Empty(t, stdout)
	assert.Equal(t, 2, strings.Count(stderr, "No such file or directory"), stderr)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestSignals(t *testing.T) {
	s := newStore(t)
	assert.Equal(t, "ok\n", output(t, s.command(compile(t, "gcc", "signals.c"), mount)))
}

// Handlers of faults see what they see without the library, and a bad buffer is
// EFAULT under all of them.
func TestFaultHandlers(t *testing.T) {
	program := compile(t, "gcc", "actions.c", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-pthread")
	for _, when := range []string{"before", "after", "both"} {
		want := output(t, exec.Command(program, when, t.TempDir()))
		assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, when, mount))), when)
		assert.Contains(t, want, "SEGV 2\n  signal 11, sent 0, there 1")
	}
	// By what, whether it is default, ignored or handled once, a fault or sent.
	for _, how := range []string{"0df", "0dr", "1df", "1dr", "2df", "2dr", "0if", "0ir", "1ir", "2if", "0of", "0or", "2of"} {
		want, _, whether := finish(t, exec.Command(program, "e"+how, t.TempDir()))
		got, stderr, ended := finish(t, newStore(t).command(program, "e"+how, mount))
		assert.Equal(t, want, got, how)
		assert.Equal(t, fmt.Sprint(whether), fmt.Sprint(ended), how)
		assert.Empty(t, stderr, how)
	}
}

// A program that writes over its environment before it uses a file.
func TestTitle(t *testing.T) {
	program := compile(t, "gcc", "title.c")
	for _, args := range [][]string{{mount}, {mount, "copied"}} {
		assert.Equal(t, "a: 4\nb: 4\na: 4\n", output(t, newStore(t).command(program, args...)), args)
	}
}

// Signals that wait for the end of calls come as they would have.
func TestSignalQueues(t *testing.T) {
	program := compile(t, "gcc", "queues.c", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
	assert.Contains(t, want, "4000 signals, 0 disordered, 0 calls failed\nignored 1\n")
}

// Handlers run where the program expects them, which collectors of garbage and
// schedulers of coroutines depend on.
func TestFrames(t *testing.T) {
	program := compile(t, "gcc", "frames.c", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-lm")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "main is behind the handler: 1\n")
	for range 3 {
		assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
	}
	// The same in a process that another one serves.
	shell := "exec 3> $0/held; " + program + " $0; :"
	assert.Empty(t, diff(t, want, output(t, newStore(t).command("bash", "-c", shell, mount))))
}

// A handler that comes in the middle of a call runs when that is done.
func TestHandlersAmongCalls(t *testing.T) {
	program := compile(t, "gcc", "jumps.c", "-pthread")
	for _, args := range [][]string{nil, {"jump"}} {
		want := output(t, exec.Command(program, append([]string{t.TempDir()}, args...)...))
		require.Equal(t, "0 failed\n", want)
		assert.Equal(t, want, output(t, newStore(t).command(program, append([]string{mount}, args...)...)), args)
		// The same in a process that another one serves.
		shell := "exec 3> $0/held; " + program + " $0 " + strings.Join(args, " ") + "; :"
		assert.Equal(t, want, output(t, newStore(t).command("bash", "-c", shell, mount)), args)
	}
}

// What a handler writes when the job's time is over.
func TestCheckpointInHandler(t *testing.T) {
	program := compile(t, "gcc", "handler.c")
	want := output(t, exec.Command(program, t.TempDir()))
	assert.Empty(t, diff(t, want, output(t, newStore(t).command(program, mount))))
	assert.Contains(t, want, "-- thread\nfd >= 0 = 1\n")
}

// What is asked for the name of a descriptor.
func TestDescriptorNames(t *testing.T) {
	program := compile(t, "gcc", "fdnames.c", "-w")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	assert.Empty(t, diff(t, output(t, exec.Command(program, dir)), output(t, newStore(t).command(program, mount))))
}

// A program that is executed has children that write, as the one before did.
func TestGivesUpToExecute(t *testing.T) {
	program := compile(t, "gcc", "exec.c", "-w")
	want := output(t, exec.Command(program, t.TempDir()))
	s := newStore(t)
	begin := time.Now()
	assert.Empty(t, diff(t, want, output(t, s.command(program, mount))))
	t.Logf("in %v", time.Since(begin))
	assert.Contains(t, want, "one\ntwo\nmore\n")
	assert.Equal(t, "closed", output(t, s.command("head", "-c", "6", mount+"/b")))
}

// A program that is executed while files are open that it does not get.
func TestExecutesWithOpenFiles(t *testing.T) {
	program := compile(t, "gcc", "execopen.c", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "line\nline\nline\nmore\nmoved\n")
	for _, s := range []*store{newStore(t), newStore(t).overTCP()} {
		begin := time.Now()
		stdout, stderr, err := finish(t, s.command(program, mount))
		require.NoError(t, err)
		assert.Empty(t, diff(t, want, stdout))
		assert.Empty(t, stderr)
		t.Logf("in %v", time.Since(begin))
	}
}

// What a process had when it called _exit is there, as after exit.
func TestQuit(t *testing.T) {
	program := compile(t, "gcc", "quit.c")
	for _, how := range []string{"", "handler", "small", "exec"} {
		cmd := newStore(t).command("sh", "-c", program+" "+how+" $0/a $0/b && exec cat $0/a $0/b", mount)
		cmd.Env = append(cmd.Env, "NVMECR_DURABILITY=close")
		assert.Equal(t, "mapped\nwritten", output(t, cmd), how)
	}
}

// What is ignored is so in a program that is executed.
func TestIgnoredSignals(t *testing.T) {
	program := compile(t, "gcc", "ignored.c")
	want := "not executed: 1 1 1 1 1 1 1 1\n" +
		strings.Repeat("spawned: 1 1 1 1\n", 4) +
		"executed: 1 1 1 1 1\n"
	require.Equal(t, want, output(t, exec.Command(program, t.TempDir()+"/f")), "without the library")
	assert.Equal(t, want, output(t, newStore(t).command(program, mount+"/f")))
}

// A debugger is not stopped by what the library does.
func TestDebugger(t *testing.T) {
	gdb, program := tool(t, "gdb"), compile(t, "gcc", "plain.c")
	run := func(cmd *exec.Cmd, dir string) string {
		cmd.Args = append(cmd.Args, "-nx", "-batch", "-ex", "run", "--args", program, dir+"/f")
		stdout, _, _ := finish(t, cmd)
		return stdout
	}
	const well = "exited normally"
	if out := run(exec.Command(gdb), t.TempDir()); !strings.Contains(out, well) {
		t.Skipf("gdb does not work here: %s", out)
	}
	assert.Contains(t, run(newStore(t).command(gdb), mount), well)
}

// What a handler of a signal ends is written as at any other end.
func TestExitInHandler(t *testing.T) {
	program := compile(t, "gcc", "exits.c")
	for _, how := range []string{"main", "thread"} {
		require.Equal(t, "buffered, at the end", output(t, exec.Command("sh", "-c", program+" $0/f "+how+" && exec cat $0/f", t.TempDir())))
		assert.Equal(t, "buffered, at the end", output(t, newStore(t).command("sh", "-c", program+" $0/f "+how+" && exec cat $0/f", mount)), how)
	}
}

// Threads that write while another one ends the process see nothing of it.
func TestEndAmongThreads(t *testing.T) {
	stdout, stderr, err := finish(t, newStore(t).command(compile(t, "gcc", "ends.c"), mount))
	require.NoError(t, err)
	assert.Equal(t, "ok\n", stdout)
	assert.Empty(t, stderr)
}

// What waits for a signal that all threads of the program block.
func TestSignalMasks(t *testing.T) {
	program := compile(t, "gcc", "masks.c")
	require.Equal(t, "ok\n", output(t, exec.Command(program, t.TempDir())), "without the library")
	assert.Equal(t, "ok\n", output(t, newStore(t).command(program, mount)))
}

func TestPythonProcesses(t *testing.T) {
	python := tool(t, "python3")
	native := exec.Command(python, "testdata/processes.py", t.TempDir())
	native.Env = append(os.Environ(), "TMPDIR=/tmp") // a short path, for sockets
	under := newStore(t).command(python, "testdata/processes.py", mount)
	under.Env = append(under.Env, "TMPDIR=/tmp")
	want, got := output(t, native), output(t, under)
	assert.Empty(t, diff(t, want, got))
	assert.NotEmpty(t, got)
}

// Programs whose standard streams a shell has put into the mount.
func TestRedirection(t *testing.T) {
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			tool(t, shell)
			want := output(t, exec.Command("sh", "testdata/redirect.sh", t.TempDir(), shell))
			got := output(t, newStore(t).command("sh", "testdata/redirect.sh", mount, shell))
			assert.Empty(t, diff(t, want, got))
		})
	}
}

func TestVfork(t *testing.T) {
	s := newStore(t)
	stdout, stderr, err := finish(t, s.command(compile(t, "gcc", "vforks.c"), mount))
	require.NoError(t, err, stderr)
	assert.Equal(t, "child: 5 EIO\nexec: 0\nparent: 1\nclose: 0\n", stdout)
	assert.Regexp(t, `^nvmecr: process \d+ was made by vfork and cannot use /nvmecr before exec\n$`, stderr)
}

// mpis are the MPI libraries, by the suffix that Debian gives their commands.
var mpis = []struct {
	name   string
	mpirun []string
}{
	{"openmpi", []string{"mpirun.openmpi", "--oversubscribe", "-n", "4"}},
	{"mpich", []string{"mpirun.mpich", "-n", "4"}},
}

// ranks runs a program on four ranks.
func (s *store) ranks(mpirun []string, program string, args ...string) *exec.Cmd {
	tool(s.t, mpirun[0])
	return s.command(mpirun[0], append(append(mpirun[1:len(mpirun):len(mpirun)], program), args...)...)
}

func TestMPI(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name)) // another runtime would not be found
			program := compile(t, "mpicc."+mpi.name, "ranks.c")
			for _, args := range [][]string{{mount}, {mount, "again"}, {mount, "threads"}} {
				assert.Equal(t, "ok\n", output(t, s.ranks(mpi.mpirun, program, args...)), args)
			}
			for _, source := range []string{"ranks.f90", "ranks08.f90"} {
				program := compile(t, "mpif90."+mpi.name, source)
				assert.Equal(t, "ok\n", output(t, s.ranks(mpi.mpirun, program, mount)), source)
			}
		})
	}
}

// Ranks that open one file together are refused, by MPI's means and with one line.
func TestSharedFile(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name))
			for source, compiler := range map[string]string{"shared.c": "mpicc.", "shared.f90": "mpif90.", "shared08.f90": "mpif90."} {
				program := compile(t, compiler+mpi.name, source)
				stdout, stderr, err := finish(t, s.ranks(mpi.mpirun, program, mount+"/"+source, filepath.Join(t.TempDir(), "elsewhere")))
				require.NoError(t, err, stderr)
				assert.Equal(t, "ok\n", stdout, source)
				assert.Equal(t, 1, strings.Count(stderr, "MPI_File_open of /nvmecr/"+source+" by 4 ranks is refused"), stderr)
			}
		})
	}
}

func TestMPIWithoutTarget(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name))
			s.target = "file:/nowhere/image"
			_, stderr, err := finish(t, s.ranks(mpi.mpirun, compile(t, "mpicc."+mpi.name, "ranks.c"), mount))
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "it has to fail")
			assert.Equal(t, 1, strings.Count(stderr, "cannot be used"), "said by one rank, in one line:\n%s", stderr)
			assert.Contains(t, stderr, "nvmecr: rank 0: files under /nvmecr")
			assert.NotContains(t, stderr, "cannot be used: rank", "which is said already")
			assert.Contains(t, stderr, "/nowhere/image")
			assert.Contains(t, stderr, "Input/output error")
		})
	}
}

func TestWithoutRuntime(t *testing.T) {
	s := newStore(t, noRuntime)
	local := t.TempDir()
	stdout, stderr, err := finish(t, s.command("sh", "-c", "echo x >"+local+"/x && cp "+local+"/x "+mount+"/x; ls "+local))
	require.NoError(t, err)
	assert.Equal(t, "x\n", stdout, "what is outside the mount works")
	assert.Contains(t, stderr, "nvmecr: files under /nvmecr cannot be used: ")
	assert.Contains(t, stderr, "libnvmecr-plain.so")
	_, err = os.Stat(mount)
	assert.ErrorIs(t, err, os.ErrNotExist, "nothing is made in its place")
}

func TestBadConfiguration(t *testing.T) {
	s := newStore(t)
	s.target = "floppy:A"
	_, stderr, err := finish(t, s.command("ls", mount))
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit))
	assert.Contains(t, stderr, "NVMECR_TARGET")
	assert.Contains(t, stderr, "Invalid argument")
}

func TestNoMountIsInert(t *testing.T) {
	s := newStore(t)
	cmd := s.command("ls", mount)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+s.preload, "LC_ALL=C")
	_, stderr, err := finish(t, cmd)
	assert.Error(t, err)
	assert.Equal(t, "ls: cannot access '/nvmecr': No such file or directory\n", stderr)
}

// maxIdle is what a rank may cost beyond its application, in KiB.
const maxIdle = 32 << 10

func TestIdleMemory(t *testing.T) {
	s := newStore(t)
	out := output(t, s.command(compile(t, "gcc", "idle.c"), mount))
	var before, after int
	_, err := fmt.Sscan(out, &before, &after)
	require.NoError(t, err, out)
	t.Logf("resident: %d KiB before, %d KiB after the first file", before, after)
	assert.Less(t, after-before, maxIdle)
}

// BenchmarkStart compares the start of a program that never touches the mount
// with and without the library.
func BenchmarkStart(b *testing.B) {
	s := newStore(b)
	for _, c := range []struct {
		name string
		env  []string
	}{{"alone", os.Environ()}, {"preloaded", s.environ()}} {
		b.Run(c.name, func(b *testing.B) {
			fastest := time.Duration(1 << 62)
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				cmd.Env = c.env
				begin := time.Now()
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
				fastest = min(fastest, time.Since(begin))
			}
			b.ReportMetric(float64(fastest.Microseconds()), "us-min")
		})
	}
}
