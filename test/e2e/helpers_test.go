package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
	"nvmecr/internal/demo"
	"nvmecr/internal/demo/demotest"
	"nvmecr/internal/proc"
)

// waiting is the number of tests that run in parallel. They mostly wait: for processes, losses and pauses; their ranks sleep while they
// wait (see demotest.NewStage).
const waiting = "4"

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", waiting) // the command line may override it
	m.Run()
}

// newStage returns a stage until the end of the test.
var newStage = demotest.NewStage

// newRankStage returns a stage whose runs have --view=rank.
func newRankStage(t *testing.T) *demo.Stage {
	s := newStage(t)
	s.View = config.ViewRank
	return s
}

// python is the interpreter of the distribution. Another one in PATH may be a wrapper that searches for an interpreter at each start.
const python = "/usr/bin/python3"

// hang is longer than anything takes on a busy machine.
const hang = 5 * time.Minute

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// call runs `nvmecr args...` on the stage to its end.
func call(t *testing.T, s *demo.Stage, args ...string) result {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Nvmecr, args...)
	cmd.Env, cmd.Dir = s.Environ(), s.Dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	require.NoError(t, ctx.Err(), "nvmecr %v hangs: %s%s", args, stdout.String(), stderr.String())
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// sh runs a shell script under `nvmecr run flags...`.
func sh(t *testing.T, s *demo.Stage, script string, flags ...string) result {
	return call(t, s, append(append([]string{"run"}, flags...), "--", "sh", "-c", script)...)
}

// refused checks for a failure with a message of one line that has all words.
func (r result) refused(t *testing.T, words ...string) {
	t.Helper()
	assert.Contains(t, []int{1, 2}, r.code, "exit status; stderr: %s", r.stderr)
	assert.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line: %s", r.stderr)
	assert.True(t, strings.HasPrefix(r.stderr, "nvmecr: "), r.stderr)
	for _, w := range words {
		assert.Contains(t, r.stderr, w)
	}
}

// ok checks for success and returns the standard output.
func (r result) ok(t *testing.T) string {
	t.Helper()
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	return r.stdout
}

// serve starts `nvmecr target` and returns the value of --target.
func serve(t *testing.T, s *demo.Stage, args ...string) (*demo.Job, string) {
	job, err := s.Start(append([]string{s.Nvmecr, "target"}, args...))
	require.NoError(t, err)
	for len(job.Stdout.Lines()) == 0 {
		if job.Ended() {
			require.NoError(t, job.Wait(t.Context()))
			t.Fatal("the target ended at once")
		}
		time.Sleep(time.Millisecond)
	}
	return job, job.Stdout.Lines()[0]
}

// stop stops a process. Without the wait a thread of it could still answer a request.
func stop(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.Eventually(t, func() bool { return proc.Stopped(pid) || proc.Ended(pid) }, hang, time.Millisecond)
}

// digest is a checksum of a file.
func digest(t *testing.T, path string) string { return digestFrom(t, path, 0) }

// digestFrom returns a checksum of the data behind an offset.
func digestFrom(t *testing.T, path string, offset int64) string {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Seek(offset, io.SeekStart)
	require.NoError(t, err)
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return string(h.Sum(nil))
}

// image creates a sparse file of mib MiB that begins with head.
func image(t *testing.T, s *demo.Stage, mib int64, head string) string {
	path := filepath.Join(s.Dir, "image")
	require.NoError(t, os.WriteFile(path, []byte(head), 0o600))
	require.NoError(t, os.Truncate(path, mib<<20))
	return path
}
