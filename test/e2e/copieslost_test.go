package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// servedTargets starts targets at different addresses, each a failure domain, and returns the flags that name them.
func servedTargets(t *testing.T, s *demo.Stage, n int) (jobs []*demo.Job, flags []string) {
	for i := range n {
		job, target := serve(t, s, "--listen", awayAddress()+":0", "--namespace", fmt.Sprint("file:", filepath.Join(s.Dir, fmt.Sprint("target.", i)), "?size=256M"))
		jobs, flags = append(jobs, job), append(flags, "--target", target)
	}
	return jobs, flags
}

// awaitCopies waits until a run has copied its checkpoint.
func awaitCopies(t *testing.T, s *demo.Stage, run *demo.Job) {
	for begin := time.Now(); !strings.Contains(call(t, s, "checkpoints").stdout, "store, copies  "); time.Sleep(100 * time.Millisecond) {
		require.False(t, run.Ended(), "%v", run.Stderr.Lines())
		require.Less(t, time.Since(begin), hang)
	}
}

// TestReadFromCopies checks that a running job reads the data of a lost target from copies.
func TestReadFromCopies(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	targets, flags := servedTargets(t, s, 3)
	flags = append(flags, "--copies", "partner", "--timeout", "16s", "--", "sh", "-c", `
for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'head -c 3000000 /dev/urandom | tee before.$PMI_RANK > /nvmecr/ck.200.$PMI_RANK' & done; wait
until [ -e lost ]; do sleep 0.05; done
cat /nvmecr/ck.200.2 > alone.2 &
PMI_SIZE=3 PMI_RANK=2 cat /nvmecr/ck.200.2 > own.2 &
for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=0 cat /nvmecr/ck.200.$r > after.$r; done
wait`)
	run, err := s.Start(append([]string{s.Nvmecr, "run"}, flags...))
	require.NoError(t, err)
	awaitCopies(t, s, run)
	targets[2].Kill()
	require.Error(t, targets[2].Wait(t.Context()))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "lost"), nil, 0o600))
	_ = run.Wait(t.Context()) // its end fails on the lost target
	said := strings.Join(run.Stderr.Lines(), "\n")
	for name, r := range map[string]int{"after.0": 0, "after.1": 1, "after.2": 2, "alone.2": 2, "own.2": 2} {
		want, err := os.ReadFile(filepath.Join(s.Dir, fmt.Sprint("before.", r)))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(s.Dir, name))
		require.NoError(t, err, said)
		require.True(t, bytes.Equal(want, got), "%s: %s", name, said)
	}
	assert.Contains(t, said, "ck.200.2 is read from its copy: ")

	// The next run has all data, on a target that replaces the lost one.
	_, fresh := serve(t, s, "--listen", awayAddress()+":0", "--namespace", fmt.Sprint("file:", filepath.Join(s.Dir, "fresh"), "?size=256M"))
	r := sh(t, s, "for r in 0 1 2; do cmp /nvmecr/ck.200.$r before.$r || exit 1; done", append(flags[:4:4], "--target", fresh)...)
	r.ok(t)
	assert.Contains(t, r.stderr, "copied back from copies/ck.200")
	assert.Contains(t, call(t, s, "checkpoints").stdout, "store, copies  ")
}

// TestTargetLostWhileCopying kills a target, or stops it for good, at a random time while a checkpoint is copied, and then kills the job.
// If the checkpoint was listed as protected before, every byte is available after the target was replaced. Otherwise the checkpoint is
// complete, or is not listed as complete.
func TestTargetLostWhileCopying(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for lost := range 3 {
		s := newStage(t)
		targets, flags := servedTargets(t, s, 3)
		copies := []string{"partner", "rs:2+1"}[random.IntN(2)]
		run, err := s.Start(append(append([]string{s.Nvmecr, "run", "--copies", copies}, flags...), "--", "sh", "-c", `
for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'head -c 12000000 /dev/urandom | tee before.$PMI_RANK > /nvmecr/ck.200.$PMI_RANK' & done; wait
trap : USR1; echo written; while :; do sleep 0.1; done`))
		require.NoError(t, err)
		awaitLines(t, run, 1)
		require.NoError(t, syscall.Kill(run.PID(), syscall.SIGUSR1))    // requests a copy
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // any instant is right
		protected := random.IntN(2) == 0 &&                             // listing takes as long as copying
			strings.Contains(call(t, s, "checkpoints", "--json").stdout, `"protected": true`)
		signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[random.IntN(2)]
		require.NoError(t, syscall.Kill(targets[lost].PID(), signal))
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		_, err = s.Kill()
		require.NoError(t, err)
		for _, job := range append(targets, run) {
			require.Error(t, job.Wait(t.Context()))
		}
		require.NoError(t, os.Remove(filepath.Join(s.Dir, fmt.Sprint("target.", lost))))
		_, flags = servedTargets(t, s, 3)
		r := sh(t, s, "for r in 0 1 2; do cmp /nvmecr/ck.200.$r before.$r || exit 1; done", flags...)
		t.Logf("%s, target %d, %v, protected %t, exit status %d", copies, lost, signal, protected, r.code)
		if protected {
			r.ok(t)
		}
		if whole := strings.Contains(r.stderr, "newest complete checkpoint"); whole || r.code == 0 {
			require.True(t, whole && r.code == 0, r.stderr)
		}
	}
}

// TestLostBeforeCopied checks that a checkpoint that lost data before it was copied never counts as complete. The checkpoint before it is
// the newest: it stays, and is protected again.
func TestLostBeforeCopied(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	flags := copyTargets(t, s, 3, 0, 1, 2)
	for step, copies := range []string{"partner", "none"} {
		sh(t, s, fmt.Sprintf("for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r sh -c 'head -c 300000 /dev/urandom > /nvmecr/ck.%d.$PMI_RANK' & done; wait", 100*(step+1)), append(flags, "--copies", copies)...).ok(t)
	}
	assert.Equal(t, "200\n", call(t, s, "latest").ok(t))
	copyTargets(t, s, 3, 1)
	r := sh(t, s, s.Nvmecr+" latest; true", append(flags, "--copies", "partner", "--keep", "1")...)
	assert.Equal(t, "100\n", r.ok(t), "in the job")
	assert.Contains(t, r.stderr, "passed over: 200 is incomplete: ck.200.1 has lost bytes")
	assert.Contains(t, r.stderr, "newest complete: /ck.100.*")
	assert.NotContains(t, r.stderr, "may not be copied")
	assert.Equal(t, "100\n", call(t, s, "latest").ok(t))
	list := levels(t, call(t, s, "checkpoints", "--json"))
	assert.Contains(t, list, "100 [store copies] true")
	assert.Contains(t, list, "200 [store] false")
	assert.Contains(t, call(t, s, "checkpoints").stdout, "store, copies  ")
}

// TestDrainerKilled kills the process that copies. The process is started again, and copies the checkpoints.
func TestDrainerKilled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	done := filepath.Join(s.Dir, "done")
	flags := append(copyTargets(t, s, 3, 0, 1, 2), "--copies", "partner")
	script := "until [ -e " + done + " ]; do sleep 0.1; done; " + oneSet("3", "400", "all")
	run, err := s.Start(append(append([]string{s.Nvmecr, "run"}, flags...), "--", "sh", "-c", script))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, pid := range s.Processes() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
			if bytes.Contains(line, []byte("\x00drain\x00--follow\x00")) {
				return syscall.Kill(pid, syscall.SIGKILL) == nil
			}
		}
		return false
	}, hang, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		return strings.Contains(run.Stderr.Tail(100), "nvmecr drain was killed (killed), and is started again")
	}, hang, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(done, nil, 0o600))
	require.NoError(t, run.Wait(t.Context()))
	assert.Equal(t, []string{"400 [store copies] true"}, levels(t, call(t, s, "checkpoints", "--json")))
}
