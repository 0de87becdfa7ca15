//go:build !race

package posixshim_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFileSizeLimit runs a process with a limit for the size of its files (RLIMIT_FSIZE) in a local directory and in
// the mount.
func TestFileSizeLimit(t *testing.T) {
	program := compile(t, "gcc", "fsize.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "EFBIG SIGXFSZ\n")
	// The target is on TCP: the limit would also apply to the file of a namespace.
	assert.Empty(t, diff(t, want, output(t, newStore(t).overTCP().command(program, mount))))
}

// TestSpawnOpens checks files of the mount that posix_spawn opens for a program.
func TestSpawnOpens(t *testing.T) {
	program := compile(t, "gcc", "spawns.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	want := output(t, exec.Command(program, t.TempDir()))
	require.Contains(t, want, "input: spawned, status 0\n")
	assert.Empty(t, diff(t, want, output(t, newStore(t).view().command(program, mount))))
}

// TestLoads loads shared libraries of the mount with dlopen.
func TestLoads(t *testing.T) {
	lib, local := t.TempDir(), t.TempDir()
	for name, dir := range map[string]string{"first": local, "second": local, "third": lib} {
		out, err := exec.Command(tool(t, "gcc"), "-shared", "-fPIC", "-DNAME="+name, "-o", filepath.Join(dir, name+".so"), "testdata/library.c").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	program := compile(t, "gcc", "loads.c", "-Wall", "-Wextra", "-Werror", "-Wl,--enable-new-dtags,-rpath,"+lib)
	s := newStore(t).view()
	output(t, s.command("cp", filepath.Join(local, "first.so"), filepath.Join(local, "second.so"), mount))
	want := output(t, exec.Command(program, local))
	require.Contains(t, want, "error/nowhere.so: cannot open shared object file: No such file or directory\n")
	assert.Empty(t, diff(t, want, output(t, s.command(program, mount))))
}

// TestPythonLoads loads modules and shared libraries of the mount in Python.
func TestPythonLoads(t *testing.T) {
	flags, err := exec.Command("pkg-config", "--cflags", "python3").Output()
	if err != nil {
		t.Skip("the development files of Python are not installed")
	}
	python, local := tool(t, "python3"), t.TempDir()
	module := filepath.Join(local, "adds.so")
	args := append([]string{"-shared", "-fPIC", "-o", module, "testdata/module.c"}, strings.Fields(string(flags))...)
	out, err := exec.Command(tool(t, "gcc"), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	const script = `
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import adds
print(adds.add(2, 3), adds.__file__)
first, again = ctypes.PyDLL(sys.argv[1] + "/adds.so"), ctypes.PyDLL(sys.argv[1] + "/adds.so")
print(first._handle == again._handle, hasattr(first, "PyInit_adds"))
if os.fork() == 0:
    print(adds.add(20, 30), flush=True)
    os._exit(0)
os.wait()
`
	s := newStore(t).view()
	output(t, s.command("cp", module, mount))
	want := output(t, exec.Command(python, "-B", "-c", script, local))
	got := output(t, s.command(python, "-B", "-c", script, mount))
	assert.Equal(t, strings.ReplaceAll(want, local, mount), got)
}
