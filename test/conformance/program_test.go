package conformance

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"nvmecr/internal/demo/demotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	mount  = "/nvmecr"
	nobody = 65534
)

// A stage is a directory for the C program, which every user may use.
type stage struct {
	t       *testing.T
	dir     string
	preload string
	runs    int
}

// newStage builds the program and brings the libraries up to date.
func newStage(t *testing.T) *stage {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed")
	}
	dir, err := os.MkdirTemp("", "nvmecr-conformance")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o777))
	s := &stage{t: t, dir: dir, preload: filepath.Join(dir, "libnvmecr.so")}
	bin := filepath.Dir(demotest.Nvmecr(t))
	for _, name := range []string{"libnvmecr.so", "libnvmecr-plain.so"} { // the checkout may not be readable by others
		copyFile(t, filepath.Join(bin, name), filepath.Join(dir, name))
	}
	return s
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
	require.NoError(t, os.Chmod(to, 0o755), "whatever the umask")
}

// compile builds the program with these flags.
func (s *stage) compile(name string, flags ...string) string {
	s.t.Helper()
	sources, err := filepath.Glob("testdata/*.c")
	require.NoError(s.t, err)
	program := filepath.Join(s.dir, name)
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", program}, flags...)
	out, err := exec.Command("gcc", append(args, sources...)...).CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	require.NoError(s.t, os.Chmod(program, 0o755), "whatever the umask")
	return program
}

// ask returns the "verbs" or "constants" of the program.
func ask(t *testing.T, program, what string) []string {
	t.Helper()
	out, err := exec.Command(program, what).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// run runs the cases in a directory, as a user.
func (s *stage) run(program, dir, flavour string, user bool, cases []testCase, env ...string) trace {
	s.t.Helper()
	var input strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&input, "case %s\n%s\n", c.name, strings.Join(c.steps, "\n"))
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, dir, flavour)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input.String()), &stdout, &stderr
	if user && os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	require.NoError(s.t, cmd.Start())
	watch := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	watch.Stop()
	tr, whole := parseTrace(stdout.String())
	lines := strings.Split(strings.TrimRight(stdout.String(), "\n"), "\n")
	if err != nil || !whole {
		s.t.Errorf("%s %s %s: %v after %q\n%s", filepath.Base(program), dir, flavour, err, lines[max(0, len(lines)-3):], stderr.String())
	}
	return tr
}

// compare runs the cases locally and under the mount.
func (s *stage) compare(accepted *differences, program, flavour string, cases []testCase) {
	for _, user := range []bool{false, true} {
		some := slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.user != user })
		s.runs++
		base := filepath.Join(s.dir, fmt.Sprint(s.runs))
		local, run := filepath.Join(base, "local"), filepath.Join(base, "run")
		for _, dir := range []string{base, local, run} {
			require.NoError(s.t, os.Mkdir(dir, 0o700))
			require.NoError(s.t, os.Chmod(dir, 0o777))
		}
		want := s.run(program, local, flavour, user, some)
		got := s.run(program, mount, flavour, user, some, "LD_PRELOAD="+s.preload, "NVMECR_MOUNT="+mount,
			"NVMECR_TARGET=mem:256M", "NVMECR_VIEW=rank", "NVMECR_NAME=conformance", "XDG_RUNTIME_DIR="+run)
		accepted.compare(s.t, some, want, got)
	}
}
