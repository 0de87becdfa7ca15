package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// TestLocks checks locks between the ranks of a job and its script.
func TestLocks(t *testing.T) {
	t.Parallel()
	for _, mpi := range []string{"openmpi", "mpich"} {
		t.Run(mpi, func(t *testing.T) {
			s := newStage(t)
			line := strings.Join(demo.MPIRun("mpirun."+mpi, 3, mpiProgram(t, s.Dir, mpi, "locks"), "/nvmecr"), " ")
			out := sh(t, s, `set -e; cd /nvmecr; touch record whole
`+line+` count & ranks=$!
for i in $(seq 20); do flock whole sh -c 'n=$(cat whole); echo $((${n:-0} + 1)) > whole'; done
wait $ranks
`+line+` die > die 2>&1 || true
flock whole cat whole record
`+line+` count
exec 9< whole; flock 9; flock -n whole true || echo taken; exec 9<&-; flock -n whole cat whole record`, "--view=job").ok(t)
			assert.Equal(t, "ok\n320\n300\nok\ntaken\n620\n600\n", out)
		})
	}
}

// TestLocksOfMPIIO checks that MPI-IO calls which use locks have the same results as on a local file system.
func TestLocksOfMPIIO(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, mpi   string
		flags, what []string
	}{
		{"ROMIO of mpich", "mpich", nil, []string{"stride", "atomic", "stride"}},
		{"ROMIO of openmpi", "openmpi", []string{"--mca", "io", "romio321"}, []string{"stride", "atomic", "stride"}},
		{"OMPIO, which has no atomic mode", "openmpi", []string{"--mca", "io", "ompio"}, []string{"stride", "stride"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t)
			program := mpiProgram(t, s.Dir, tc.mpi, "locks")
			line := func(dir, what string) []string {
				run := demo.MPIRun("mpirun."+tc.mpi, 3, program, dir, what)
				return append(append(run[:1:1], tc.flags...), run[1:]...)
			}
			out, err := exec.Command(line(s.Dir, "stride")[0], line(s.Dir, "stride")[1:]...).CombinedOutput()
			require.NoError(t, err, string(out))
			for _, what := range tc.what {
				require.Equal(t, "ok\n", call(t, s, append([]string{"run", "--view=job", "--"}, line("/nvmecr", what)...)...).ok(t), what)
			}
			got := filepath.Join(s.Dir, "got")
			call(t, s, "cp", "/stride", got).ok(t)
			assert.Equal(t, digest(t, filepath.Join(s.Dir, "stride")), digest(t, got))
		})
	}
}
