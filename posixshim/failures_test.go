//go:build !race

package posixshim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Where the preloaded library cannot work, programs behave as without it, or print a clear message. The application does not
// crash, and no file is written to another place.

// TestScarce limits the memory or the descriptors of a process, before and after it opens its first file.
func TestScarce(t *testing.T) {
	program := compile(t, "gcc", "poor.c", "-Wall", "-Wextra", "-Werror")
	const early = "first: ok\nthen: ok\nright\n"
	const numbers = `first: ok
open: EMFILE
dup: EMFILE
F_DUPFD: EMFILE
dup2 to a new number: EBADF
dup2 over another: ok
opendir: EMFILE
fopen: EMFILE
mkstemp: EMFILE
stat: ok
mkdir: ok
y: ENOENT
mmap: ok
pwrite: ok
fsync: ok
open again: ok
mmap again: ok
right
`
	for _, c := range []struct {
		of     string
		much   int // number of descriptors or MiB that are left
		want   string
		stderr string // a message that is printed once; "": none
	}{
		{"descriptors before", 3, early, ""}, // too few even to count them
		{"descriptors before", 4, early, "free descriptors"},
		{"descriptors before", 7, early, "free descriptors"},
		{"descriptors before", 12, early, "free descriptors"},
		{"descriptors before", 16, early, "free descriptors"}, // the runtime needs 8 above those of the application, and one is the placeholder
		{"descriptors before", 17, early, ""},
		{"descriptors before", 18, early, ""},
		{"descriptors before", 24, early, ""},
		{"descriptors", 40, numbers, ""},
		{"descriptors", 600, numbers, ""},
		{"space before", 20, early, "MiB more of memory"},
		{"space before", 800, early, "MiB more of memory"},
		{"space before", 2000, early, "MiB more of memory"},
		{"space before", 3000, early, ""},
		{"data before", 20, early, "MiB more of memory"},
		{"data before", 150, early, "MiB more of memory"},
		{"data before", 350, early, ""},
	} {
		t.Run(fmt.Sprintf("%s %d", c.of, c.much), func(t *testing.T) {
			s := newStore(t)
			stdout, stderr, err := finish(t, s.command(program, mount, c.of, fmt.Sprint(c.much)))
			require.NoError(t, err, "%s\n%s", stdout, stderr)
			assert.Equal(t, c.want, stdout)
			if c.stderr == "" {
				assert.Empty(t, stderr)
			} else {
				assert.Equal(t, 1, strings.Count(stderr, "nvmecr: files under /nvmecr cannot be used: "), stderr)
				assert.Contains(t, stderr, c.stderr)
			}
		})
	}
}

// TestNotReached runs programs into which the library cannot be loaded, or in which it cannot be used. They work on files outside
// the mount, and find none inside.
func TestNotReached(t *testing.T) {
	for _, c := range []struct {
		name     string
		compiler string
		flags    []string
		setuid   bool
		stderr   string // of the program
		answer   string // error of an open in the mount
	}{
		{"static", "gcc", []string{"-static"}, false, "", "No such file or directory"},
		{"static-pie", "gcc", []string{"-static-pie"}, false, "", "No such file or directory"},
		{"musl", "musl-gcc", nil, false, "nvmecr: files under /nvmecr cannot be used: this program is linked with another C library than glibc\n", "Function not implemented"},
		{"static musl", "musl-gcc", []string{"-static"}, false, "", "No such file or directory"},
		{"setuid", "gcc", nil, true, "", "No such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.setuid && os.Getuid() != 0 {
				t.Skip("only root can make a program that another user runs with its rights")
			}
			s := newStore(t)
			program := compile(t, c.compiler, "plain.c", c.flags...)
			outside := t.TempDir()
			cmd := s.command(program, filepath.Join(outside, "x"), mount+"/x")
			if c.setuid {
				for dir := filepath.Dir(program); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
					require.NoError(t, os.Chmod(dir, 0o755))
				}
				require.NoError(t, os.Chmod(program, 0o755|os.ModeSetuid))
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			stdout, stderr, err := finish(t, cmd)
			require.NoError(t, err, stderr)
			assert.Equal(t, filepath.Join(outside, "x")+": 5\n"+mount+"/x: "+c.answer+"\n", stdout)
			assert.Equal(t, c.stderr, stderr)
			content, err := os.ReadFile(filepath.Join(outside, "x"))
			require.NoError(t, err)
			assert.Equal(t, "hello", string(content))
			assert.NoFileExists(t, mount+"/x")
		})
	}
}

// TestDeletedLibrary executes a program after the library, or the runtime, was deleted.
func TestDeletedLibrary(t *testing.T) {
	for _, c := range []struct{ deleted, says string }{
		{"libnvmecr.so", "object '%s/libnvmecr.so' from LD_PRELOAD cannot be preloaded"},
		{"libnvmecr-plain.so", "nvmecr: files under /nvmecr cannot be used: %s/libnvmecr-plain.so: cannot open shared object file"},
	} {
		t.Run(c.deleted, func(t *testing.T) {
			s := newStore(t, "libnvmecr-plain.so") // with links to the libraries, which the test can delete
			program := compile(t, "gcc", "plain.c")
			outside := filepath.Join(t.TempDir(), "x")
			// The running process can still use the mount. A program that is executed afterwards is not intercepted.
			script := `exec 3>"$1"; echo kept >"$2/before"; rm "$3"; echo kept >"$2/after"; exec "$4" "$1" "$2/x"`
			stdout, stderr, err := finish(t, s.command("bash", "-c", script, "-", outside, mount, filepath.Join(s.run, c.deleted), program))
			require.NoError(t, err, stderr)
			assert.Contains(t, stdout, outside+": 5\n")
			assert.NotContains(t, stdout, mount+"/x: 5")
			assert.Contains(t, stderr, fmt.Sprintf(c.says, s.run))
			_, err = os.Stat(mount)
			assert.ErrorIs(t, err, os.ErrNotExist, "nothing is made in its place")
			again := newStore(t)
			again.target = s.target
			assert.Equal(t, "kept\nkept\n", output(t, again.command("cat", mount+"/before", mount+"/after")))
		})
	}
}

// TestHandlers makes, in a signal handler, all calls that POSIX defines as async-signal-safe.
func TestHandlers(t *testing.T) {
	program := compile(t, "gcc", "handlers.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	cmd := newStore(t).command(program, t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "0 allocations, 0 locks, runtime not loaded\n", string(out))
	native, err := exec.Command(program, t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", native)
	assert.Equal(t, string(native), string(out))
}

// TestHandlersAndLinks interrupts a call that follows a symbolic link out of the mount by a handler that follows such
// a link, too.
func TestHandlersAndLinks(t *testing.T) {
	program := compile(t, "gcc", "outward.c", "-Wall", "-Wextra", "-Werror", "-pthread")
	require.Equal(t, "ok\n", output(t, exec.Command(program, t.TempDir(), t.TempDir())), "without the library")
	assert.Equal(t, "ok\n", output(t, newStore(t).command(program, mount, t.TempDir())))
}

// TestInstalls makes the first call of a process on the mount in a signal handler.
func TestInstalls(t *testing.T) {
	program := compile(t, "gcc", "installs.c", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-pthread")
	for _, way := range []string{"sigaction", "signal", "sysv_signal", "sigset"} {
		for _, who := range []string{"main", "thread"} {
			t.Run(way+", "+who, func(t *testing.T) {
				assert.Equal(t, "ok\n", output(t, newStore(t).command(program, mount, way, who)))
			})
		}
	}
}
