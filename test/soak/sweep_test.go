package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo/demotest"
)

// TestKilledAtEveryCall kills a rank at each of its system calls that send or write something, one after the other, from opening its
// partition for writing to the end of the process. The effect of a kill between two such calls is the same, so this covers every
// instruction.
func TestKilledAtEveryCall(t *testing.T) {
	steps := 6
	if testing.Short() {
		steps = 2
	}
	seed := strconv.FormatInt(time.Now().UnixNano()%1_000_000, 10)
	t.Logf("seed %s", seed)
	stage := demotest.NewStage(t)
	programs, _, err := build(stage.Dir)
	require.NoError(t, err)
	killat := filepath.Join(stage.Dir, "killat")
	out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", killat, "testdata/killat.c").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Mkdir(filepath.Join(stage.Dir, "readback"), 0o700))

	job, err := stage.Start(append(stage.RunFlags("sweep", "--view=rank", "--size", "64M"), "sh", mustAbs(t, "testdata/sweep.sh"), strconv.Itoa(steps), killat,
		programs["sh"], mount, stage.Dir, seed, "1"))
	require.NoError(t, err)
	require.NoError(t, job.Wait(t.Context()))
	calls, err := strconv.Atoi(job.Stdout.Lines()[0])
	require.NoError(t, err)

	w := &history{model: newModel()}
	never := new(faults)
	tally := newTally(io.Discard)
	c := &checker{dir: stage.Dir, excused: never.excused, whole: 1 << 20, tally: tally, histories: []*history{w}}
	require.NoError(t, c.readJournals())
	require.Nil(t, w.pending)
	t.Logf("killed at each of %d calls; %d operations acknowledged, %d in doubt", calls, tally.Operations, tally.Doubts)
	assert.EqualValues(t, calls+2, w.starts)
	// A line is written before and after each operation, which sends data in between.
	assert.Greater(t, calls, 2*steps)
	assert.Greater(t, tally.Doubts, int64(steps))
}

func mustAbs(t *testing.T, path string) string {
	abs, err := filepath.Abs(path)
	require.NoError(t, err)
	return abs
}
