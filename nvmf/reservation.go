package nvmf

import (
	"context"
	"errors"
)

// A ReservationKey names a run as NVMe reservations know it (NVM Command Set
// 1.0, section 6; Base Specification 2.0, section 8.19). Keys are ordered: a
// run takes a namespace from one with a lower key, never from one with a higher
// key. 0 is no key.
type ReservationKey uint64

// Errors of reserving.
var (
	// ErrFenced: a run with a higher key has taken the namespace over.
	ErrFenced = errors.New("a later run has taken the namespace over")
	// ErrNoReservations: the target cannot keep others from writing.
	ErrNoReservations = errors.New("target has no reservations")
)

// A Reserver is a Device that may be able to keep other hosts from writing to
// its namespace. A host is what the target takes for one, its Host Identifier:
// all processes of a run have the same, and no two runs.
type Reserver interface {
	Device

	// Reserve makes this host the only one that can write to the namespace:
	// it registers key, takes the reservation (Write Exclusive) from hosts
	// with lower keys (preempt and abort) and removes those from the
	// registrants. When it returns nil, no command of theirs will be executed
	// any more, and none is being executed. It changes nothing if the host
	// holds the reservation already. It may be called by all processes of the
	// run at once, and again after each Queue.Reset: a target that started
	// anew may have forgotten the reservation.
	//
	// ErrNoReservations, ErrFenced, or what the connection says. It must not
	// be called by a queue's owner with commands in flight on that queue.
	Reserve(ctx context.Context, key ReservationKey) error

	// Unreserve gives up reservation and registration of this host, for all
	// its processes. Where it has none it does nothing.
	Unreserve(ctx context.Context, key ReservationKey) error
}

// IsConflict reports whether a command was refused because another host holds
// a reservation. It had no effect.
func IsConflict(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && s.SCT == 0 && s.SC == 0x83
}

// IsPreempted reports whether a command was aborted because another host has
// taken the namespace over. It may have had its effect, or part of it, before
// that; none of it comes later.
func IsPreempted(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && s.SCT == 0 && s.SC == 0x14
}
