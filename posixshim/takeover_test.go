//go:build !race

package posixshim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/posixshim"
)

// TestHandsOver checks files that other processes share with a process which ends or executes a program. They must
// behave as in a local directory.
func TestHandsOver(t *testing.T) {
	program := compile(t, "gcc", "handover.c")
	for _, name := range []string{"busy", "many", "mapped", "fails", "two"} {
		t.Run(name, func(t *testing.T) {
			want := output(t, exec.Command(program, t.TempDir(), name))
			stdout, stderr, err := finish(t, newStore(t).command(program, mount, name))
			require.NoError(t, err)
			assert.Equal(t, want, stdout)
			assert.Empty(t, stderr)
		})
	}
	t.Run("killed", func(t *testing.T) {
		stdout, stderr, err := finish(t, newStore(t).command(program, mount, "killed"))
		require.NoError(t, err)
		assert.Equal(t, "ended\nnot written: EIO\n", stdout)
		assert.Contains(t, stderr, "cannot reach the process that has its open files")
	})
}

// TestExecutedKeepsItsProcess checks that an executed program whose output is in the mount keeps the process ID that
// its parent knows, and gets the signals that are sent to it.
func TestExecutedKeepsItsProcess(t *testing.T) {
	const script = `cd "$0"
sh -c 'exec sh -c "echo \$\$; trap \"echo signal; exit 7\" USR1; echo ready; while :; do sleep 0.02; done" >log' &
until grep -q ready log 2>/dev/null; do sleep 0.02; done
kill -USR1 $!
wait $!
echo $?
test "$(head -n 1 log)" = $! && echo the same process
tail -n 1 log
sh -c 'exec sleep 3600 >log' &
until test ! -s log; do sleep 0.02; done
kill -KILL $!
wait $! 2>/dev/null
echo $?
yes line | head -n 20000 | sh -c 'exec cat >copy'
wc -l <copy
(exec 2>&1; ls missing) >both; wc -l <both
`
	want := output(t, exec.Command("sh", "-c", script, t.TempDir()))
	got := output(t, newStore(t).command("sh", "-c", script, mount))
	assert.Equal(t, want, got)
	assert.Contains(t, got, "7\nthe same process\nsignal\n137\n")
}

// TestNobodyToHandOverTo checks a host without nvmecr serve. A process that ends prints that other processes lose its
// files. Programs that write past the shim may get SIGPIPE.
func TestNobodyToHandOverTo(t *testing.T) {
	const told = `nvmecr: process \d+ ends and cannot hand the open files that it shares over to nvmecr serve`
	s := newStore(t)
	require.NoError(t, s.serve.Process.Kill())
	_ = s.serve.Wait()
	stdout, stderr, err := finish(t, s.command("sh", "-c", `sh -c 'exec bash -c "trap \"\" PIPE; echo text | dd status=none; echo \$? >&2" >$0/log' $0`, mount))
	require.NoError(t, err)
	assert.Empty(t, stdout)
	assert.Regexp(t, told, stderr)
	assert.Contains(t, stderr, "\n1\n", "writing fails")
}

// TestServeKilled checks that other processes lose the files that nvmecr serve has taken over when it is killed.
func TestServeKilled(t *testing.T) {
	s := newStore(t)
	cmd := s.command("sh", "-c", `sh -c 'exec 3>$0/log; exec bash -c "echo one >&3; echo; read x; trap \"\" PIPE; echo two | dd status=none >&3; echo \$?"' $0; cat $0/log`, mount)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, s.serve.Process.Kill())
	_ = s.serve.Wait()
	_, err = in.Write([]byte("\n"))
	require.NoError(t, err)
	b := make([]byte, 100)
	n, err := out.Read(b)
	require.NoError(t, err)
	assert.Equal(t, "1\n", string(b[:n]))
	require.NoError(t, cmd.Wait())
}

// TestStartsServe checks that the first process that needs nvmecr serve starts it if it does not run, as on other
// hosts than that of nvmecr run. It is no child of that process, and ends when no process needs it.
func TestStartsServe(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.serve.Process.Kill())
	_ = s.serve.Wait()
	cmd := s.command("bash", "-c", `exec bash -c "echo one; exec bash -c 'echo two; (sleep 0.1; echo three) & wait; cat $0/log >&2'" > $0/log`, mount)
	cmd.Env = append(cmd.Env, "NVMECR_COMMAND="+nvmecr(t))
	stdout, stderr, err := finish(t, cmd)
	require.NoError(t, err, stderr)
	assert.Empty(t, stdout)
	assert.Equal(t, "one\ntwo\nthree\n", stderr)
	require.Eventually(t, func() bool { return len(serversOf(t, s.id.String())) == 0 }, posixshim.Hang, 10*time.Millisecond)
}

// serversOf returns the processes of nvmecr serve for a run.
func serversOf(t *testing.T, run string) (pids []string) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, dir := range processes {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // fails if the process has ended
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if strings.Contains(string(command), "\x00serve\x00") && strings.Contains(string(environ), run) {
			pids = append(pids, filepath.Base(dir))
		}
	}
	return pids
}
