//go:build mpich && !openmpi

package mpiwrap

// Flavour names the MPI library this was built for.
const Flavour = "mpich"
