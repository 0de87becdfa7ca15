package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/nvmf"
)

// awayAddresses counts the addresses of awayAddress.
var awayAddresses atomic.Uint32

// awayAddress returns an address at which no other process takes the port of a target while that is down.
func awayAddress() string { return fmt.Sprint("127.0.3.", awayAddresses.Add(1)) }

// portOf returns the port in the output of `nvmecr target`.
func portOf(t *testing.T, target string) string {
	id, err := nvmf.ParseTransportID(target)
	require.NoError(t, err)
	return id.Service
}

// TestTargetComesBack kills the target of a running job and starts it again at the same address. The job only pauses.
func TestTargetComesBack(t *testing.T) {
	t.Parallel()
	s := newRankStage(t)
	h := heat{"heat.c", "mpirun.openmpi", []string{"mpicc.openmpi"}}
	program := h.build(t, s.Dir)
	namespace := "file:" + filepath.Join(s.Dir, "away") + "?size=512M"
	address := awayAddress()
	job, target := serve(t, s, "--listen", address+":0", "--namespace", namespace)
	run, err := s.Start(append(s.RunFlags("away", "--target", target, "--timeout", hang.String()), h.line(program, "/nvmecr", 0, 2000)...))
	require.NoError(t, err)
	awaitLines(t, run, 3)
	job.Kill()
	require.Error(t, job.Wait(t.Context()))
	time.Sleep(300 * time.Millisecond) // let operations meet the fault
	require.False(t, run.Ended(), "the job waits")
	serve(t, s, "--listen", net.JoinHostPort(address, portOf(t, target)), "--namespace", namespace)
	require.NoError(t, run.Wait(t.Context()))
	assert.Len(t, sums(run, 0), 2000/50)

	local := s.Dir
	reference, err := s.Start(h.line(program, local, 0, 2000))
	require.NoError(t, err)
	require.NoError(t, reference.Wait(t.Context()))
	assert.Equal(t, sums(reference, 0), sums(run, 0))

	// The written data is the same as without the loss.
	for rank := range heatRanks {
		for step := 50; step <= 2000; step += 50 {
			name := fmt.Sprintf("heat.%d.%d", step, rank)
			out := filepath.Join(s.Dir, "copy")
			call(t, s, "cp", "--name", "away", "--target", target, "--rank", strconv.Itoa(rank), "/"+name, out).ok(t)
			require.Equal(t, digest(t, filepath.Join(s.Dir, name)), digest(t, out), name)
		}
	}
}

// TestTargetAwayAtTheStart kills the target between the start of a job and its first call under the mount, which has to wait.
func TestTargetAwayAtTheStart(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewRank, config.ViewJob} {
		t.Run(string(view), func(t *testing.T) {
			t.Parallel()
			targetAwayAtTheStart(t, view)
		})
	}
}

func targetAwayAtTheStart(t *testing.T, view config.View) {
	s := newStage(t)
	s.View = view
	fifo := filepath.Join(s.Dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	namespace := "file:" + filepath.Join(s.Dir, "away") + "?size=64M"
	address := awayAddress()
	target, line := serve(t, s, "--listen", address+":0", "--namespace", namespace)
	run, err := s.Start(append(s.RunFlags("away", "--target", line, "--timeout", hang.String()), "sh", "-c", "echo up; read x < "+fifo+"; echo one > /nvmecr/a"))
	require.NoError(t, err)
	awaitLines(t, run, 1)
	target.Kill()
	require.Error(t, target.Wait(t.Context()))
	require.NoError(t, os.WriteFile(fifo, []byte("go\n"), 0))
	time.Sleep(300 * time.Millisecond) // let the call meet the fault
	require.False(t, run.Ended(), "the job waits")
	serve(t, s, "--listen", net.JoinHostPort(address, portOf(t, line)), "--namespace", namespace)
	require.NoError(t, run.Wait(t.Context()))
	assert.Equal(t, "one\n", call(t, s, "cat", "--name", "away", "/a").ok(t))
}

// TestTargetStaysAway expects EIO within the time-out.
func TestTargetStaysAway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	job, target := serve(t, s, "--listen", awayAddress()+":0", "--namespace", "mem:64M")
	run, err := s.Start(append(s.RunFlags("away", "--target", target, "--timeout", "8s"),
		"sh", "-c", "echo > /nvmecr/a; echo up; while echo > /nvmecr/a; do sleep 0.01; done 2>&1"))
	require.NoError(t, err)
	awaitLines(t, run, 1)
	job.Kill()
	require.Error(t, job.Wait(t.Context()))
	clock := busy.Start(t)
	_ = run.Wait(t.Context()) // the exit status does not matter
	assert.Less(t, clock.Now(), 30*time.Second)
	assert.Regexp(t, "I/O error|Input/output error", strings.Join(run.Stdout.Lines(), "\n"), "dash has two ways to say EIO")
}

func awaitLines(t *testing.T, j *demo.Job, n int) {
	for len(j.Stdout.Lines()) < n {
		if j.Ended() {
			require.NoError(t, j.Wait(t.Context()))
			t.Fatal("it ended early")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestOneTargetAwayOutside checks that, if one of several targets is down, commands list and copy the files on the others, and one
// message names the missing target.
func TestOneTargetAwayOutside(t *testing.T) {
	t.Parallel()
	for _, view := range []config.View{config.ViewRank, config.ViewJob} {
		t.Run(string(view), func(t *testing.T) {
			s := newStage(t)
			s.View = view
			var targets []string
			var jobs []*demo.Job
			for i := range 2 {
				job, target := serve(t, s, "--listen", awayAddress()+":0", "--namespace", fmt.Sprint("file:", filepath.Join(s.Dir, fmt.Sprint("away", i)), "?size=128M"))
				targets, jobs = append(targets, "--target", target), append(jobs, job)
			}
			const write = "for r in 0 1 2 3; do PMI_SIZE=4 PMI_RANK=$r sh -c 'echo of rank $PMI_RANK > /nvmecr/f$PMI_RANK'; done"
			call(t, s, append(append([]string{"run"}, targets...), "--", "sh", "-c", write)...).ok(t)
			targets = append(targets, "--timeout", "3s")
			jobs[1].Kill()
			require.Error(t, jobs[1].Wait(t.Context()))

			r := call(t, s, append([]string{"ls"}, targets...)...)
			assert.Equal(t, 1, r.code)
			assert.Contains(t, r.stderr, "target cannot be reached")
			for _, name := range []string{"f0", "f2"} { // ranks 1 and 3 are on the lost target
				assert.Contains(t, r.stdout, "/"+name)
			}
			out := filepath.Join(s.Dir, "out")
			r = call(t, s, append(append([]string{"cp"}, targets...), "/", out)...)
			assert.Equal(t, 1, r.code)
			have := tree(t, out)
			for _, rank := range []string{"0", "2"} {
				name := map[config.View]string{config.ViewRank: "rank" + rank + "/f" + rank, config.ViewJob: "f" + rank}[view]
				assert.Equal(t, "of rank "+rank+"\n", string(have[name]), r.stderr)
			}
			assert.Len(t, have, 2)
			r = call(t, s, append(append([]string{"checkpoints"}, targets...), "f{step}")...)
			assert.Equal(t, 1, r.code)
			complete := map[config.View]int{config.ViewRank: 0, config.ViewJob: 2}[view] // in a tree each is of one rank
			assert.Equal(t, complete, strings.Count(r.stdout, " yes\n"), r.stdout)
			if view == config.ViewJob {
				assert.Contains(t, r.stdout, "no: f1 of rank 1 is on a target that cannot be reached")
			}
			assert.Equal(t, 2, call(t, s, append(append([]string{"latest"}, targets...), "f{step}")...).code, "it cannot be told")
		})
	}
}
