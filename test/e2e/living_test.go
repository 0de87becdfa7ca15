package e2e

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
	"nvmecr/internal/parttable"
)

// otherHost returns a command prefix and a variable for what counts as another host: a host name, processes and a state directory of its
// own. It skips the test if the system does not permit that.
func otherHost(t *testing.T, s *demo.Stage) (prefix []string, env string) {
	prefix = []string{"unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		prefix = append(prefix, "--user", "--map-current-user")
	}
	prefix = append(prefix, "sh", "-c", `hostname node7 && exec "$@"`, "sh")
	if out, err := exec.Command(prefix[0], append(prefix[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespaces for another host: %v: %s", err, out)
	}
	return prefix, "XDG_STATE_HOME=" + filepath.Join(s.Dir, "tmp")
}

// startElsewhere starts a script under nvmecr on what counts as another host.
func startElsewhere(t *testing.T, s *demo.Stage, script string, flags ...string) *demo.Job {
	prefix, env := otherHost(t, s)
	job, err := s.Start(append(append(prefix, s.RunFlags("x", flags...)...), "sh", "-c", script), env)
	require.NoError(t, err)
	return job
}

// TestLivingRun checks that the store of a running job, on another host or in another state directory, is not taken over, wiped or
// repaired unless that is requested.
func TestLivingRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, id := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
	go1, go2 := fifo(t, s, "go1"), fifo(t, s, "go2")
	first := startElsewhere(t, s, "echo first > /nvmecr/a; echo up; read x < "+go1+"; echo late > /nvmecr/b || echo $?", "--target", id)
	awaitLines(t, first, 1)
	who := []string{"store \"x\" is in use by process ", "of host node7", "--takeover", "one `nvmecr run` around the launcher"}
	for name, args := range map[string][]string{
		"run":              {"run", "--name", "x", "--target", id, "--", "echo", "started"},
		"run --fresh":      {"run", "--fresh", "--name", "x", "--target", id, "--", "echo", "started"},
		"release":          {"release", "--name", "x", "--target", id},
		"release --erase":  {"release", "--erase", "--name", "x", "--target", id},
		"fsck --repair":    {"fsck", "--repair", "--name", "x", "--target", id},
		"run, new per job": {"run", "--name", "x", "--hostnqn", "nqn.2014-08.org.example:other", "--target", id, "--", "echo", "started"},
	} {
		t.Run(name, func(t *testing.T) {
			r := call(t, s, args...)
			r.refused(t, who...)
			assert.Empty(t, r.stdout)
		})
	}
	assert.Equal(t, "first\n", call(t, s, "cat", "--name", "x", "--target", id, "/a").ok(t), "who only reads is let in")

	assert.Regexp(t, `(?m)^run in progress: process \d+ of host node7, .*; last heartbeat `, call(t, s, "stat", "--name", "x", "--target", id).ok(t))

	second, err := s.Start(append(s.RunFlags("x", "--target", id), "sh", "-c", "cat /nvmecr/a; read x < "+go2+"; echo second > /nvmecr/a"), "NVMECR_TAKEOVER=1")
	require.NoError(t, err)
	awaitLines(t, second, 1)
	assert.Equal(t, []string{"first"}, second.Stdout.Lines())
	// The command that lost the store reports that before the job notices.
	require.Eventually(t, func() bool {
		return strings.Contains(strings.Join(first.Stderr.Lines(), "\n"), `this run has lost store "x": another run has taken it over: process `)
	}, time.Minute, time.Millisecond)
	send(t, go1)
	_ = first.Wait(t.Context())
	assert.Equal(t, []string{"up", "2"}, first.Stdout.Lines(), "sh's status of a redirection that fails")
	third, err := s.Start(append(s.RunFlags("x", "--target", id), "echo", "started"), "XDG_STATE_HOME="+filepath.Join(s.Dir, "tmp"))
	require.NoError(t, err)
	require.ErrorContains(t, third.Wait(t.Context()), "is in use by process ", "the end of the first changes nothing for the second, also on its own host")
	send(t, go2)
	require.NoError(t, second.Wait(t.Context()))
	r := sh(t, s, "cat /nvmecr/a; ls /nvmecr", "--name", "x")
	assert.Equal(t, "second\na\n", r.ok(t))
	assert.NotContains(t, call(t, s, "stat", "--name", "x", "--target", id).ok(t), "run in progress")
	assert.Equal(t, 1, strings.Count(r.stderr, "\n"), "nothing to wait for: %s", r.stderr)
}

// TestSharedHome checks hosts with a shared home directory: the lock of the state directory neither makes another host wait, nor prevents
// what the record on the target permits.
func TestSharedHome(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, id := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
	prefix, _ := otherHost(t, s)
	fifo := fifo(t, s, "go")
	first, err := s.Start(append(append(prefix, s.RunFlags("x", "--target", id)...), "sh", "-c", "echo first > /nvmecr/a; echo up; read x < "+fifo))
	require.NoError(t, err)
	awaitLines(t, first, 1)
	sh(t, s, "true", "--name", "x").refused(t, "is in use by process ", "of host node7", "--takeover")
	sh(t, s, "true", "--name", "x", "--target", "file:"+s.Dir+"/else?size=64M").refused(t, "is in use by process ", "of host node7", "--name")
	call(t, s, "release", "--name", "x").refused(t, "is in use by process ", "of host node7")
	assert.Equal(t, "first\n", sh(t, s, "cat /nvmecr/a", "--name", "x", "--takeover").ok(t))
	send(t, fifo)
	_ = first.Wait(t.Context())
	assert.Equal(t, "first\n", sh(t, s, "cat /nvmecr/a", "--name", "x").ok(t))
}

// TestHostGone checks that the next run waits some seconds for a run on a lost host, and then continues. On the same host it continues at
// once.
func TestHostGone(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"another host": true, "this host": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			_, id := serve(t, s, "--listen", "127.0.0.1:0", "--namespace", "mem:64M")
			const script = "echo kept > /nvmecr/a; echo up; sleep 1000"
			var job *demo.Job
			if elsewhere {
				job = startElsewhere(t, s, script, "--target", id)
			} else {
				var err error
				job, err = s.Start(append(s.RunFlags("x", "--target", id), "sh", "-c", script), "XDG_STATE_HOME="+filepath.Join(s.Dir, "tmp"))
				require.NoError(t, err)
			}
			awaitLines(t, job, 1)
			job.Kill()
			require.Error(t, job.Wait(t.Context()))
			begin := time.Now()
			r := call(t, s, "run", "--name", "x", "--target", id, "--", "cat", "/nvmecr/a")
			t.Logf("going on took %v", time.Since(begin))
			assert.Equal(t, "kept\n", r.ok(t))
			assert.Equal(t, elsewhere, strings.Contains(r.stderr, "waiting 8s for a sign of life"), r.stderr)
		})
	}
}

// TestLeaseOverAbsence checks that a stopped or restarted target only delays the job and the renewals of its run record.
func TestLeaseOverAbsence(t *testing.T) {
	t.Parallel()
	for name, absent := range map[string]func(t *testing.T, s *demo.Stage, job *demo.Job, again []string){
		"stopped": func(t *testing.T, s *demo.Stage, job *demo.Job, _ []string) {
			stop(t, job.PID())
			time.Sleep(3 * time.Second) // longer than the interval of renewals
			require.NoError(t, syscall.Kill(job.PID(), syscall.SIGCONT))
		},
		"killed": func(t *testing.T, s *demo.Stage, job *demo.Job, again []string) {
			job.Kill()
			require.Error(t, job.Wait(t.Context()))
			time.Sleep(3 * time.Second)
			serve(t, s, again...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			file := image(t, s, 64, "")
			address := awayAddress()
			target, id := serve(t, s, "--listen", address+":0", "--namespace", "file:"+file)
			end := fifo(t, s, "end")
			job, err := s.Start(append(s.RunFlags("x", "--target", id), "sh", "-c", "echo up; read x < "+end+"; echo here > /nvmecr/a"))
			require.NoError(t, err)
			awaitLines(t, job, 1)
			absent(t, s, target, []string{"--listen", net.JoinHostPort(address, portOf(t, id)), "--namespace", "file:" + file})
			before := beat(t, file)
			require.Eventually(t, func() bool { return beat(t, file) > before+1 }, time.Minute, 10*time.Millisecond)
			require.False(t, job.Ended())
			other, err := s.Start(append(s.RunFlags("x", "--target", id), "echo", "started"), "XDG_STATE_HOME="+filepath.Join(s.Dir, "tmp"))
			require.NoError(t, err)
			require.ErrorContains(t, other.Wait(t.Context()), "is in use by process ")
			send(t, end)
			require.NoError(t, job.Wait(t.Context()))
			require.Equal(t, uint32(2), state(t, file), "the run has ended")
			assert.Equal(t, "here\n", call(t, s, "cat", "--name", "x", "--target", id, "/a").ok(t))
		})
	}
}

// beat returns the beat of the run record on a namespace.
func beat(t *testing.T, file string) uint64 {
	return max(binary.LittleEndian.Uint64(recordBytes(t, file, 0)[56:]), binary.LittleEndian.Uint64(recordBytes(t, file, 1)[56:]))
}

// state returns the state in the first copy of the record: 1 in progress, 2 ended.
func state(t *testing.T, file string) uint32 {
	return binary.LittleEndian.Uint32(recordBytes(t, file, 0)[88:])
}

func recordBytes(t *testing.T, file string, number int) []byte {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, parttable.RunRecordSize)
	_, err = f.ReadAt(b, int64(parttable.RunRecordOffset(number)))
	require.NoError(t, err)
	return b
}

// fifo creates a FIFO on the stage.
func fifo(t *testing.T, s *demo.Stage, name string) string {
	path := filepath.Join(s.Dir, name)
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	return path
}

// send continues the reader of a FIFO.
func send(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("go\n"), 0)) }
