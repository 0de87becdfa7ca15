package command

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/proc"
)

func TestJobStatus(t *testing.T) {
	for script, want := range map[string]int{
		"true":          0,
		"exit 7":        7,
		"kill -TERM $$": 128 + 15,
	} {
		code, err := runJob([]string{"sh", "-c", script}, os.Environ(), surroundings{})
		require.NoError(t, err)
		assert.Equal(t, want, code, script)
	}
}

// startJob runs a shell script as the job of a process that is not in the foreground of a terminal, and returns the script's standard
// output after its first line.
func startJob(t *testing.T, script string) (*exec.Cmd, *bufio.Reader) {
	cmd := nvmecr("job", "sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}

func line(t *testing.T, r *bufio.Reader) string {
	s, err := r.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(s)
}

func TestSignalsReachTheJob(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1} {
		t.Run(s.String(), func(t *testing.T) {
			cmd, out := startJob(t, `trap 'echo got; exit 9' INT TERM USR1; echo up; while :; do sleep 0.01; done`)
			require.Equal(t, "up", line(t, out))
			require.NoError(t, cmd.Process.Signal(s))
			assert.Equal(t, "got", line(t, out), "once")
			rest, err := io.ReadAll(out)
			require.NoError(t, err)
			assert.Empty(t, string(rest))
			assert.Error(t, cmd.Wait())
			assert.Equal(t, 9, cmd.ProcessState.ExitCode())
		})
	}
}

func TestSecondInterruptKills(t *testing.T) {
	cmd, out := startJob(t, `trap 'echo no' INT; setsid sleep 1000 & echo $!; while :; do sleep 0.01; done`)
	sleeper, err := strconv.Atoi(line(t, out))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, "no", line(t, out))
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	assert.Error(t, cmd.Wait())
	assert.Equal(t, 128+9, cmd.ProcessState.ExitCode())
	require.Eventually(t, func() bool { return proc.Ended(sleeper) }, hang, time.Millisecond,
		"what the job had started is killed too")
}

func TestProgramsThatCannotBePreloaded(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.c")
	require.NoError(t, os.WriteFile(source, []byte("int main(void){return 0;}\n"), 0o600))
	compile := func(name string, flags ...string) string {
		program := filepath.Join(dir, name)
		out, err := exec.Command("gcc", append(flags, "-o", program, source)...).CombinedOutput()
		require.NoError(t, err, string(out))
		return program
	}
	for _, viewed := range []bool{false, true} {
		_, err := findProgram(compile("dynamic"), viewed)
		assert.NoError(t, err)
	}
	for _, flag := range []string{"-static", "-static-pie"} {
		static := compile("static", flag)
		_, err := findProgram(static, false)
		assert.ErrorContains(t, err, "statically linked")
		_, err = findProgram(static, true)
		assert.NoError(t, err, "the kernel has the files")
	}

	_, err := findProgram("no-such-program-anywhere", true)
	assert.EqualError(t, err, "no-such-program-anywhere: no such program in PATH")
	_, err = findProgram(source, true)
	assert.ErrorContains(t, err, "permission denied")
}
