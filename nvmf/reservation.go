package nvmf

import (
	"context"
	"errors"
)

// A ReservationKey identifies a run in NVMe reservations (NVM Command Set 1.0, section
// 6; Base Specification 2.0, section 8.19). Keys are ordered: a run takes a namespace
// from runs with lower keys, and never from a run with a higher key. 0 is no key.
type ReservationKey uint64

// Errors of reserving.
var (
	// ErrFenced means that a run with a higher key has taken the namespace over.
	ErrFenced = errors.New("a later run has taken the namespace over")
	// ErrNoReservations means that the target cannot keep other hosts from writing.
	ErrNoReservations = errors.New("target has no reservations")
)

// A Reserver is a Device that may be able to keep other hosts from writing to its
// namespace. The target distinguishes hosts by their Host Identifier. All processes of
// a run have the same Host Identifier, and different runs have different ones.
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
	// Errors are ErrNoReservations, ErrFenced, and those of the connection. The owner
	// of a queue must not call Reserve with commands in flight on that queue.
	Reserve(ctx context.Context, key ReservationKey) error

	// Unreserve gives up the reservation and the registration of this host, for all
	// its processes. Without a registration it does nothing.
	Unreserve(ctx context.Context, key ReservationKey) error
}

// IsConflict reports whether a command was refused because another host holds a
// reservation. Such a command had no effect.
func IsConflict(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && s.SCT == 0 && s.SC == 0x83
}

// IsPreempted reports whether a command was aborted because another host has taken
// the namespace over. Such a command may have been executed, or partly executed,
// before. It has no effect later.
func IsPreempted(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && s.SCT == 0 && s.SC == 0x14
}
