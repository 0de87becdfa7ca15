//go:build !race

package posixshim_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mpis are the MPI libraries, named by the suffix of their commands in Debian.
var mpis = []struct {
	name   string
	mpirun []string
}{
	{"openmpi", []string{"mpirun.openmpi", "--oversubscribe", "-n", "4"}},
	{"mpich", []string{"mpirun.mpich", "-n", "4"}},
}

// ranks returns a command that runs a program on four ranks.
func (s *store) ranks(mpirun []string, program string, args ...string) *exec.Cmd {
	tool(s.t, mpirun[0])
	return s.command(mpirun[0], append(append(mpirun[1:len(mpirun):len(mpirun)], program), args...)...)
}

// TestMPI runs programs in C and Fortran on four ranks of each MPI library.
func TestMPI(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name)) // without the runtimes of other MPI libraries
			program := compile(t, "mpicc."+mpi.name, "ranks.c")
			for _, args := range [][]string{{mount}, {mount, "again"}, {mount, "threads"}} {
				assert.Equal(t, "ok\n", output(t, s.ranks(mpi.mpirun, program, args...)), args)
			}
			for _, source := range []string{"ranks.f90", "ranks08.f90"} {
				program := compile(t, "mpif90."+mpi.name, source)
				assert.Equal(t, "ok\n", output(t, s.ranks(mpi.mpirun, program, mount)), source)
			}
		})
	}
}

// TestSharedFile checks that ranks which open one file together by MPI_File_open get an MPI error, and that one line
// is printed.
func TestSharedFile(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name))
			for source, compiler := range map[string]string{"shared.c": "mpicc.", "shared.f90": "mpif90.", "shared08.f90": "mpif90."} {
				program := compile(t, compiler+mpi.name, source)
				stdout, stderr, err := finish(t, s.ranks(mpi.mpirun, program, mount+"/"+source, filepath.Join(t.TempDir(), "elsewhere")))
				require.NoError(t, err, stderr)
				assert.Equal(t, "ok\n", stdout, source)
				assert.Equal(t, 1, strings.Count(stderr, "MPI_File_open of /nvmecr/"+source+" by 4 ranks is refused"), stderr)
			}
		})
	}
}

// TestSharedFileAbort checks that the line is printed where the program aborts as soon as the call fails, although the rank that prints it
// comes late.
func TestSharedFileAbort(t *testing.T) {
	for _, mpi := range mpis {
		for source, compiler := range map[string]string{"shared.c": "mpicc.", "shared.f90": "mpif90."} {
			t.Run(mpi.name+"/"+source, func(t *testing.T) {
				s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name))
				_, stderr, err := finish(t, s.ranks(mpi.mpirun, compile(t, compiler+mpi.name, source), mount+"/"+source, "abort"))
				require.Error(t, err)
				assert.Equal(t, 1, strings.Count(stderr, "MPI_File_open of /nvmecr/"+source+" by 4 ranks is refused"), stderr)
			})
		}
	}
}

// TestMPIWithoutTarget checks that only one rank prints a message if the target cannot be opened.
func TestMPIWithoutTarget(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			s := newStore(t, fmt.Sprintf(runtimeOf, mpi.name))
			s.target = "file:/nowhere/image"
			_, stderr, err := finish(t, s.ranks(mpi.mpirun, compile(t, "mpicc."+mpi.name, "ranks.c"), mount))
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "it has to fail")
			assert.Equal(t, 1, strings.Count(stderr, "cannot be used"), "said by one rank, in one line:\n%s", stderr)
			assert.Contains(t, stderr, "nvmecr: rank 0: files under /nvmecr")
			assert.NotContains(t, stderr, "cannot be used: rank", "which is said already")
			assert.Contains(t, stderr, "/nowhere/image")
			assert.Contains(t, stderr, "Input/output error")
		})
	}
}
