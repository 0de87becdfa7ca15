//go:build !race

package posixshim_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The tests of this file execute programs and scripts of the mount. The kernel finds them at their paths in the FUSE view.

// job returns a command that runs a program by nvmecr run. The mount is at an existing directory, where the kernel
// finds the files, too. That needs root.
func (s *store) job(dir, name string, args ...string) *exec.Cmd {
	s.t.Helper()
	if os.Getuid() != 0 {
		s.t.Skip("only root has the files at the mount itself")
	}
	cmd := exec.Command(nvmecr(s.t), append([]string{"run", "--name", "job", "--size", "512M", "--mount", dir, "--", name}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+s.run, "XDG_RUNTIME_DIR="+s.run, "LC_ALL=C.UTF-8")
	return cmd
}

// exported skips the test if a job cannot have its mount at an existing directory on this machine.
func (s *store) exported(dir string) {
	s.t.Helper()
	stdout, stderr, err := finish(s.t, s.job(dir, "sh", "-c", "echo > $0/x && env -i cat $0/x", dir))
	require.NoError(s.t, err, stderr)
	if stdout != "\n" {
		s.t.Skipf("there is no FUSE here: %s", stderr)
	}
}

// TestExecutes executes programs of the mount in every way: in children of fork and of vfork, and by a search of
// PATH. The output must be the same as in a local directory.
func TestExecutes(t *testing.T) {
	program := compile(t, "gcc", "executes.c", "-Wall", "-Wextra", "-Werror")
	local, beside, elsewhere, mount := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	s := newStore(t)
	s.exported(mount)
	for _, c := range []struct {
		what string
		runs int // minimum number of executed programs
	}{
		{"make", 0},
		{"fork", 60},
		{"vfork", 40},
		{"search", 50},
		{"odd", 15},
	} {
		t.Run(c.what, func(t *testing.T) {
			want := output(t, exec.Command(program, local, beside, c.what))
			got := output(t, s.job(mount, program, mount, elsewhere, c.what))
			assert.Empty(t, diff(t, want, got))
			assert.GreaterOrEqual(t, strings.Count(got, "executed"), c.runs)
		})
	}
}

// TestProgramsOfTheMount runs a script that executes programs and scripts of the mount. The output must be the same
// as in a local directory.
func TestProgramsOfTheMount(t *testing.T) {
	for _, shell := range []string{"dash", "bash"} {
		t.Run(shell, func(t *testing.T) {
			for _, name := range []string{shell, "make", "python3", "perl"} {
				tool(t, name)
			}
			want := output(t, exec.Command("env", "LC_ALL=C.UTF-8", shell, "testdata/programs.sh", t.TempDir(), t.TempDir(), shell))
			got := output(t, newStore(t).view().command(shell, "testdata/programs.sh", mount, t.TempDir(), shell))
			assert.Empty(t, diff(t, want, got))
			assert.Contains(t, got, "#define SIZE 8\n")
		})
	}
}

// TestLargeProgram checks that a large program is executed from the view, where the kernel reads only the pages that
// it needs. A damaged block must be an error.
func TestLargeProgram(t *testing.T) {
	const end = "the end of this program"
	s := newStore(t).view()
	program := compile(t, "gcc", "large.c", "-Wall", "-Wextra", "-Werror")
	f, err := os.OpenFile(program, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(end), 200<<20-int64(len(end))) // data behind the ELF file, which the program reads from itself
	require.NoError(t, err)
	require.NoError(t, f.Close())
	execute := []string{"-c", "cd " + mount + " && ./large " + strconv.Itoa(len(end)) + "; echo $?"}
	output(t, s.command("cp", program, mount+"/large"))
	assert.Equal(t, "209715200 "+end+"\n0\n", output(t, s.command("sh", execute...)))

	image, err := os.OpenFile(strings.TrimPrefix(s.target, "file:"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = image.Close() }()
	content, err := unix.Mmap(int(image.Fd()), 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	at := bytes.Index(content, []byte(end))
	require.Positive(t, at)
	content[at]++
	require.NoError(t, unix.Munmap(content))
	stdout, stderr, err := finish(t, s.command("sh", execute...))
	require.NoError(t, err)
	assert.Equal(t, "1\n", stdout)
	assert.Contains(t, stderr, "Input/output error")
}

// TestExecutesWithoutRuntime checks that a process that only executes a program of the mount does not load the
// runtime, which is missing in this test.
func TestExecutesWithoutRuntime(t *testing.T) {
	s := newStore(t).view()
	output(t, s.command("sh", "-c", "cp /bin/echo $0/hi && mkdir $0/d && printf '#!/bin/sh\necho script\n' >$0/d/script && chmod +x $0/d/script", mount))
	bare := newStore(t, noRuntime)
	bare.target, bare.viewed = s.target, s.viewed
	vforks := compile(t, "gcc", "vforkexec.c", "-Wall", "-Wextra", "-Werror")
	for _, args := range [][]string{{mount + "/hi"}, {s.viewed + "/self/hi"}, {mount + "/d/../hi"}} {
		stdout, stderr, err := finish(t, bare.command(vforks, append(args, "executed")...))
		require.NoError(t, err, stderr)
		assert.Equal(t, "executed\n", stdout)
		assert.Empty(t, stderr)
	}
}

// TestRanksExecute checks that each rank can execute and load files of its own partition, also while it has the
// partition open.
func TestRanksExecute(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t).view() // children need the runtime without MPI
			program := compile(t, "mpicc."+mpi.name, "ranksexec.c", "-Wall", "-Wextra", "-Werror")
			library := compile(t, "gcc", "library.c", "-shared", "-fPIC", "-DNAME=probe")
			_, stderr, err := finish(t, s.ranks(mpi.mpirun, program, mount, library))
			require.NoError(t, err, stderr)
			assert.Contains(t, "\n"+stderr, "\nok\n") // stderr also has lines about libraries of other ranks
		})
	}
}

// TestViewEnds checks that a process with a working directory in the mount can continue after nvmecr serve has ended,
// and so can programs that it executes then. The start of another run at that time must not affect the view of this
// run.
func TestViewEnds(t *testing.T) {
	s := newStore(t).view()
	cmd := s.command("sh", "-c", `mkdir $0/d && cd $0/d && echo one >f && env -i /bin/pwd && kill -9 $1 && while test -e $2; do sleep 0.01; done
env -i PATH=$PATH XDG_STATE_HOME=$4 $3 run --size 256MiB -- true
cat f; pwd; sh -c 'echo two >>f; cat f; pwd; cd ..; ls'; cd $0; cat d/f; cp /bin/true .; ./true || echo $?`,
		mount, strconv.Itoa(s.serve.Process.Pid), filepath.Join(s.viewed, "job"), nvmecr(t), t.TempDir())
	stdout, _, err := finish(t, cmd)
	require.NoError(t, err)
	assert.Equal(t, s.viewed+"/job/d\none\n/nvmecr/d\none\ntwo\n/nvmecr/d\nd\none\ntwo\n126\n", stdout)
}

// TestWrittenAnew checks that a rewritten program is executed with its new content, although the kernel may have
// cached pages of the old content.
func TestWrittenAnew(t *testing.T) {
	s := newStore(t).view()
	a := compile(t, "gcc", "says.c", "-DSAYS=\"a\\n\"")
	b := compile(t, "gcc", "says.c", "-DSAYS=\"b\\n\"")
	script := `for i in 1 2 3 4 5 6 7 8 9 10; do cp $1 $0/p; $0/p; cat $2 >$0/p; env -i $0/p; done`
	assert.Equal(t, strings.Repeat("a\nb\n", 10), output(t, s.command("sh", "-c", script, mount, a, b)))
}

// TestStaticProgram checks that a program into which the library cannot be loaded finds the files of its working
// directory.
func TestStaticProgram(t *testing.T) {
	s := newStore(t).view()
	program := compile(t, "gcc", "plain.c", "-static")
	output(t, s.command("cp", program, mount+"/plain"))
	script := "cd $0 && mkdir d && cd d && ../plain x && cat x && env -i ../plain y && ls && cd .. && env -i $0/plain z && cat d/y z"
	assert.Equal(t, "x: 5\nhelloy: 5\nx\ny\nz: 5\nhellohello", output(t, s.command("sh", "-c", script, mount)))
}

// TestNeeds runs a program of the mount that needs libraries of the mount. The dynamic linker finds them by the run
// path of the program, or by LD_LIBRARY_PATH if the kernel has the files at the mount itself.
func TestNeeds(t *testing.T) {
	local := t.TempDir()
	build := func(path, name string, args ...string) {
		args = append([]string{"-shared", "-fPIC", "-DNAME=" + name, "-Wl,-soname," + path, "-o", filepath.Join(local, path), "testdata/library.c"}, args...)
		out, err := exec.Command(tool(t, "gcc"), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	build("liblow.so", "low")
	build("libhigh.so", "high", "-DNEXT=low", filepath.Join(local, "liblow.so"))
	require.NoError(t, os.WriteFile(filepath.Join(local, "needs.c"), []byte("int high(void); int main(void) { return high(); }"), 0o600))
	for name, flags := range map[string][]string{"origin": {"-Wl,--disable-new-dtags,-rpath,$ORIGIN"}, "needs": nil} {
		out, err := exec.Command("gcc", append([]string{"-o", filepath.Join(local, name), filepath.Join(local, "needs.c"),
			"-L" + local, "-lhigh", "-llow"}, flags...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	const want = "  begin low\n  begin high\n  end high\n  end low\n"
	s := newStore(t).view()
	output(t, s.command("cp", "-r", local+"/.", mount))
	for _, path := range []string{mount + "/origin", "./origin"} {
		stdout, stderr, err := finish(t, s.command("sh", "-c", "cd $0; $1; test $? = 11", mount, path))
		require.NoError(t, err, stderr)
		assert.Equal(t, want, stdout)
	}
	dir := t.TempDir()
	s.exported(dir)
	output(t, s.job(dir, "cp", "-r", local+"/.", dir))
	stdout, stderr, err := finish(t, s.job(dir, "sh", "-c", "LD_LIBRARY_PATH=$0 $0/needs; test $? = 11", dir))
	require.NoError(t, err, stderr)
	assert.Equal(t, want, stdout)
}

// TestVirtualEnvironment uses a virtual environment of Python in the mount, whose scripts name their interpreter in
// the mount.
func TestVirtualEnvironment(t *testing.T) {
	python, dir := tool(t, "python3"), t.TempDir()
	if err := exec.Command(python, "-c", "import venv").Run(); err != nil {
		t.Skip("Python's venv is not installed")
	}
	s := newStore(t)
	s.exported(dir)
	const script = `
python3 -m venv --without-pip $0/v
printf '#!%s/v/bin/python\nimport sys; print(sys.prefix != sys.base_prefix, __file__)\n' $0 >$0/v/bin/tool
chmod +x $0/v/bin/tool
. $0/v/bin/activate
tool
python -c 'import sys; print(sys.prefix != sys.base_prefix)'`
	got := output(t, s.job(dir, "sh", "-ec", script, dir))
	assert.Regexp(t, "^True /.*/v/bin/tool\nTrue\n$", got)
}

// TestWithoutView checks a host without the view. Programs of the mount cannot be executed, as on a file system that
// is mounted noexec. Shells and other interpreters can still read scripts.
func TestWithoutView(t *testing.T) {
	const script = `
cd "$0" && cp /bin/echo hi && printf 'echo script $1\n' >script && chmod +x script && ln -s /bin/echo out
printf 'import sys; print("python", sys.argv[1])\n' >snake
PATH=$PATH:$0
./hi one; echo $?
"$0/hi" two; echo $?
hi three; echo $?
env hi four; echo $?
nonexistent; echo $?
./nonexistent; echo $?
./script five; echo $?
./out six; echo $?
sh "$0/script" seven
python3 "$0/snake" eight
python3 -c '
import ctypes, os, errno, sys
hi = sys.argv[1] + "/hi"
for call in (lambda: os.execv(hi, ["hi"]), lambda: os.posix_spawn("./hi", ["hi"], os.environ), lambda: os.posix_spawnp("hi", ["hi"], os.environ),
             lambda: os.execve(os.open(hi, os.O_RDONLY), ["hi"], os.environ),
             lambda: os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, hi, os.O_RDONLY, 0)]),
             lambda: ctypes.CDLL(hi)):
    try:
        print(call())
    except OSError as e:
        print(errno.errorcode[e.errno] if e.errno else "not loaded")
' "$0"`
	const want = "126\n126\n126\n126\n127\n127\n126\nsix\n0\nscript seven\npython eight\n" +
		"EACCES\nEACCES\nEACCES\nEACCES\nEACCES\nnot loaded\n"
	for _, shell := range []string{"dash", "bash"} {
		stdout, stderr, err := finish(t, newStore(t).command(tool(t, shell), "-c", script, mount))
		require.NoError(t, err, stderr)
		assert.Equal(t, want, stdout)
		assert.Regexp(t, `(?m)^nvmecr: /nvmecr/hi cannot be executed: this host has no FUSE view of /nvmecr `+
			`\(needs /dev/fuse and root or fusermount3\); keep programs elsewhere$`, stderr)
		assert.NotContains(t, stderr, "nonexistent cannot be")
	}
	stdout, stderr, err := finish(t, newStore(t).command("python3", "-c", `
import os
for i in range(3):
    try: os.execv("/nvmecr", ["x"])
    except OSError as e: print(e.strerror)
open("/nvmecr/x", "w").close()
os.chmod("/nvmecr/x", 0o700)
for i in range(3):
    try: os.execv("/nvmecr/x", ["x"])
    except OSError as e: print(e.strerror)
`))
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("Permission denied\n", 6), stdout)
	assert.Equal(t, 1, strings.Count(stderr, "\n"), "said once: %s", stderr)
}
