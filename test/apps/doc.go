// Package apps runs programs that others wrote, as a distribution ships them,
// in a local directory and under the mount, and expects them to do the same:
// the same output, exit status, and files. Programs that keep checkpoints are
// killed in the middle and have to go on from what they had acknowledged.
//
// `make test-apps` installs what the larger ones need; a program that is not
// installed is skipped. IOR and mdtest, which Debian does not have, are ior.openmpi and
// the like in PATH, or in the directories that IOR_OPENMPI and IOR_MPICH name.
// LAMMPS under MPICH, which Debian does not have either, is lmp.mpich in PATH, or
// the program that LMP_MPICH names; it was built with the package MPIIO.
package apps
