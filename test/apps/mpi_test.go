package apps

import (
	"os/exec"
	"strings"
	"testing"

	"nvmecr/internal/demo"
)

// ranks is the number of ranks of MPI programs.
const ranks = 2

// mpis are the MPI libraries, with the suffix of their commands in Debian. A variable selects the implementation of MPI-IO.
var mpis = []struct{ name, suffix, variable string }{
	{"OMPIO", ".openmpi", "OMPI_MCA_io=ompio"},
	{"ROMIO of OpenMPI", ".openmpi", "OMPI_MCA_io=romio321"},
	{"ROMIO of MPICH", ".mpich", "ROMIO=own"},
}

// TestMPIIO runs MPI-IO of all kinds on each rank's own files.
func TestMPIIO(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			s := newStage(t)
			program := compile(t, s, "mpicc"+mpi.suffix, "mpiio.c", "-Wall", "-Wextra", "-Werror")
			alikeRanks(t, s, "mpirun"+mpi.suffix, "env", mpi.variable, program)
		})
	}
}

// TestFormatsOfRanks writes and reads HDF5 and NetCDF, a file for each rank.
func TestFormatsOfRanks(t *testing.T) {
	for _, mpi := range mpis {
		if strings.HasPrefix(mpi.name, "ROMIO of OpenMPI") {
			continue // uses the same libraries
		}
		t.Run("C under "+mpi.suffix[1:], func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			flags, err := exec.Command("pkg-config", "--cflags", "--libs", "hdf5-serial", "netcdf").Output()
			if err != nil {
				t.Skip("libhdf5-dev or libnetcdf-dev is not installed: make test-apps")
			}
			s := newStage(t)
			program := compile(t, s, "mpicc"+mpi.suffix, "ranks.c", strings.Fields(string(flags))...)
			alikeRanks(t, s, "mpirun"+mpi.suffix, program)
		})
	}
	t.Run("Python under openmpi", func(t *testing.T) {
		need(t, "mpirun.openmpi", python, "python:mpi4py", "python:h5py")
		s := newStage(t)
		alikeRanks(t, s, "mpirun.openmpi", python, source(t, "ranks.py"))
	})
}

// alikeRanks is alike for a command line on several ranks with the directory as its last argument.
func alikeRanks(t *testing.T, s *demo.Stage, launcher string, argv ...string) {
	t.Helper()
	alike(t, s, "", func(dir string) []string {
		return demo.MPIRun(launcher, ranks, append(argv[:len(argv):len(argv)], dir)...)
	})
}
