package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// none is the number of the side that is used alone, if both sides are used.
const none = -1

// Options are the options of Open.
type Options struct {
	ReadOnly bool
	// Fresh makes a new mirror of two sides that belong to different mirrors or lack data. Their contents are lost.
	Fresh bool
	// Patience is how long the mirror tries to reach a lost side while the other one is reachable. Patience has to be shorter than the
	// time that the owner of a queue allows for a reset.
	Patience time.Duration
}

// Device is a mirror. It implements nvmf.Device, and nvmf.Reserver where both sides do.
type Device struct {
	o        Options
	sides    [2]nvmf.Device // nil: not used
	identity nvmf.Identity
	mirror   uuid.UUID

	closed  atomic.Bool
	owed    atomic.Pointer[state] // a state still to be written, before any other write; nil: none
	alone   atomic.Int32          // the side that is used alone, or none
	healing atomic.Bool           // see Heal
	from    atomic.Int32          // the side of ReadFrom, or none
	mu      sync.Mutex            // held while the state of a side is written, or a side is given up
	told    func(lost int, cause error)
}

var _ nvmf.Reserver = (*Device)(nil)

// identify computes the identity of the mirror from those of its sides.
func (d *Device) identify(st *state) error {
	id := &d.identity
	for s, dev := range d.sides {
		if dev == nil {
			continue
		}
		has := dev.Identity()
		if Half(has) < st.length {
			return fmt.Errorf("the mirror has %v, and half of a namespace of %v is less: take a larger one: %w", st.length, has.Capacity(), nvmf.ErrUnsupported)
		}
		if id.LBASize == 0 {
			*id = *has
			continue
		}
		if id.LBASize != has.LBASize {
			return fmt.Errorf("logical blocks of %v at home and %v at side %d: take targets with blocks of one size: %w", id.LBASize, has.LBASize, s, nvmf.ErrUnsupported)
		}
		id.MaxTransfer = min(id.MaxTransfer, has.MaxTransfer)
		id.OptimalTransfer = min(id.OptimalTransfer, has.OptimalTransfer)
		id.VolatileWriteCache = id.VolatileWriteCache || has.VolatileWriteCache
		id.CanDeallocate = id.CanDeallocate && has.CanDeallocate
		id.DeallocateUnit = max(id.DeallocateUnit, has.DeallocateUnit)
		id.Reservations = id.Reservations && has.Reservations
		id.Private = id.Private || has.Private
	}
	id.UUID, d.mirror = st.mirror, st.mirror
	id.Blocks = nvmf.LBA(st.length / id.LBASize)
	return nil
}

// Identity returns the identity of the mirror. Its limits and features are those that both sides support.
func (d *Device) Identity() *nvmf.Identity { return &d.identity }

// Alone returns the side that is used alone, or false if both are used.
func (d *Device) Alone() (side int, ok bool) {
	side = int(d.alone.Load())
	return side, side != none
}

// New reports whether neither side was part of a mirror before.
func (d *Device) New() bool { st := d.owed.Load(); return st != nil && st.mode == both }

// OnAlone makes the device call f when a side is lost and the other side is used alone. OnAlone has to be called before this process
// writes.
func (d *Device) OnAlone(f func(lost int, cause error)) { d.told = f }

// Heal makes each read write its data to the other side, until Heal is called with false. The caller has to be the only writer of the
// blocks that it reads.
func (d *Device) Heal(on bool) { d.healing.Store(on) }

// ReadFrom restricts reads to one side, for queues that are opened from now on. They do not read the other side even after a media
// error. ReadFrom fails if that side is not used.
func (d *Device) ReadFrom(side int) error {
	if !d.uses(side) {
		return fmt.Errorf("side %d of the mirror: %w", side, ErrOneSide)
	}
	d.from.Store(int32(side))
	return nil
}

func (d *Device) side(s int) Side { return Side{d.sides[s], s} }

// uses reports whether a side is used: it has all data, as far as this process knows.
func (d *Device) uses(s int) bool { a := d.alone.Load(); return a == none || a == int32(s) }

// Close closes both sides.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	return errors.Join(closeDevice(d.sides[0]), closeDevice(d.sides[1]))
}

// stateTimeout limits the time for writing a state.
const stateTimeout = 10 * time.Second

// lose gives up the side s, and records first on the other side that this one is used alone. It fails if the other side
// has a record that it is outdated itself.
func (d *Device) lose(s int, cause error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	other := 1 - s
	switch int(d.alone.Load()) {
	case other:
		return nil
	case s:
		return cause // no other side is left
	}
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	st, err := d.side(other).read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", cause, err)
	case st == nil:
		return cause // the mirror was never written to
	case st.mirror != d.mirror:
		return fmt.Errorf("%w: %w", cause, nvmf.ErrNamespaceChanged)
	case st.mode == stale:
		return fmt.Errorf("%w: %w", ErrStale, cause)
	case st.mode == both && !d.o.ReadOnly:
		if err := d.side(other).write(ctx, &state{alone, st.generation + 1, st.mirror, st.length}); err != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
	d.alone.Store(int32(other))
	if d.told != nil {
		d.told(s, cause)
	}
	return nil
}

// goOn makes the device use the side s alone, after another process has recorded that on the side.
func (d *Device) goOn(s int, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.alone.CompareAndSwap(none, int32(s)) && d.told != nil {
		d.told(1-s, cause)
	}
}

// retryPause is the pause between attempts to reach a side.
const retryPause = 50 * time.Millisecond

// each calls f for the sides that are used. If only one side can be reached, each retries the other side for Options.Patience, and then
// gives that side up.
func (d *Device) each(ctx context.Context, f func(s int) error) error {
	var done [2]bool
	for begin := time.Now(); ; {
		lost, cause := none, error(nil)
		for s := range d.sides {
			if !d.uses(s) || done[s] {
				continue
			}
			err := f(s)
			if err != nil && !away(err) {
				return err
			}
			if done[s] = err == nil; !done[s] {
				lost, cause = s, err
			}
		}
		switch {
		case lost == none:
			return nil
		case !done[1-lost]:
			return cause
		case time.Since(begin) >= d.o.Patience:
			return d.lose(lost, cause)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", cause, context.Cause(ctx))
		case <-time.After(retryPause):
		}
	}
}

// Reserve reserves both sides; see nvmf.Reserver.
func (d *Device) Reserve(ctx context.Context, key nvmf.ReservationKey) error {
	return d.reserver(ctx, func(r nvmf.Reserver) error { return r.Reserve(ctx, key) })
}

// Unreserve gives both reservations up; see nvmf.Reserver.
func (d *Device) Unreserve(ctx context.Context, key nvmf.ReservationKey) error {
	return d.reserver(ctx, func(r nvmf.Reserver) error { return r.Unreserve(ctx, key) })
}

func (d *Device) reserver(ctx context.Context, f func(nvmf.Reserver) error) error {
	return d.each(ctx, func(s int) error {
		r, ok := d.sides[s].(nvmf.Reserver)
		if !ok {
			return nvmf.ErrNoReservations
		}
		return f(r)
	})
}

// record writes the state that Open has decided on. Open itself does not write it, since other hosts may hold the reservations of the
// namespaces until this process writes.
func (d *Device) record() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.owed.Load()
	if st == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	for s := range d.sides {
		if d.uses(s) {
			if err := d.side(s).write(ctx, st); err != nil {
				return err
			}
		}
	}
	d.owed.Store(nil)
	return nil
}

// Advance records a new generation on both sides, as each run does when it begins. An older image that takes the place of a side is then
// recognized as outdated. No other process writes meanwhile.
func (d *Device) Advance(ctx context.Context) error {
	if d.owed.Load() != nil {
		return d.record() // a new mirror
	}
	if _, ok := d.Alone(); ok {
		return nil
	}
	var now *state
	return d.each(ctx, func(s int) error {
		ctx, cancel := context.WithTimeout(ctx, stateTimeout)
		defer cancel()
		if now == nil {
			st, err := d.side(s).read(ctx)
			if err != nil {
				return err
			}
			if st == nil || st.mode != both || st.mirror != d.mirror {
				return fmt.Errorf("the state of side %d: %w", s, nvmf.ErrNamespaceChanged)
			}
			now = &state{both, st.generation + 1, st.mirror, st.length}
		}
		return d.side(s).write(ctx, now)
	})
}

// Level makes a part of the mirror the same on both sides, after a crash. The caller has to be the only writer of that part.
func (d *Device) Level(ctx context.Context, start, length nvmf.Bytes) (err error) {
	if _, ok := d.Alone(); ok {
		return nil
	}
	opened, err := d.OpenQueue(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	q := opened.(*Queue)
	buf := make([]byte, min(length, d.identity.MaxTransfer))
	for end := start + length; start < end; {
		n := min(nvmf.Bytes(len(buf)), end-start)
		q.healing = true
		cmds := []*nvmf.Command{{Opcode: nvmf.Read, LBA: nvmf.LBA(start / d.identity.LBASize), Blocks: nvmf.LBA(n / d.identity.LBASize), Data: [][]byte{buf[:n]}}}
		q.Submit(cmds)
		err := q.Wait(cmds)
		if errors.Is(err, nvmf.ErrConnectionLost) {
			if e := q.Reset(ctx); e != nil {
				return fmt.Errorf("%w: %w", err, e)
			}
			continue
		}
		if err != nil {
			return err
		}
		start += n
	}
	return nil
}
