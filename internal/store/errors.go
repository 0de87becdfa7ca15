package store

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// ErrNoTarget means that the configuration has neither targets nor an embedded target.
var ErrNoTarget = errors.New("no target: start the program through \"nvmecr run\", or name targets with --target (NVMECR_TARGET)")

// ErrSameNamespace means that two targets are addresses of the same namespace.
var ErrSameNamespace = errors.New("two targets are one namespace")

// ErrHalfFormatted means that the connection was lost while a namespace or a partition was being formatted. Commands
// in flight may still be executed, and overwrite data of a second attempt. A target with reservations refuses these
// commands once another run has begun.
var ErrHalfFormatted = errors.New("it was being formatted: end the job and start it again")

// halfFormatted wraps an error of formatting in ErrHalfFormatted, if a command may be in flight.
func halfFormatted(err error) error {
	if none := (*nvmf.NoQueueError)(nil); errors.Is(err, nvmf.ErrConnectionLost) && !errors.As(err, &none) {
		return fmt.Errorf("%w: %w", ErrHalfFormatted, err)
	}
	return err
}

// Unavailable reports whether a target cannot be reached now, or refuses connections, so that another try may succeed.
// It is false for a half-formatted target, which is left to the next run.
func Unavailable(err error) bool {
	var status *nvmf.StatusError
	return (errors.Is(err, nvmf.ErrUnreachable) || errors.Is(err, nvmf.ErrConnectionLost) ||
		errors.As(err, &status) && status.Busy()) && !errors.Is(err, ErrHalfFormatted)
}

// ErrNoSingletonPartition means that the store has no singleton partition. An earlier version formatted it for ranks,
// or it was too small. The error wraps syscall.EROFS.
var ErrNoSingletonPartition = fmt.Errorf("it has partitions for ranks only, and none for job scripts and programs without a launcher: write to another path, or start over with --fresh: %w", syscall.EROFS)

// ErrUndivided means that all of the store is the singleton partition. The ranks of a job get their partitions when
// one of them opens its own for writing.
var ErrUndivided = errors.New("the store is not divided among ranks yet")

// A WaitError says that the rank that formats a target did not do so in time. It wraps syscall.ETIMEDOUT.
type WaitError struct {
	Rank int           // the rank that formats the target
	For  time.Duration // the duration of the wait
}

// Error names the rank.
func (e *WaitError) Error() string {
	return fmt.Sprintf("rank %d did not format it within %s; see that rank's messages, or raise --timeout", e.Rank, e.For)
}

// Unwrap returns syscall.ETIMEDOUT.
func (e *WaitError) Unwrap() error { return syscall.ETIMEDOUT }

// A LockedError says that another run of the store is in progress. It wraps syscall.EBUSY.
type LockedError struct {
	Name   string         // of the store
	Holder microfs.Holder // its PID is 0 if it is not known
}

// Error names the holder.
func (e *LockedError) Error() string {
	who := "another process"
	if e.Holder.PID != 0 {
		who = fmt.Sprintf("process %d", e.Holder.PID)
	}
	if e.Holder.Host != "" {
		who += " of host " + e.Holder.Host
	}
	return fmt.Sprintf("store %q is in use by %s; wait for it to end, or use another --name", e.Name, who)
}

// Outlived reports whether the holder is known to have ended: then a process that it has started holds the lock.
func (e *LockedError) Outlived() bool { return ended(e.Holder, self(uuid.Nil)) }

// Unwrap returns syscall.EBUSY.
func (e *LockedError) Unwrap() error { return syscall.EBUSY }

// andClosing joins an error with the error of a following close. The text has one line.
func andClosing(err, closing error) error {
	switch {
	case closing == nil:
		return err
	case err == nil:
		return closing
	}
	return fmt.Errorf("%w (and closing it: %w)", err, closing)
}
