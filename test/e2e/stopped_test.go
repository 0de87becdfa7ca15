package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTreeStopped checks that no process waits for a stopped rank, and that no call waits longer than the time-out for a stopped index.
func TestTreeStopped(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	program, err := filepath.Abs("testdata/stopped.py")
	require.NoError(t, err)
	line := python + " " + program
	script := "PMI_RANK=1 PMI_SIZE=2 " + line + " one & PMI_RANK=0 PMI_SIZE=2 " + line + " other " + s.Dir + "; kill -9 $!"
	job, err := s.Start([]string{s.Nvmecr, "run", "--view=job", "--timeout", "8s", "--", "sh", "-c", script})
	require.NoError(t, err)
	said := func(n int) []string {
		require.Eventually(t, func() bool { return job.Ended() || len(job.Stdout.Lines()) >= n }, hang, time.Millisecond)
		require.GreaterOrEqual(t, len(job.Stdout.Lines()), n, "%v", job.Stderr.Lines())
		return job.Stdout.Lines()
	}
	for _, text := range said(2) {
		if name, number, _ := strings.Cut(text, " "); name == "one" {
			pid, err := strconv.Atoi(number)
			require.NoError(t, err)
			stop(t, pid)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "go1"), nil, 0o600))
	assert.Equal(t, []string{"synced", "goes on"}, said(4)[2:])

	index := (&torn{Stage: s, t: t}).processes("serve")
	for _, pid := range index {
		stop(t, pid)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "go2"), nil, 0o600))
	after := regexp.MustCompile(`^Input/output error after ([0-9.]+) s$`).FindStringSubmatch(said(5)[4])
	for _, pid := range index {
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	require.Len(t, after, 2, said(5)[4])
	seconds, err := strconv.ParseFloat(after[1], 64)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, seconds, 7.9)
	_ = job.Wait(t.Context()) // fails: a rank was killed
}
