// Package mpiwrap makes the runtime's calls of MPI, all of them inside the
// application's MPI_Init: the rank and size of the process, the ranks that share its
// namespace, and whether all ranks have mounted. After MPI_Init no rank waits for another.
//
// The application has initialised MPI, so this package neither initialises nor finalises
// it. All calls go through gompi, of which only these functions are used:
// NewCommunicator, Rank, Size, AllreduceUint64s, BcastUint64s, SendUint64s, Iprobe and
// RecvPreallocUint64s. (BcastBytes sends four times the bytes that it is given; Start would initialise MPI
// twice.)
//
// Functions call MPI on the calling thread, because MPI_THREAD_SINGLE and FUNNELED
// allow no other one: call them only from the thread that is
// in MPI_Init. Join and Agree are collective over
// MPI_COMM_WORLD, Formatted over MPI_COMM_CR: all ranks call them, in the same
// order, or none.
//
// The build chooses the MPI library; there is one runtime library for each:
//
//	-tags openmpi   gompi's own flags
//	-tags mpich     CGO_CFLAGS="$(pkg-config --cflags mpich)"
//	                CGO_LDFLAGS="-Wl,--as-needed -lmpich"
//	neither         no MPI: Join fails with ErrNoMPI
package mpiwrap

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/balancer"
)

// ErrNoMPI means that this build has no MPI, or that the application has not initialised it.
var ErrNoMPI = errors.New("MPI is not initialised")

// A Job has the communicators of the application's job, and the rank of this process in them.
type Job struct {
	Rank, Size int // in MPI_COMM_WORLD
	// SharedRank and SharedSize are rank and size in MPI_COMM_CR, the
	// communicator of the ranks that share this rank's namespace.
	SharedRank, SharedSize int
	// Plan maps the ranks to targets. Join converts a plan by hosts to one by ranks.
	Plan balancer.Plan

	comms comms
}

// Agree combines the results of all ranks' mounts. It returns
// nil on all ranks if all of them succeeded, else a *Disagreement on all ranks:
// either all ranks have the mount or none. Collective over MPI_COMM_WORLD.
func (j *Job) Agree(mine error) error { return j.comms.agree(j.Rank, mine) }

// Formatted tells the ranks that share a namespace whether it has been formatted. The rank that formats,
// SharedRank 0, calls Formatted with its error or nil, and gets the same back. The other ranks
// wait for that call, and get nil or a *Disagreement; their argument is ignored. Collective over
// MPI_COMM_CR: every rank calls it once, even after an error or a panic.
func (j *Job) Formatted(mine error) error { return j.comms.formatted(mine) }

// A Disagreement is the error of one rank, as all ranks return it.
// It unwraps to the errno of that error, the same on every rank.
type Disagreement struct {
	Rank  int           // the rank that failed; the lowest one if several did
	Errno syscall.Errno // of its error; EIO if that has no errno
	Cause string        // the text of its error, at most maxCause bytes
	// Mine is true on the rank that failed, which reports the error.
	Mine bool
}

// Error returns the cause and the rank.
func (d *Disagreement) Error() string {
	return fmt.Sprintf("rank %d: %s", d.Rank, d.Cause)
}

// Unwrap returns the errno.
func (d *Disagreement) Unwrap() error { return d.Errno }

// maxCause is how many bytes of an error's text are sent to the other ranks.
const maxCause = 504

// errnoOf returns the errno of an error, EIO if it has none.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EIO
}
