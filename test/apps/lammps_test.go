package apps

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// lammpsEvery is the number of steps between restart files; restarts.in prints twice as often.
const lammpsEvery = 40

// lammps finds LAMMPS for an MPI, "openmpi" or "mpich". Debian has it for Open MPI.
func lammps(t *testing.T, mpi string) string {
	t.Helper()
	need(t, "mpirun."+mpi)
	if mpi == "openmpi" {
		need(t, "lmp")
		return "lmp"
	}
	if program := os.Getenv("LMP_MPICH"); program != "" {
		return program
	}
	program, err := exec.LookPath("lmp.mpich")
	if err != nil {
		t.Skip("there is no lmp.mpich, and LMP_MPICH names no LAMMPS that was built with MPICH")
	}
	return program
}

// forLAMMPS runs a test with LAMMPS for each MPI.
func forLAMMPS(t *testing.T, name string, test func(t *testing.T, mpirun, program string)) {
	for _, mpi := range []string{"openmpi", "mpich"} {
		t.Run(name+" "+mpi, func(t *testing.T) { test(t, "mpirun."+mpi, lammps(t, mpi)) })
	}
}

// TestLAMMPS kills LAMMPS, restarts it from each kind of restart file, and compares the following steps with those of an undisturbed run
// to the last digit.
func TestLAMMPS(t *testing.T) {
	for _, c := range []struct {
		name string
		keep string // arguments of `restart`
		end  string // file of write_restart
		// Files to restart from, with the step for %d; of two files written in turn, the one that is not being written.
		turns []string
	}{
		{"one file", "DIR/melt.*", "DIR/end", []string{"DIR/melt.%d"}},
		{"two files in turn", "DIR/melt.a DIR/melt.b", "DIR/end", []string{"DIR/melt.b", "DIR/melt.a"}},
		{"a file for each rank", "DIR/melt.*.%", "DIR/end.%", []string{"DIR/melt.%d.%%"}},
		{"one file of all ranks", "DIR/melt.*.mpiio", "DIR/end.mpiio", []string{"DIR/melt.%d.mpiio"}},
	} {
		forLAMMPS(t, c.name, func(t *testing.T, mpirun, program string) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s := newStage(t)
			line := func(dir, from string, begin, last int) []string {
				in := func(text string) string { return strings.ReplaceAll(text, "DIR", dir) }
				return demo.MPIRun(mpirun, ranks, program, "-in", source(t, "restarts.in"), "-log", "none", "-var", "from", in(from), "-var", "begin", strconv.Itoa(begin),
					"-var", "keep", strconv.Itoa(lammpsEvery)+" "+in(c.keep), "-var", "last", strconv.Itoa(last), "-var", "end", in(c.end))
			}

			// This job does not end in time.
			job, err := s.Start(append(s.RunFlags("melt", "--fresh"), line(mount, "none", 0, 1<<30)...), environment...)
			require.NoError(t, err)
			for lastStep(job.Stdout.Lines()) < 3*lammpsEvery+lammpsEvery/2 {
				require.False(t, job.Ended(), "LAMMPS ended: %s%s", job.Stdout.Tail(10), job.Stderr.Tail(10))
				require.NoError(t, ctx.Err())
				time.Sleep(20 * time.Millisecond)
			}
			_, err = s.Kill()
			require.NoError(t, err)
			// It writes its restart file before it prints a step.
			acknowledged := lastStep(job.Stdout.Lines()) / lammpsEvery * lammpsEvery

			from := c.turns[acknowledged/lammpsEvery%len(c.turns)]
			if strings.Contains(from, "%d") {
				from = fmt.Sprintf(from, acknowledged)
			}
			last := acknowledged + 2*lammpsEvery
			again := runs(t, s, append(s.RunFlags("melt"), line(mount, from, acknowledged, last)...)...)
			require.NoError(t, again.err)
			whole := runs(t, s, line(native(t, s), "none", 0, last)...)
			require.NoError(t, whole.err)
			want, got := steps(whole.stdout), steps(again.stdout)
			first := slices.Min(slices.Collect(maps.Keys(got)))
			assert.Contains(t, []int{acknowledged, acknowledged + lammpsEvery}, first, "where it went on; killed at %d", acknowledged)
			assert.Len(t, got, 2*(last-first)/lammpsEvery+1)
			for step, numbers := range got {
				assert.Equal(t, want[step], numbers, "step %d", step)
			}

			// It has written its last restart file, and continues from that as well.
			further := runs(t, s, append(s.RunFlags("melt"), line(mount, c.end, last, last+lammpsEvery)...)...)
			require.NoError(t, further.err)
			assert.Equal(t, want[last], steps(further.stdout)[last])
		})
	}
}

// TestLAMMPSWithMPIIO checks that with private files of ranks a restart file written by all ranks is refused with MPI's error and a
// message, and that no rank has a partial file.
func TestLAMMPSWithMPIIO(t *testing.T) {
	need(t, "lmp", "mpirun.openmpi")
	s := newStage(t)
	line := demo.MPIRun("mpirun.openmpi", ranks, "lmp", "-in", source(t, "restarts.in"), "-log", "none", "-var", "from", "none", "-var", "begin", "0",
		"-var", "keep", strconv.Itoa(lammpsEvery)+" "+mount+"/melt.*.mpiio", "-var", "last", strconv.Itoa(lammpsEvery), "-var", "end", mount+"/end.mpiio")
	r := runs(t, s, append(s.RunFlags("melt", "--fresh", "--view=rank"), line...)...)
	require.Error(t, r.err)
	assert.Contains(t, r.stdout+r.stderr, "MPI_ERR_UNSUPPORTED_OPERATION")
	assert.Contains(t, r.stderr, fmt.Sprintf("by %d ranks is refused", ranks))
}

// thermo matches a line of thermodynamic output: a step and at least four numbers.
var thermo = regexp.MustCompile(`(?m)^[ \t]*(\d+)((?:[ \t]+[-+.\de]+){4,})[ \t]*$`)

// steps returns the steps in an output with their numbers.
func steps(output string) map[int]string {
	found := make(map[int]string)
	for _, m := range thermo.FindAllStringSubmatch(output, -1) {
		step, _ := strconv.Atoi(m[1]) // matches digits
		found[step] = strings.Join(strings.Fields(m[2]), " ")
	}
	return found
}

func lastStep(lines []string) int {
	last := -1
	for step := range steps(strings.Join(lines[max(0, len(lines)-50):], "\n")) {
		last = max(last, step)
	}
	return last
}
