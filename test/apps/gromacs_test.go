package apps

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// GROMACS takes a checkpoint after each 100 steps or more, when this many
// minutes are over.
const gromacsMinutes = "0.005"

// prepareWater creates the input of a GROMACS run on a box of water.
func prepareWater(t *testing.T, s *demo.Stage, steps int) string {
	t.Helper()
	dir := filepath.Join(s.Dir, "water"+strconv.Itoa(steps))
	require.NoError(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{"spc.top", "water.mdp"} {
		text, err := os.ReadFile(source(t, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(string(text), "NSTEPS", strconv.Itoa(steps))), 0o600))
	}
	made := runs(t, s, "sh", "-ec", `cd "$1"
		gmx -quiet solvate -cs spc216 -box 2 2 2 -p spc.top -o conf.gro
		gmx -quiet grompp -f water.mdp -c conf.gro -p spc.top -o water.tpr -maxwarn 2`, "-", dir)
	require.NoError(t, made.err)
	return filepath.Join(dir, "water.tpr")
}

// mdrun returns a command line that runs GROMACS reproducibly in a directory. program is its command, perhaps with a launcher.
func mdrun(program []string, dir, input string, more ...string) []string {
	line := slices.Concat([]string{"sh", "-ec", `cd "$1"; shift; exec "$@"`, "-", dir}, program,
		[]string{"-quiet", "mdrun", "-s", input, "-deffnm", "water", "-reprod", "-ntomp", "1", "-nb", "cpu", "-cpt", gromacsMinutes}, more)
	if len(program) == 1 { // without a launcher ranks are threads
		line = append(line, "-ntmpi", "1")
	}
	return line
}

// TestGROMACS kills GROMACS, with one thread or several ranks, continues from its checkpoint, and compares the trajectory with that of an
// undisturbed run, byte by byte.
func TestGROMACS(t *testing.T) {
	need(t, "gmx")
	t.Run("process", func(t *testing.T) { killGROMACS(t, "gmx") })
	t.Run("ranks", func(t *testing.T) {
		need(t, "mpirun.openmpi", "gmx_mpi")
		killGROMACS(t, demo.MPIRun("mpirun.openmpi", ranks, "gmx_mpi")...)
	})
}

func killGROMACS(t *testing.T, program ...string) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s := newStage(t)
	input := prepareWater(t, s, 5000)

	job, err := s.Start(append(s.RunFlags("water", "--fresh"), mdrun(program, mount, input)...), environment...)
	require.NoError(t, err)
	for seen := 0; seen < 2; {
		require.False(t, job.Ended(), "GROMACS ended: %s%s", job.Stdout.Tail(20), job.Stderr.Tail(20))
		require.NoError(t, ctx.Err())
		time.Sleep(50 * time.Millisecond)
		seen = strings.Count(runs(t, s, s.Nvmecr, "cat", "--name", "water", "/water.log").stdout, "Writing checkpoint")
	}
	before := runs(t, s, s.Nvmecr, "ls", "--name", "water").stdout
	assert.Contains(t, before, "/water.cpt")
	_, err = s.Kill()
	require.NoError(t, err)

	// The checkpoint has the state of the other files: GROMACS locks them, compares checksums, and truncates them to the checkpoint.
	again := runs(t, s, append(s.RunFlags("water"), mdrun(program, mount, input, "-cpi", "water.cpt")...)...)
	require.NoError(t, again.err)
	log := runs(t, s, s.Nvmecr, "cat", "--name", "water", "/water.log").stdout
	assert.Contains(t, log, "Restarting from checkpoint, appending to previous log file")

	local := native(t, s)
	require.NoError(t, runs(t, s, mdrun(program, local, input)...).err)
	copied := filepath.Join(s.Dir, "copied")
	require.NoError(t, runs(t, s, s.Nvmecr, "cp", "--name", "water", "/", copied).err)
	for _, name := range []string{"water.xtc", "water.gro"} {
		want, err := os.ReadFile(filepath.Join(local, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(copied, name))
		require.NoError(t, err)
		assert.True(t, string(want) == string(got), "%s differs: %d and %d bytes", name, len(want), len(got))
	}
}
