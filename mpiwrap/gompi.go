//go:build openmpi || mpich

package mpiwrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"

	mpi "github.com/sbromberger/gompi"

	"nvmecr/balancer"
)

// comms are the communicators a Job uses.
type comms struct {
	world *mpi.Communicator
	cr    *mpi.Communicator // MPI_COMM_CR
}

// Join finds this process's place in MPI_COMM_WORLD and creates MPI_COMM_CR:
// one communicator for each of the targets namespaces, of the ranks that have
// their own device there, as plan has it. Collective over the world.
//
// Errors: ErrNoMPI before MPI_Init; what Agree returns, on all ranks, if the plan cannot
// place them.
func Join(plan balancer.Plan, targets int) (job *Job, err error) {
	if !mpi.IsOn() {
		return nil, ErrNoMPI
	}
	// gompi panics when the library does not tell its largest tag.
	defer func() {
		if p := recover(); p != nil {
			job, err = nil, fmt.Errorf("MPI communicator: %v", p)
		}
	}()
	world := mpi.NewCommunicator(nil)
	job = &Job{Rank: world.Rank(), Size: world.Size(), comms: comms{world: world}}
	sharers, err := sharers(plan, job.Rank, job.Size, targets)
	if err = job.Agree(err); err != nil {
		return nil, err
	}
	job.comms.cr = mpi.NewCommunicator(sharers)
	job.SharedRank, job.SharedSize = job.comms.cr.Rank(), job.comms.cr.Size()
	return job, nil
}

// sharers returns the ranks on the namespace of rank's own device.
func sharers(plan balancer.Plan, rank, size, targets int) ([]int, error) {
	mapping, err := plan.Map(size, targets)
	if err != nil {
		return nil, err
	}
	home, err := mapping.Home(rank)
	if err != nil {
		return nil, err
	}
	return mapping.Ranks(home[0].Target), nil
}

// agree: see Job.Agree.
func (c *comms) agree(rank int, mine error) error {
	// The lowest failed rank wins and brings its errno along. Values stay
	// below 1<<63: OpMin was seen to compare them as signed numbers.
	const none = uint64(math.MaxInt64)
	vote, lowest := []uint64{none}, []uint64{none}
	if mine != nil {
		vote[0] = uint64(rank)<<32 | uint64(uint32(errnoOf(mine)))
	}
	if err := c.world.AllreduceUint64s(lowest, vote, mpi.OpMin, 0); err != nil {
		return errors.Join(mine, err)
	}
	if lowest[0] == none {
		return nil
	}
	d := &Disagreement{Rank: int(lowest[0] >> 32), Errno: syscall.Errno(uint32(lowest[0]))}
	d.Mine = d.Rank == rank
	if d.Mine {
		d.Cause = mine.Error()
	}
	d.Cause = c.broadcast(d.Cause, d.Rank)
	return d
}

// broadcast hands the text of root to all ranks, in a message of fixed size:
// its length, then its bytes.
func (c *comms) broadcast(text string, root int) string {
	buf := make([]byte, 8+maxCause)
	n := copy(buf[8:], text)
	binary.LittleEndian.PutUint64(buf, uint64(n))
	words := make([]uint64, len(buf)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(buf[8*i:])
	}
	c.world.BcastUint64s(words, root)
	for i, w := range words {
		binary.LittleEndian.PutUint64(buf[8*i:], w)
	}
	return string(buf[8 : 8+min(words[0], maxCause)])
}
