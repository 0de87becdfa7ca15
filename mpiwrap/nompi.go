//go:build !openmpi && !mpich

package mpiwrap

import "nvmecr/balancer"

type comms struct{}

// Join fails with ErrNoMPI.
func Join(plan balancer.Plan, targets int, host string) (*Job, error) { return nil, ErrNoMPI }

// agree and formatted return the rank's own result, since there are no other ranks.
func (*comms) agree(rank int, mine error) error { return mine }
func (*comms) formatted(mine error) error       { return mine }
