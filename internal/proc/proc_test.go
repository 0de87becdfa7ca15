package proc

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start runs a shell that starts sleep in a session of its own, prints the pid of sleep, and waits for it.
func start(t *testing.T, env ...string) (shell *exec.Cmd, sleep int) {
	shell = exec.Command("sh", "-c", "setsid sleep 1000 & echo $!; wait")
	shell.Env = append(os.Environ(), env...)
	out, err := shell.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, shell.Start())
	t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = shell.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	sleep, err = strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(sleep, syscall.SIGKILL) })
	return shell, sleep
}

// hang is longer than anything takes on a busy machine.
const hang = 5 * time.Minute

func gone(t *testing.T, pid int) {
	require.Eventually(t, func() bool { return Ended(pid) }, hang, time.Millisecond)
}

func TestEnded(t *testing.T) {
	assert.False(t, Ended(os.Getpid()))
	shell, sleep := start(t)
	assert.False(t, Ended(sleep))
	require.NoError(t, shell.Process.Kill())
	gone(t, shell.Process.Pid) // a zombie until we wait for it
	assert.NoError(t, syscall.Kill(shell.Process.Pid, 0))
	assert.Error(t, shell.Wait())
}

func TestStopped(t *testing.T) {
	shell, sleep := start(t)
	assert.False(t, Stopped(sleep))
	require.NoError(t, syscall.Kill(sleep, syscall.SIGSTOP))
	require.Eventually(t, func() bool { return Stopped(sleep) }, hang, time.Millisecond)
	KillTree(shell.Process.Pid)
	assert.Error(t, shell.Wait())
	gone(t, sleep)
	assert.False(t, Stopped(sleep), "it has ended")
}

func TestKillTree(t *testing.T) {
	shell, sleep := start(t)
	assert.Contains(t, Descendants(os.Getpid()), sleep)
	KillTree(shell.Process.Pid)
	gone(t, sleep)
	assert.Error(t, shell.Wait())
}

func TestKillWithEnv(t *testing.T) {
	mark := strconv.FormatInt(time.Now().UnixNano(), 10)
	shell, sleep := start(t, "PROC_TEST="+mark)
	_, other := start(t, "PROC_TEST="+mark+"0")
	require.Eventually(t, func() bool { return len(WithEnv("PROC_TEST", mark)) == 2 }, hang, time.Millisecond)

	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	n, err := KillWithEnv(ctx, "PROC_TEST", mark)
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	gone(t, sleep)
	assert.Error(t, shell.Wait())
	assert.NoError(t, syscall.Kill(other, 0), "the other mark's process lives")
}
