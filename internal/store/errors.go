package store

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"nvmecr/nvmf"
)

// ErrNoTarget: neither --target nor an embedded target.
var ErrNoTarget = errors.New("no target: start the program through \"nvmecr run\", or name targets with --target (NVMECR_TARGET)")

// ErrSameNamespace: two targets are addresses of one namespace.
var ErrSameNamespace = errors.New("two targets are one namespace")

// ErrHalfFormatted: the connection was lost while a namespace or a partition was
// being formatted. What was sent may still land, on top of what a second attempt
// writes; targets with reservations keep it out once another run has begun.
var ErrHalfFormatted = errors.New("it was being formatted: end the job and start it again")

// halfFormatted says of an error of formatting that it is one of those.
func halfFormatted(err error) error {
	if errors.Is(err, nvmf.ErrConnectionLost) {
		return fmt.Errorf("%w: %w", ErrHalfFormatted, err)
	}
	return err
}

// Unavailable reports that a target cannot be reached now, or refuses connections, and that another try may succeed. A half-formatted
// target is left to the next run.
func Unavailable(err error) bool {
	var status *nvmf.StatusError
	return (errors.Is(err, nvmf.ErrUnreachable) || errors.Is(err, nvmf.ErrConnectionLost) ||
		errors.As(err, &status) && status.Busy()) && !errors.Is(err, ErrHalfFormatted)
}

// ErrNoSolo: the store has no solo partition, since it was made for ranks by an earlier
// version, or was too small for one. It is syscall.EROFS.
var ErrNoSolo = fmt.Errorf("it has partitions for ranks only, and none for job scripts and programs without a launcher: write to another path, or start over with --fresh: %w", syscall.EROFS)

// ErrUndivided: all of the store is the solo partition. The ranks of a job get their
// partitions when one of them opens its own for writing.
var ErrUndivided = errors.New("the store is not divided among ranks yet")

// A WaitError says that the rank that formats a target did not do so in time.
// It is syscall.ETIMEDOUT.
type WaitError struct {
	Rank int           // the one waited for
	For  time.Duration // how long
}

// Error names the rank.
func (e *WaitError) Error() string {
	return fmt.Sprintf("rank %d did not format it within %s; see that rank's messages, or raise --timeout", e.Rank, e.For)
}

// Unwrap returns syscall.ETIMEDOUT.
func (e *WaitError) Unwrap() error { return syscall.ETIMEDOUT }

// A LockedError says that another run of the store is in progress. It is
// syscall.EBUSY.
type LockedError struct {
	Name string // of the store
	PID  int    // of the holder, 0 if not known
}

// Error names the holder.
func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("store %q is in use by %s; wait for it to end, or use another --name", e.Name, who)
}

// Unwrap returns syscall.EBUSY.
func (e *LockedError) Unwrap() error { return syscall.EBUSY }

// andClosing adds the error of closing something to the one before, in one line.
func andClosing(err, closing error) error {
	switch {
	case closing == nil:
		return err
	case err == nil:
		return closing
	}
	return fmt.Errorf("%w (and closing it: %w)", err, closing)
}
