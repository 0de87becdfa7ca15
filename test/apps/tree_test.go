package apps

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/demo"
)

// alikeInTree checks that a sequence of command lines has the same effects in a local directory and in the tree of a job. argv is called
// with the directory. shown, unless nil, selects the part of an output to compare. Files whose path matches except are not compared.
func alikeInTree(t *testing.T, s *demo.Stage, except string, shown func(output, dir string) any, argv func(dir string) [][]string) {
	t.Helper()
	local, flags := native(t, s), []string{"--view=job", "--fresh"}
	inMount := argv(mount)
	for i, line := range argv(local) {
		want := runs(t, s, line...)
		require.NoError(t, want.err, "natively")
		got := runs(t, s, append(s.RunFlags("tree", flags...), inMount[i]...)...)
		require.NoError(t, got.err, "in the tree")
		if shown != nil {
			assert.Equal(t, shown(want.stdout, local), shown(got.stdout, mount))
		}
		flags = nil // the store exists, with its settings
	}
	copied := filepath.Join(s.Dir, "copied")
	require.NoError(t, os.RemoveAll(copied))
	require.NoError(t, runs(t, s, s.Nvmecr, "cp", "--name", "tree", "/", copied).err)
	assert.Equal(t, tree(t, local, except), tree(t, copied, except), "the files")
}

// whole selects all of an output, numbersOf the thermodynamic values in the output of LAMMPS.
func whole(output, dir string) any   { return lines(output, dir) }
func numbersOf(output, _ string) any { return steps(output) }

// TestSharedFiles writes shared files by MPI-IO, parallel HDF5 and parallel NetCDF, and reads them with other numbers of ranks.
func TestSharedFiles(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			kind := mpi.suffix[1:]
			packages := []string{"hdf5-" + kind}
			if kind == "openmpi" {
				packages = append(packages, "pnetcdf")
			}
			flags, err := exec.Command("pkg-config", append([]string{"--cflags", "--libs"}, packages...)...).Output()
			if err != nil {
				t.Skipf("%v are not installed: make test-apps", packages)
			}
			s := newStage(t)
			build := strings.Fields(string(flags))
			if kind == "openmpi" {
				build = append(build, "-DPNETCDF")
			}
			program := compile(t, s, "mpicc"+mpi.suffix, "shared.c", append(build, "-Wall", "-Wextra", "-Werror")...)
			writeAndRead(t, s, "mpirun"+mpi.suffix, "env", mpi.variable, program)
		})
	}
}

// writeAndRead runs a program that writes with 4 ranks, and reads with 2 and with 3.
func writeAndRead(t *testing.T, s *demo.Stage, launcher string, argv ...string) {
	alikeInTree(t, s, "", whole, func(dir string) (all [][]string) {
		for _, run := range []struct {
			ranks int
			what  string
		}{{4, "write"}, {2, "read"}, {3, "read"}} {
			all = append(all, demo.MPIRun(launcher, run.ranks, append(argv[:len(argv):len(argv)], dir, run.what)...))
		}
		return all
	})
}

// TestBarrier checks that MPI_Barrier orders the writes of ranks to the same bytes of a file, which parallel HDF5 needs, and makes them visible.
func TestBarrier(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			s := newStage(t)
			program := compile(t, s, "mpicc"+mpi.suffix, "barrier.c", "-Wall", "-Wextra", "-Werror")
			writeAndRead(t, s, "mpirun"+mpi.suffix, "env", mpi.variable, program)
		})
	}
}

// TestCollectiveHoles writes by collective calls around bytes that other ranks have written by themselves, in C, Fortran and mpi_f08.
func TestCollectiveHoles(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix, "mpif90"+mpi.suffix)
			s := newStage(t)
			programs := []string{compile(t, s, "mpicc"+mpi.suffix, "hole.c", "-Wall", "-Wextra", "-Werror")}
			for _, name := range []string{"holes.F90", "holes08.F90"} {
				programs = append(programs, compile(t, s, "mpif90"+mpi.suffix, name))
			}
			alikeInTree(t, s, "", whole, func(dir string) (all [][]string) {
				for _, program := range programs {
					all = append(all, demo.MPIRun("mpirun"+mpi.suffix, 4, "env", mpi.variable, "OMPI_MCA_fcoll=^vulcan", program, dir))
				}
				return all
			})
		})
	}
}

// TestSieving writes a piece with gaps in one rank, while others publish what they have written into the gaps.
func TestSieving(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			s := newStage(t)
			program := compile(t, s, "mpicc"+mpi.suffix, "sieve.c", "-Wall", "-Wextra", "-Werror")
			alikeInTree(t, s, "", whole, func(dir string) [][]string {
				return [][]string{demo.MPIRun("mpirun"+mpi.suffix, 4, "env", mpi.variable, program, dir)}
			})
		})
	}
}

// TestFileOfTwoLanguages closes a file in Fortran that was opened in C. A collective write to the next file waits for the ranks of that file
// only. A collective write in the other language than the open has its barriers, too.
func TestFileOfTwoLanguages(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			s := newStage(t)
			fortran := map[string]string{".openmpi": "-lmpi_mpifh", ".mpich": "-lmpichfort"}[mpi.suffix]
			program := compile(t, s, "mpicc"+mpi.suffix, "languages.c", "-Wall", "-Wextra", "-Werror", fortran)
			alikeInTree(t, s, "", whole, func(dir string) [][]string {
				return [][]string{demo.MPIRun("mpirun"+mpi.suffix, 3, "env", mpi.variable, program, dir)}
			})
		})
	}
}

// TestSharedPointers writes by the file pointer that ranks share, and changes the size of a file of all ranks.
func TestSharedPointers(t *testing.T) {
	for _, mpi := range mpis {
		t.Run(mpi.name, func(t *testing.T) {
			need(t, "mpirun"+mpi.suffix)
			s := newStage(t)
			program := compile(t, s, "mpicc"+mpi.suffix, "pointers.c", "-Wall", "-Wextra", "-Werror")
			writeAndRead(t, s, "mpirun"+mpi.suffix, "env", mpi.variable, program)
		})
	}
}

// TestSharedFileOfPython writes a shared HDF5 file by h5py over MPI-IO, and reads it with other numbers of ranks.
func TestSharedFileOfPython(t *testing.T) {
	need(t, "mpirun.openmpi", python, "python:mpi4py", "python:h5py._debian_h5py_mpi")
	s := newStage(t)
	alikeInTree(t, s, "", whole, func(dir string) [][]string {
		line := func(ranks int, what string) []string {
			return demo.MPIRun("mpirun.openmpi", ranks, python, source(t, "shared.py"), dir, what)
		}
		return [][]string{line(3, "write"), line(2, "read")}
	})
}

// TestParallelNetCDF writes a shared NetCDF-4 file over parallel HDF5, and reads it with other numbers of ranks. Debian has it for Open
// MPI.
func TestParallelNetCDF(t *testing.T) {
	need(t, "mpirun.openmpi")
	packages := []string{"netcdf-mpi", "hdf5-openmpi"}
	flags, err := exec.Command("pkg-config", append([]string{"--cflags", "--libs"}, packages...)...).Output()
	if err != nil {
		t.Skipf("%v are not installed: make test-apps", packages)
	}
	headers, err := exec.Command("pkg-config", "--variable=libdir", "netcdf-mpi").Output()
	require.NoError(t, err)
	s := newStage(t)
	build := append(strings.Fields(string(flags)), "-I"+strings.TrimSpace(string(headers))+"/netcdf/mpi/include", "-Wall", "-Wextra", "-Werror")
	program := compile(t, s, "mpicc.openmpi", "netcdf4.c", build...)
	alikeInTree(t, s, "", whole, func(dir string) (all [][]string) {
		for i, ranks := range []int{4, 2, 3} {
			all = append(all, demo.MPIRun("mpirun.openmpi", ranks, program, dir, []string{"write", "read", "read"}[i]))
		}
		return all
	})
}

// benchmark finds a program of IOR: in the directory of a variable for this MPI, or in PATH.
func benchmark(t *testing.T, name, mpi string) string {
	t.Helper()
	variable := "IOR_" + strings.ToUpper(mpi)
	if dir := os.Getenv(variable); dir != "" {
		return filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name + "." + mpi)
	if err != nil {
		t.Skipf("there is no %s.%s, and %s names no directory of IOR's", name, mpi, variable)
	}
	return path
}

// TestIOR runs IOR, which reads back and checks the files of its ranks, and mdtest, whose ranks create, read and remove each other's
// files.
func TestIOR(t *testing.T) {
	for _, c := range []struct{ name, line string }{
		{"ior", "-a POSIX -w -r -W -R -C -e -k"},
		{"ior", "-a POSIX -w -r -W -R -Z -e -k"},
		{"ior", "-a MPIIO -w -r -W -R -C -k"},
		{"ior", "-a MPIIO -c -w -r -W -R -k"},
		{"ior", "-a HDF5 -w -r -W -R -C -k"},
		{"ior", "-a HDF5 -c -w -r -W -R -Z -k"},
		{"mdtest", "-n 12 -N 1 -w 3901 -e 3901"},
	} {
		for _, mpi := range []string{"openmpi", "mpich"} {
			t.Run(c.name+" "+c.line+" "+mpi, func(t *testing.T) {
				need(t, "mpirun."+mpi)
				program := benchmark(t, c.name, mpi)
				s := newStage(t)
				except := ""
				if strings.Contains(c.line, "HDF5") {
					except = "file" // contains the time
				}
				alikeInTree(t, s, except, nil, func(dir string) [][]string {
					line := append([]string{program}, strings.Fields(c.line)...)
					if c.name == "ior" {
						return [][]string{demo.MPIRun("mpirun."+mpi, 3, append(line, "-G", "7", "-t", "64k", "-b", "256k", "-s", "3", "-o", dir+"/file")...)}
					}
					return [][]string{demo.MPIRun("mpirun."+mpi, 3, append(line, "-d", dir+"/tree")...)}
				})
			})
		}
	}
}

// TestLAMMPSInTree continues from all kinds of LAMMPS' restart files with another number of ranks.
func TestLAMMPSInTree(t *testing.T) {
	for _, form := range []string{"", ".%", ".mpiio"} {
		forLAMMPS(t, "form "+form, func(t *testing.T, mpirun, program string) {
			s := newStage(t)
			line := func(n int, dir, from, begin, last string) []string {
				return demo.MPIRun(mpirun, n, program, "-in", source(t, "restarts.in"), "-log", "none", "-var", "from", dir+from,
					"-var", "begin", begin, "-var", "keep", "40 "+dir+"/melt.*"+form, "-var", "last", last, "-var", "end", dir+"/end."+last+form)
			}
			alikeInTree(t, s, "", numbersOf, func(dir string) [][]string {
				return [][]string{
					line(2, dir, "none", "0", "80"),
					line(3, dir, "/melt.40"+form, "40", "120"),
					line(1, dir, "/end.120"+form, "120", "160"),
				}
			})
		})
	}
}

// TestGROMACSInTree continues from the checkpoint and the trajectory of a run in the next one.
func TestGROMACSInTree(t *testing.T) {
	need(t, "gmx")
	s := newStage(t)
	input := prepareWater(t, s, 400)
	// The log, the checkpoint and the energies have times of the day.
	alikeInTree(t, s, `#?water.*\.(log|cpt|edr)(\.\d+#)?`, nil, func(dir string) [][]string {
		return [][]string{mdrun([]string{"gmx"}, dir, input, "-nsteps", "200"), mdrun([]string{"gmx"}, dir, input, "-cpi", "water.cpt")}
	})
}
