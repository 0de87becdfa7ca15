//go:build !race

package posixshim_test

import (
	"bufio"
	"bytes"
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
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/owner"
	jobstore "nvmecr/internal/store"
	"nvmecr/posixshim"
)

// The tests of package posixshim_test build the preloaded library and the runtimes, and run real programs with them. Most
// programs run twice, in a local directory and in the mount. Both runs must print the same.
//
// They are not built with the race detector, since it would observe the test instead of the programs.

const mount = "/nvmecr"

// libraries builds nvmecr and the libraries once for all tests, and returns their directory.
var libraries = sync.OnceValues(func() (string, error) {
	if os.Getenv("MAKELEVEL") == "" { // make has just built them
		out, err := exec.Command("make", "-C", "..", "bin/nvmecr", "libraries").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("make libraries: %w\n%s", err, out)
		}
	}
	return filepath.Abs("../bin")
})

// scratch is a directory that is removed when the tests are done.
var scratch string

func TestMain(m *testing.M) {
	// The programs must not inherit descriptors of the tests: some print the numbers of descriptors.
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

// tool returns the path of a compiler or launcher. It skips the test if the program is not installed.
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

// store is a namespace, and the settings that a process needs to use it.
type store struct {
	t       testing.TB
	preload string
	target  string
	run     string // XDG_RUNTIME_DIR; short, because paths of sockets are limited
	id      uuid.UUID
	serve   *exec.Cmd // the process of nvmecr serve
	said    string    // the line that nvmecr serve has printed about the view
	viewed  string    // the directory of the view; empty before a call of view
}

// The names of libraries that newStore can put beside the preloaded library.
const (
	noRuntime = ""
	runtimeOf = "libnvmecr-%s.so"
)

// newStore makes an empty store. The directory of its preloaded library has the named runtimes, or all of them if
// none is named.
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

// startServe starts nvmecr serve, as nvmecr run does. The process ends with the test.
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
		owner.RemoveGroup(group)
	})
	s.said, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(s.t, err)
}

func (s *store) viewDir() string {
	return filepath.Join(owner.Directory(jobstore.LockGroup(s.id)), "view")
}

// environ returns the environment of a process that uses the store.
func (s *store) environ() []string {
	return append(os.Environ(), "LD_PRELOAD="+s.preload, "NVMECR_MOUNT="+mount, "NVMECR_TARGET="+s.target,
		"NVMECR_EXPORT="+s.viewed, "NVMECR_NAME=test", "NVMECR_VIEW=rank", "NVMECR_RUN="+s.id.String(), "NVMECR_TIMEOUT="+posixshim.Hang.String(), "XDG_RUNTIME_DIR="+s.run, "LC_ALL=C.UTF-8",
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
}

// command returns a command that runs with the preloaded library.
func (s *store) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = s.environ()
	return cmd
}

// nvmecr returns the path of the program nvmecr.
func nvmecr(t testing.TB) string {
	lib, err := libraries()
	require.NoError(t, err)
	path := filepath.Join(lib, "nvmecr")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("make was not called: %v", err)
	}
	return path
}

// view makes processes of the store use the view that nvmecr serve exports. It skips the test if the machine has no FUSE.
func (s *store) view() *store {
	s.t.Helper()
	if s.said != "exported\n" {
		s.t.Skipf("there is no FUSE here: %s", s.said)
	}
	s.viewed = s.viewDir()
	return s
}

// slow matches the message of a process whose end takes long, for example on a busy machine.
var slow = regexp.MustCompile(`(?m)^nvmecr: process \d+ ends, and waits until the target has taken .*\n`)

// output returns what the command prints. The command has to succeed.
func output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	stdout, stderr, err := finish(t, cmd)
	require.NoError(t, err, "%s\n%s%s", cmd, stdout, stderr)
	return stdout
}

// finish runs the command to its end. It removes messages that slow matches from stderr.
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
