package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/internal/proc"
)

// lateWriter prints its process id, writes a line, and a second one when a file exists, and prints the result.
const lateWriter = `
import os, sys, time
fd = os.open("/nvmecr/late", os.O_CREAT | os.O_WRONLY, 0o600)
os.write(fd, b"in time\n")
os.fsync(fd)
print(os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
try:
    os.write(fd, b"late\n")
    print("written", flush=True)
except OSError as e:
    print(e.strerror, flush=True)
`

// TestLateWriter stops a process, lets another run take its partition over with --takeover, and continues it: its writes are refused.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, id := serve(t, s, "--listen", "0.0.0.0:0", "--allow-any-host", "--namespace", "mem:64M")
	// With other addresses of the target and other directories, the locks of partition and store do not meet.
	targets := make([]string, 2)
	for i, host := range []string{"127.0.0.1", "127.0.0.2"} {
		f := strings.Fields(id)
		for j := range f {
			if strings.HasPrefix(f[j], "traddr:") {
				f[j] = "traddr:" + host
			}
		}
		targets[i] = strings.Join(f, " ")
	}
	wake := filepath.Join(s.Dir, "wake")
	late, err := s.Start(append(s.RunFlags("x", "--target", targets[0]), "python3", "-c", lateWriter, wake))
	require.NoError(t, err)
	pid := printed(t, late, 1)[0]
	stopped, err := strconv.Atoi(pid)
	require.NoError(t, err)
	stop(t, stopped)

	elsewhere := "XDG_STATE_HOME=" + filepath.Join(s.Dir, "tmp")
	next, err := s.Start(append(s.RunFlags("x", "--takeover", "--target", targets[1]), "sh", "-c", "cat /nvmecr/late; echo next > /nvmecr/late"), elsewhere)
	require.NoError(t, err)
	require.NoError(t, next.Wait(t.Context()))
	assert.Equal(t, []string{"in time"}, next.Stdout.Lines(), "what was acknowledged is there")

	require.NoError(t, os.WriteFile(wake, nil, 0o600))
	require.NoError(t, syscall.Kill(stopped, syscall.SIGCONT))
	assert.Equal(t, []string{pid, "Input/output error"}, printed(t, late, 2))
	_ = late.Wait(t.Context())
	assert.Equal(t, "next\n", call(t, s, "cat", "--name", "x", "--target", targets[1], "/late").ok(t))

	// The first run started before the other one: its processes cannot take the store back, but a new run can.
	assert.Equal(t, "next\n", call(t, s, "run", "--name", "x", "--target", targets[0], "--", "cat", "/nvmecr/late").ok(t))
}

// printed waits for n lines of output of a job, and returns them.
func printed(t *testing.T, j *demo.Job, n int) []string {
	for deadline := time.Now().Add(hang); len(j.Stdout.Lines()) < n; time.Sleep(time.Millisecond) {
		if j.Ended() || time.Now().After(deadline) {
			require.NoError(t, j.Wait(t.Context()))
			t.Fatalf("printed %q, not %d lines", j.Stdout.Lines(), n)
		}
	}
	return j.Stdout.Lines()
}

// appender appends a line every few milliseconds until that fails, and prints when it begins and why it ends.
const appender = `
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN) # the kernel's to stopped orphans
fd = os.open("/nvmecr/old", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
os.write(fd, b"line\n")
print(os.getpid(), flush=True)
try:
    while True:
        os.write(fd, b"line\n")
        time.sleep(0.005)
except OSError as e:
    print(e.strerror, flush=True)
`

// TestSurvivorOfAnotherRun checks that a rank which has outlived its run on this host, running or stopped, neither serves processes of
// the next run nor writes at the same time. The following run has the data of the next one.
func TestSurvivorOfAnotherRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fresh, stopped, elsewhere bool
	}{
		"again": {}, "fresh": {fresh: true}, "stopped": {stopped: true}, "fresh, stopped": {fresh: true, stopped: true},
		"another state directory": {elsewhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			_, id := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
			old, err := s.Start(append(s.RunFlags("x", "--target", id), "python3", "-c", appender))
			require.NoError(t, err)
			pid, err := strconv.Atoi(printed(t, old, 1)[0])
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(old.PID(), syscall.SIGKILL))
			// The command holds the lock of the store until it ends, and its end continues stopped processes.
			require.Eventually(t, func() bool { return proc.Ended(old.PID()) }, hang, time.Millisecond)
			if c.stopped {
				stop(t, pid)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()

			flags, env := []string{"--target", id}, []string(nil)
			if c.fresh {
				flags = append(flags, "--fresh")
			}
			if c.elsewhere {
				env = append(env, "XDG_STATE_HOME="+filepath.Join(s.Dir, "tmp"))
			}
			next, err := s.Start(append(s.RunFlags("x", flags...), "sh", "-c", "echo precious > /nvmecr/ck && sync /nvmecr/ck"), env...)
			require.NoError(t, err)
			require.NoError(t, next.Wait(t.Context()))
			if c.stopped {
				require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
			}
			// Its run has ended long ago, but its output still arrives.
			assert.Eventually(t, func() bool { return len(old.Stdout.Lines()) == 2 }, hang, time.Millisecond)
			assert.Equal(t, []string{strconv.Itoa(pid), "Input/output error"}, old.Stdout.Lines())
			last, err := s.Start(append(s.RunFlags("x", "--target", id), "cat", "/nvmecr/ck"), env...)
			require.NoError(t, err)
			require.NoError(t, last.Wait(t.Context()))
			assert.Equal(t, []string{"precious"}, last.Stdout.Lines())
		})
	}
}
