//go:build openmpi || mpich

package mpiwrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	mpi "github.com/sbromberger/gompi"

	"nvmecr/balancer"
)

// comms are the communicators a Job uses.
type comms struct {
	world *mpi.Communicator
	cr    *mpi.Communicator // MPI_COMM_CR
	first int               // rank 0 of cr, as a rank of MPI_COMM_WORLD
}

// Join finds this process's place in MPI_COMM_WORLD and creates MPI_COMM_CR:
// one communicator for each of the targets namespaces, of the ranks that have
// their own device there, as plan has it. For a plan by hosts the ranks first learn which
// host each of them is on; this one is on host. Collective over the world.
//
// Errors: ErrNoMPI before MPI_Init; a *Disagreement on all ranks if the plan cannot place
// them. All ranks have to be given the same, as nvmecr run does.
func Join(plan balancer.Plan, targets int, host string) (job *Job, err error) {
	if !mpi.IsOn() {
		return nil, ErrNoMPI
	}
	// gompi panics if the MPI library does not return its largest tag.
	defer func() {
		if p := recover(); p != nil {
			job, err = nil, fmt.Errorf("MPI communicator: %v", p)
		}
	}()
	world := mpi.NewCommunicator(nil)
	job = &Job{Rank: world.Rank(), Size: world.Size(), Plan: plan, comms: comms{world: world}}
	if plan.ByHosts() {
		if err := job.findHosts(host); err != nil {
			return nil, err
		}
	}
	sharers, err := sharers(job.Plan, job.Rank, job.Size, targets)
	if err != nil { // on every rank
		return nil, &Disagreement{Errno: errnoOf(err), Cause: err.Error(), Mine: job.Rank == 0}
	}
	job.comms.cr, job.comms.first = mpi.NewCommunicator(sharers), sharers[0]
	job.SharedRank, job.SharedSize = job.comms.cr.Rank(), job.comms.cr.Size()
	return job, nil
}

// findHosts exchanges the hosts of all ranks, and converts a plan by hosts to one by ranks.
func (j *Job) findHosts(host string) error {
	own, err := j.Plan.Host(host)
	if err := j.Agree(err); err != nil {
		return err
	}
	mine, all := make([]uint64, j.Size), make([]uint64, j.Size)
	mine[j.Rank] = uint64(own)
	if err := j.comms.world.AllreduceUint64s(all, mine, mpi.OpMax, 0); err != nil {
		return err
	}
	hosts := make([]int, j.Size)
	for rank, number := range all {
		hosts[rank] = int(number)
	}
	j.Plan = j.Plan.At(hosts)
	return nil
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

// agree implements Job.Agree. Of several failed ranks the lowest one is reported.
func (c *comms) agree(rank int, mine error) error {
	// Values stay below 1<<63: OpMin was seen to compare them as signed numbers.
	const none = uint64(math.MaxInt64)
	vote, lowest := []uint64{none}, []uint64{none}
	if mine != nil {
		vote[0] = uint64(rank)
	}
	if err := c.world.AllreduceUint64s(lowest, vote, mpi.OpMin, 0); err != nil {
		return errors.Join(mine, err)
	}
	if lowest[0] == none {
		return nil
	}
	return c.broadcast(int(lowest[0]), rank, mine)
}

// A rank that waits for the formatting rank polls at this interval and sleeps in between. A collective call would
// spin, and take the processor from that rank and from a target on this host.
const (
	firstPause = 50 * time.Microsecond
	maxPause   = 2 * time.Millisecond
)

// formatted implements Job.Formatted.
func (c *comms) formatted(mine error) error {
	const lowest, tag = 0, 0
	if c.cr.Rank() == lowest {
		words := encode(mine)
		for r := lowest + 1; r < c.cr.Size(); r++ {
			c.cr.SendUint64s(words, r, tag)
		}
		return mine
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if there, _ := c.cr.Iprobe(lowest, tag); there {
			break
		}
		time.Sleep(pause)
	}
	words := encode(nil)
	c.cr.RecvPreallocUint64s(words, lowest, tag)
	if words[0] == 0 {
		return nil
	}
	return decode(words, c.first)
}

// broadcast sends the error of rank root of MPI_COMM_WORLD to all ranks.
func (c *comms) broadcast(root, rank int, mine error) error {
	words := encode(mine)
	c.world.BcastUint64s(words, root)
	d := decode(words, root)
	d.Mine = rank == root
	return d
}

// encode returns an error as a message of fixed size: errno, or 0 for no error; the length of the text; the text.
func encode(err error) []uint64 {
	buf := make([]byte, 16+maxCause)
	if err != nil {
		binary.LittleEndian.PutUint64(buf, uint64(errnoOf(err)))
		binary.LittleEndian.PutUint64(buf[8:], uint64(copy(buf[16:], err.Error())))
	}
	words := make([]uint64, len(buf)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(buf[8*i:])
	}
	return words
}

// decode returns the error in a message from a rank.
func decode(words []uint64, rank int) *Disagreement {
	buf := make([]byte, 0, 8*len(words))
	for _, w := range words[2:] {
		buf = binary.LittleEndian.AppendUint64(buf, w)
	}
	return &Disagreement{Rank: rank, Errno: syscall.Errno(words[0]), Cause: string(buf[:min(words[1], maxCause)])}
}
