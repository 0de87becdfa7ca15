package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/checkpoint"
	"nvmecr/internal/demo"
)

// heat is one of the two programs in testdata, built for one MPI.
type heat struct {
	source   string
	launcher string
	compile  []string
}

const heatRanks = 2

func (h heat) build(t *testing.T, dir string) string {
	if _, err := exec.LookPath(h.compile[0]); err != nil {
		t.Skipf("%s is not installed: make deps", h.compile[0])
	}
	program := filepath.Join(dir, "heat")
	args := append(h.compile[1:], "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, filepath.Join("testdata", h.source))
	out, err := exec.Command(h.compile[0], args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// line runs the program from a step on, with a checkpoint every 50 steps.
func (h heat) line(program, dir string, from, steps int) []string {
	return demo.MPIRun(h.launcher, heatRanks, program, dir, strconv.Itoa(from), "50", strconv.Itoa(steps))
}

// heatFiles is the pattern of its checkpoints.
const heatFiles = "heat.{step}.*"

// TestKillAndRestart kills a C and a Fortran program under both MPIs with all other processes, and checks that the restarted program has
// the same result.
func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]heat{
		"C under OpenMPI":       {"heat.c", "mpirun.openmpi", []string{"mpicc.openmpi"}},
		"C under MPICH":         {"heat.c", "mpirun.mpich", []string{"mpicc.mpich"}},
		"Fortran under OpenMPI": {"heat.f90", "mpirun.openmpi", []string{"mpif90.openmpi"}},
		"Fortran under MPICH":   {"heat.f90", "mpirun.mpich", []string{"mpif90.mpich"}},
	} {
		t.Run(name, func(t *testing.T) { killAndRestart(t, h) })
	}
}

func killAndRestart(t *testing.T, h heat) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*hang)
	defer cancel()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	stage := newRankStage(t)
	program := h.build(t, stage.Dir)

	// This job does not end by itself.
	job, err := stage.Start(append(stage.RunFlags("heat", "--size", "512M"), h.line(program, "/nvmecr", 0, 1<<30)...))
	require.NoError(t, err)
	awaitCheckpoints(ctx, t, stage, job, 2)
	time.Sleep(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
	_, err = stage.Kill()
	require.NoError(t, err)

	cfg, err := stage.Config("heat")
	require.NoError(t, err)
	all, err := demo.Survey(ctx, cfg, heatRanks, heatFiles)
	require.NoError(t, err)
	newest, ok := checkpoint.Newest(all)
	require.True(t, ok, "%v", all)
	from, err := strconv.Atoi(newest.Name)
	require.NoError(t, err)
	end := from + 200
	t.Logf("killed with %d checkpoints, restarts from step %d", len(all), from)

	again, err := stage.Start(append(stage.RunFlags("heat"), h.line(program, "/nvmecr", from, end)...))
	require.NoError(t, err)
	require.NoError(t, again.Wait(ctx))

	// The reference, without nvmecr.
	local := filepath.Join(stage.Dir, "local")
	require.NoError(t, os.Mkdir(local, 0o700))
	reference, err := stage.Start(h.line(program, local, 0, end))
	require.NoError(t, err)
	require.NoError(t, reference.Wait(ctx))
	assert.Equal(t, sums(reference, from), sums(again, from))
	assert.Len(t, sums(again, from), 4)
}

// awaitCheckpoints waits until n are complete.
func awaitCheckpoints(ctx context.Context, t *testing.T, stage *demo.Stage, job *demo.Job, n int) {
	cfg, err := stage.Config("heat")
	require.NoError(t, err)
	for {
		all, err := demo.Survey(ctx, cfg, heatRanks, heatFiles)
		if demo.Complete(all) >= n {
			return
		}
		if job.Ended() {
			t.Fatal("the job ended: ", errors.Join(err, job.Wait(ctx)))
		}
		require.NoError(t, ctx.Err(), "the last look at the store: %v", err)
		time.Sleep(2 * time.Millisecond)
	}
}

// sums returns the lines about steps after from.
func sums(j *demo.Job, from int) []string {
	var found []string
	for _, line := range j.Stdout.Lines() {
		var step int
		if n, _ := fmt.Sscanf(line, "step %d", &step); n == 1 && step > from {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}
