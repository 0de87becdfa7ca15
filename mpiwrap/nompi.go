//go:build !openmpi && !mpich

package mpiwrap

type comms struct{}

// Join fails with ErrNoMPI.
func Join(targets int) (*Job, error) { return nil, ErrNoMPI }

// agree returns the rank's own outcome: there are no others.
func (*comms) agree(rank int, mine error) error { return mine }
