//go:build !openmpi && !mpich

package mpiwrap

// Flavour names the MPI library this was built for.
const Flavour = "none"

type comms struct{}

// Join fails with ErrNoMPI.
func Join(targets int) (*Job, error) { return nil, ErrNoMPI }

// agree returns the rank's own outcome: there are no others.
func (*comms) agree(rank int, mine error) error { return mine }
