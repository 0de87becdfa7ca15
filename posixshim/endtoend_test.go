//go:build !race

package posixshim_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fortify makes the C library's headers use the checked forms of calls.
var fortify = []string{"-O2", "-D_FORTIFY_SOURCE=2"}

// TestPrograms runs each program in a local directory and in the mount. Both runs must print the same.
func TestPrograms(t *testing.T) {
	for _, c := range []struct {
		name     string
		compiler string
		source   string
		flags    []string
		after    []string // files that the program writes when it exits
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
		{"libaio", "gcc", "libaio.c", nil, nil},
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

// TestCoreutils runs a script of commands of coreutils in a local directory and in the mount. Both runs must print
// the same.
func TestCoreutils(t *testing.T) {
	want := output(t, exec.Command("env", "LC_ALL=C.UTF-8", "sh", "testdata/coreutils.sh", t.TempDir(), t.TempDir()))
	got := output(t, newStore(t).command("sh", "testdata/coreutils.sh", mount, t.TempDir()))
	assert.Empty(t, diff(t, want, got))
	assert.Greater(t, strings.Count(got, "---"), 50)
}

// TestShell runs a shell, and commands of it, in a working directory of the mount. The output must be the same as in
// a local directory.
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

// TestWorkingDirectoryWithoutLibrary starts a program without the library in a directory of the mount. The program
// must find no files, and must create none in another place.
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

// TestTitle runs a program that overwrites its environment before it uses a file. Programs do so to change their
// title.
func TestTitle(t *testing.T) {
	program := compile(t, "gcc", "title.c")
	for _, args := range [][]string{{mount}, {mount, "copied"}} {
		assert.Equal(t, "a: 4\nb: 4\na: 4\n", output(t, newStore(t).command(program, args...)), args)
	}
}

// TestDescriptorNames checks the names of descriptors in /proc/self/fd.
func TestDescriptorNames(t *testing.T) {
	program := compile(t, "gcc", "fdnames.c", "-w")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	assert.Empty(t, diff(t, output(t, exec.Command(program, dir)), output(t, newStore(t).command(program, mount))))
}

// TestGivesUpToExecute checks that children of an executed program can write files, like children of the program
// before it.
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

// A program is executed while files are open that it does not inherit.
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

// TestQuit checks that all written data is in the files after _exit, as after exit.
func TestQuit(t *testing.T) {
	program := compile(t, "gcc", "quit.c")
	for _, how := range []string{"", "handler", "small", "exec"} {
		cmd := newStore(t).command("sh", "-c", program+" "+how+" $0/a $0/b && exec cat $0/a $0/b", mount)
		cmd.Env = append(cmd.Env, "NVMECR_DURABILITY=close")
		assert.Equal(t, "mapped\nwritten", output(t, cmd), how)
	}
}

// TestDebugger checks that the library raises no signals at which a debugger would stop.
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

// TestEndAmongThreads checks that writes of threads do not fail while another thread ends the process.
func TestEndAmongThreads(t *testing.T) {
	stdout, stderr, err := finish(t, newStore(t).command(compile(t, "gcc", "ends.c"), mount))
	require.NoError(t, err)
	assert.Equal(t, "ok\n", stdout)
	assert.Empty(t, stderr)
}

// TestPythonProcesses runs a Python program with child processes in a local directory and in the mount. Both runs
// must print the same.
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

// TestRedirection runs programs whose standard streams a shell has redirected to files of the mount.
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

// TestVfork checks that a child of vfork gets EIO and a message if it uses the mount before exec, and that its parent
// continues.
func TestVfork(t *testing.T) {
	s := newStore(t)
	stdout, stderr, err := finish(t, s.command(compile(t, "gcc", "vforks.c"), mount))
	require.NoError(t, err, stderr)
	assert.Equal(t, "child: 5 EIO\nexec: 0\nparent: 1\nclose: 0\n", stdout)
	assert.Regexp(t, `^nvmecr: process \d+ was made by vfork and cannot use /nvmecr before exec\n$`, stderr)
}

// TestWithoutRuntime checks that the missing file of the runtime causes a message, and that files outside the mount
// can be used.
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

// TestBadConfiguration checks that an invalid NVMECR_TARGET causes a message that names the variable.
func TestBadConfiguration(t *testing.T) {
	s := newStore(t)
	s.target = "floppy:A"
	_, stderr, err := finish(t, s.command("ls", mount))
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit))
	assert.Contains(t, stderr, "NVMECR_TARGET")
	assert.Contains(t, stderr, "Invalid argument")
}

// TestNoMountIsInert checks that the library does nothing if NVMECR_MOUNT is not set.
func TestNoMountIsInert(t *testing.T) {
	s := newStore(t)
	cmd := s.command("ls", mount)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+s.preload, "LC_ALL=C")
	_, stderr, err := finish(t, cmd)
	assert.Error(t, err)
	assert.Equal(t, "ls: cannot access '/nvmecr': No such file or directory\n", stderr)
}

// maxIdle is the limit for the memory that the library uses in a rank, in KiB.
const maxIdle = 32 << 10

// TestIdleMemory measures the memory that the first use of a file adds to a process.
func TestIdleMemory(t *testing.T) {
	s := newStore(t)
	out := output(t, s.command(compile(t, "gcc", "idle.c"), mount))
	var before, after int
	_, err := fmt.Sscan(out, &before, &after)
	require.NoError(t, err, out)
	t.Logf("resident: %d KiB before, %d KiB after the first file", before, after)
	assert.Less(t, after-before, maxIdle)
}

// BenchmarkStart measures the start of a program that does not use the mount, with the library and without it.
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
