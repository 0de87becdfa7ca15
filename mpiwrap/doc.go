// Package mpiwrap is what the runtime asks of MPI, once, inside the
// application's MPI_Init: who am I, who shares my namespace, and has everyone
// mounted. After that no rank ever waits for another.
//
// The application has initialised MPI itself, so nothing here starts or stops
// it. Everything goes through gompi, of which only what is sound is used:
// NewCommunicator, Rank, Size, AllreduceUint64s, BcastUint64s, SendUint64s, Iprobe and
// RecvPreallocUint64s. (BcastBytes
// sends four times what it is given; Start would initialise MPI twice.)
//
// All calls are made on the calling thread, because an application at
// MPI_THREAD_SINGLE or FUNNELED allows no other: call from the thread that is
// in MPI_Init and from nowhere else. Join and Agree are collective over
// MPI_COMM_WORLD, Formatted over MPI_COMM_CR: every rank calls them, in the same
// order, or none.
//
// The MPI library is a matter of the build, one runtime library for each:
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

// ErrNoMPI: this build has no MPI, or the application has not initialised it.
var ErrNoMPI = errors.New("MPI is not initialised")

// A Job is the application's world and this process's place in it.
type Job struct {
	Rank, Size int // in MPI_COMM_WORLD
	// SharedRank and SharedSize are rank and size in MPI_COMM_CR, the
	// communicator of the ranks that share this rank's namespace.
	SharedRank, SharedSize int
	// Plan places the ranks: what Join was given, or what that is for ranks on these hosts.
	Plan balancer.Plan

	comms comms
}

// Agree is called by every rank with its own outcome of mounting. It returns
// nil on all of them when all succeeded, else a *Disagreement on all of them:
// either all ranks have the mount or none. Collective over the world.
func (j *Job) Agree(mine error) error { return j.comms.agree(j.Rank, mine) }

// Formatted tells the ranks that share a namespace how the one that formats it has fared. That is
// the lowest one, SharedRank 0: it calls Formatted with its outcome, and gets that back. The others
// wait for it, and get nil or a *Disagreement; their argument does not matter. Collective over
// MPI_COMM_CR: every rank calls it once, whatever has happened to it.
func (j *Job) Formatted(mine error) error { return j.comms.formatted(mine) }

// A Disagreement is the error of a rank, told to others: by Agree when at least one rank failed.
// It unwraps to the errno that stands for the failure, the same on every rank.
type Disagreement struct {
	Rank  int           // whose error it is; of several, the lowest rank
	Errno syscall.Errno // what its error stands for, EIO if it says nothing
	Cause string        // its error, at most maxCause bytes of it
	// Mine says that this is that rank, the one that tells the user.
	Mine bool
}

// Error gives the cause, and the rank it comes from.
func (d *Disagreement) Error() string {
	return fmt.Sprintf("rank %d: %s", d.Rank, d.Cause)
}

// Unwrap returns the errno.
func (d *Disagreement) Unwrap() error { return d.Errno }

// maxCause is how much of an error's text travels to the other ranks.
const maxCause = 504

// errnoOf finds the errno an error stands for.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EIO
}
