//go:build openmpi && !mpich

package mpiwrap

// Flavour names the MPI library this was built for.
const Flavour = "openmpi"
