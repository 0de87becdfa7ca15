package initiator

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// An Executor is an I/O queue that executes any command, one at a time.
type Executor interface {
	// Exec executes a command with data to the controller (write) or from it. what
	// names the command in errors. Exec sets the command ID and the data pointer of
	// sqe.
	Exec(what string, sqe *nvme.SQE, data []byte, write bool) error
	// Abort makes Exec fail. It is safe for concurrent use.
	Abort(cause error)
	Close() error
}

// A Reservation implements nvmf.Reserver: it makes a host the only one that can write
// to a namespace.
type Reservation struct {
	Host      [16]byte // the Host Identifier at the controller
	Key       nvmf.ReservationKey
	Namespace nvmf.TransportID
	Identity  *nvmf.Identity // of the namespace
	// Open opens a queue for the reservation commands, which is closed afterwards.
	Open func(context.Context) (Executor, error)
}

// Take registers the host, acquires the reservation, and removes all other registrants.
func (r *Reservation) Take(ctx context.Context) error {
	if err := r.repeat(ctx, (*reserver).step); err != nil {
		return fmt.Errorf("reserving %s: %w", r.Namespace, err)
	}
	return nil
}

// GiveUp unregisters the host, which releases its reservation.
func (r *Reservation) GiveUp(ctx context.Context) error {
	if err := r.repeat(ctx, (*reserver).leave); err != nil {
		return fmt.Errorf("giving up the reservation of %s: %w", r.Namespace, err)
	}
	return nil
}

// repeat opens a queue and executes steps on it. It ends when they are complete or when
// ctx ends.
func (r *Reservation) repeat(ctx context.Context, step func(*reserver, *nvme.ReservationStatus) (bool, error)) error {
	switch {
	case r.Key == 0:
		return fmt.Errorf("0 is no key: %w", nvmf.ErrUnsupported)
	case !r.Identity.Reservations:
		return nvmf.ErrNoReservations
	}
	queue, err := r.Open(ctx)
	if err != nil {
		return fmt.Errorf("reservations take an I/O queue of their own: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { queue.Abort(context.Cause(ctx)) })
	v := &reserver{queue: queue, nsid: r.Namespace.NSID, limit: r.Identity.MaxTransfer, host: r.Host, key: uint64(r.Key)}
	err = known(v.repeat(ctx, step))
	stop()
	err = errors.Join(err, queue.Close())
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// known returns nvmf.ErrNoReservations for a target that does not know reservation
// commands.
func known(err error) error {
	if hasStatus(err, nvme.StatusInvalidOpcode) {
		return fmt.Errorf("%w (it had when it was opened): %w", nvmf.ErrNoReservations, err)
	}
	return err
}

// A reserver executes one Take or GiveUp.
type reserver struct {
	queue Executor
	nsid  uint32
	limit nvmf.Bytes // maximum data size of a command
	host  [16]byte
	key   uint64
	// plain: the target does not support Preempt and Abort.
	plain bool
}

// maxSteps limits the number of steps, for a target that does not report the changes
// that it was asked for. Each registrant to be removed takes one step.
const maxSteps = 1000

// repeat executes steps until one returns done. A step reads a report and makes at most
// one change. The change fails with Reservation Conflict if another host has changed
// the reservation first; in most cases that is another process of the same job.
func (r *reserver) repeat(ctx context.Context, step func(*reserver, *nvme.ReservationStatus) (bool, error)) error {
	pause := firstPause
	var last error
	for range maxSteps {
		status, err := r.report()
		done := false
		if err == nil {
			done, err = step(r, &status)
		}
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			pause = firstPause
			continue
		case nvmf.IsConflict(err):
			last = err
			err = Sleep(ctx, pause)
			pause = min(2*pause, lastPause)
		}
		switch {
		case err == nil:
		case last != nil && ctx.Err() != nil:
			return fmt.Errorf("%w; the last attempt: %w", err, last)
		default:
			return err
		}
	}
	return errors.Join(fmt.Errorf("the reservation is not what it should be after %d changes", maxSteps), last)
}

// step makes one change towards holding the namespace alone.
func (r *reserver) step(s *nvme.ReservationStatus) (done bool, err error) {
	own, others := r.split(s)
	for _, o := range others {
		if o.Key >= r.key {
			return false, fmt.Errorf("host %x has key %#x, ours is %#x: %w", o.HostID, o.Key, r.key, nvmf.ErrFenced)
		}
	}
	switch {
	case own == nil:
		if err := r.register(nvme.ReservationRegister, 0, r.key); err != nil {
			return false, fmt.Errorf("beside %d other hosts: %w", len(others), err)
		}
		return false, nil
	case own.Key > r.key:
		return false, fmt.Errorf("this host has key %#x already, ours is %#x: %w", own.Key, r.key, nvmf.ErrFenced)
	case own.Key < r.key:
		return false, r.register(nvme.ReservationReplace, own.Key, r.key)
	case s.Type == 0:
		return false, r.acquire(nvme.ReservationAcquire, 0)
	case s.Type.AllRegistrants():
		return false, r.preempt(0) // key 0 means all other registrants
	case s.Type == nvme.WriteExclusive && own.Holder && len(others) > 0:
		return false, r.preempt(others[0].Key)
	case s.Type == nvme.WriteExclusive && own.Holder:
		// Targets execute reservation commands one after another. So when this command,
		// which changes nothing, is complete, earlier preemptions are complete, too.
		// Such a preemption may come from another process of the job, or from a
		// connection that was lost.
		return true, r.acquire(nvme.ReservationAcquire, 0)
	case own.Holder:
		return false, r.preempt(r.key) // changes the reservation type
	}
	for _, o := range others {
		if o.Holder {
			return false, r.preempt(o.Key)
		}
	}
	return false, fmt.Errorf("the target reports %s without a holder: %w", s.Type, nvmf.ErrUnsupported)
}

// leave makes one change towards having no registration.
func (r *reserver) leave(s *nvme.ReservationStatus) (done bool, err error) {
	own, _ := r.split(s)
	switch {
	case own == nil:
		return true, nil
	case own.Key != r.key:
		return false, fmt.Errorf("this host has key %#x, not %#x: %w", own.Key, r.key, nvmf.ErrFenced)
	}
	return false, r.register(nvme.ReservationUnregister, r.key, 0)
}

// split returns this host's registrant in a report, nil if there is none, and the
// others.
func (r *reserver) split(s *nvme.ReservationStatus) (own *nvme.Registrant, others []nvme.Registrant) {
	for i := range s.Registrants {
		if g := &s.Registrants[i]; g.HostID != r.host {
			others = append(others, *g)
		} else if own == nil {
			own = g
		}
	}
	return own, others
}

// register executes Reservation Register.
func (r *reserver) register(action uint8, current, key uint64) error {
	var sqe nvme.SQE
	var keys nvme.ReservationKeys
	sqe.Reset(nvme.IOReservationReg, 0, r.nsid)
	sqe.SetReservation(nvme.ReservationCommand{Action: action})
	keys.Set(current, key)
	return r.queue.Exec("Reservation Register", &sqe, keys[:], true)
}

// acquire executes Reservation Acquire for a Write Exclusive reservation. other is the
// key to preempt.
func (r *reserver) acquire(action uint8, other uint64) error {
	var sqe nvme.SQE
	var keys nvme.ReservationKeys
	sqe.Reset(nvme.IOReservationAcquire, 0, r.nsid)
	sqe.SetReservation(nvme.ReservationCommand{Action: action, Type: nvme.WriteExclusive})
	keys.Set(r.key, other)
	return r.queue.Exec("Reservation Acquire", &sqe, keys[:], true)
}

// preempt removes the registrants with a key, and acquires the reservation if one of
// them holds it. Preempt and Abort also ends the removed hosts' commands in execution.
// A target without Preempt and Abort does not end them.
func (r *reserver) preempt(key uint64) error {
	if !r.plain {
		err := r.acquire(nvme.ReservationPreemptAbort, key)
		if !hasStatus(err, nvme.StatusInvalidField) {
			return err
		}
		r.plain = true
	}
	return r.acquire(nvme.ReservationPreempt, key)
}

// firstReport is the size in bytes of the first report that is requested.
const firstReport = 4096

// report executes Reservation Report until it has all registrants.
func (r *reserver) report() (nvme.ReservationStatus, error) {
	for size := firstReport; ; {
		var sqe nvme.SQE
		b := make([]byte, size)
		sqe.Reset(nvme.IOReservationReport, 0, r.nsid)
		sqe.SetReservationReport(uint32(size), true)
		if err := r.queue.Exec("Reservation Report", &sqe, b, false); err != nil {
			return nvme.ReservationStatus{}, err
		}
		s, total, _ := nvme.ReservationStatusOf(b)
		if total == len(s.Registrants) {
			return s, nil
		}
		// Further registrants may appear between two reports. The maximum transfer size
		// ends this loop.
		need := nvme.ReservationReportHeader + total*nvme.ReservationReportEntry
		if nvmf.Bytes(need) > r.limit {
			return s, fmt.Errorf("the target reports %d registrants: %w", total, nvmf.ErrUnsupported)
		}
		size = need
	}
}
