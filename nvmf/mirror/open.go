package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// A Dial connects to the namespace of a side.
type Dial func(context.Context) (nvmf.Device, error)

// A probe is the result of connecting to a side.
type probe struct {
	dev   nvmf.Device
	state *state // nil: the namespace has none
	err   error  // of connecting, or of reading the state
}

// Open connects to the two sides, home and partner, and decides which of them are used. Two sides without a state are a new mirror,
// whose state is written before its first write. Errors are those of this package, and of the devices.
func Open(ctx context.Context, dial [2]Dial, o Options) (*Device, error) {
	var found [2]probe
	for s := range found {
		found[s] = look(ctx, dial[s], s)
		// If one side is alone, nothing depends on the other one, so no process waits for it.
		if st := found[s].state; st != nil && st.mode == alone {
			found[1-s] = probe{err: errors.Join(found[1-s].err, closeDevice(found[1-s].dev))}
			break
		}
	}
	d, err := open(ctx, &found, o)
	if err != nil {
		return nil, errors.Join(err, closeDevice(found[0].dev), closeDevice(found[1].dev))
	}
	return d, nil
}

func look(ctx context.Context, dial Dial, side int) (p probe) {
	if p.dev, p.err = dial(ctx); p.err != nil {
		return p
	}
	if Half(p.dev.Identity()) == 0 {
		p.err = fmt.Errorf("a namespace of %v is too small for two sides of mirrors: %w", p.dev.Identity().Capacity(), nvmf.ErrUnsupported)
	} else {
		p.state, p.err = Side{p.dev, side}.read(ctx)
	}
	if p.err != nil {
		p.err = errors.Join(p.err, p.dev.Close())
		p.dev = nil
	}
	return p
}

func closeDevice(dev nvmf.Device) error {
	if dev == nil {
		return nil
	}
	return dev.Close()
}

// open makes a device of the two probes.
func open(ctx context.Context, found *[2]probe, o Options) (*Device, error) {
	only, st, err := choose(found)
	if o.Fresh && found[0].dev != nil && found[1].dev != nil && (errors.Is(err, ErrStale) || errors.Is(err, ErrSplit) || errors.Is(err, ErrOther)) {
		only, st, err = none, nil, nil
	}
	if err != nil {
		return nil, err
	}
	if only != none && found[1-only].dev != nil {
		err = found[1-only].dev.Close() // nothing was written
		found[1-only].dev = nil
	}
	d := &Device{o: o, sides: [2]nvmf.Device{found[0].dev, found[1].dev}}
	d.alone.Store(int32(only))
	d.from.Store(none)
	switch {
	case err != nil:
	case st == nil:
		st, err = create(d, found)
		d.owed.Store(st)
	case only != none && st.mode != alone:
		d.owed.Store(&state{alone, st.generation + 1, st.mirror, st.length})
	}
	if err == nil {
		err = d.identify(st)
	}
	return d, err
}

// create returns the state of a new mirror. It is of a later generation than the states that the sides have.
func create(d *Device, found *[2]probe) (*state, error) {
	h, p := d.sides[0].Identity(), d.sides[1].Identity()
	if !h.Private && h.Same(p) {
		return nil, fmt.Errorf("both sides are the namespace %s: %w", h.UUID, nvmf.ErrUnsupported)
	}
	st := &state{mode: both, generation: 1, length: min(Half(h), Half(p))}
	for _, p := range found {
		if p.state != nil {
			st.generation = max(st.generation, p.state.generation+1)
		}
	}
	st.mirror = uuid.NewSHA1(h.UUID, p.UUID[:]) // processes that create the mirror at the same time choose the same UUID
	return st, nil
}

// choose decides which sides are used: the side only, or both if only is none. The state is nil for a new mirror.
func choose(found *[2]probe) (only int, st *state, err error) {
	h, p := found[0].state, found[1].state
	if h != nil && p != nil && h.mirror != p.mirror {
		return none, nil, ErrOther
	}
	if h != nil && p != nil && h.mode == alone && p.mode == alone {
		return none, nil, ErrSplit
	}
	for s := range found {
		if st := found[s].state; st != nil && st.mode == alone {
			return s, st, nil
		}
	}
	for s := range found {
		if cause := found[s].err; cause != nil {
			return none, nil, orAway(cause, &found[1-s])
		}
	}
	switch {
	case h == nil && p == nil:
		return none, nil, nil
	case h != nil && p != nil && h.mode == both && p.mode == both && h.generation == p.generation:
		return none, h, nil
	}
	return newest(h, p)
}

// orAway returns the error of Open when one side cannot be reached, and the other one is not recorded as alone.
func orAway(cause error, other *probe) error {
	switch {
	case other.err != nil:
		return fmt.Errorf("both sides of the mirror: %w", errors.Join(cause, other.err))
	case other.state == nil:
		return cause
	case other.state.mode == stale:
		return fmt.Errorf("%w: %w", ErrStale, cause)
	}
	return fmt.Errorf("%w: %w", ErrAway, cause)
}

// newest chooses between two reachable sides with different states, neither of which is alone. One of the two is a
// namespace that has replaced a lost one.
func newest(sides ...*state) (int, *state, error) {
	best := none
	for s, st := range sides {
		if st != nil && st.mode == both && (best == none || st.generation > sides[best].generation) {
			best = s
		}
	}
	if best == none {
		return none, nil, ErrStale
	}
	if other := sides[1-best]; other != nil && other.mode == stale && other.generation > sides[best].generation {
		return none, nil, ErrStale // the side that was replaced had newer data than this one
	}
	return best, sides[best], nil
}

// Forget overwrites the states with zeros. The namespaces are then no mirror any more.
func (d *Device) Forget(ctx context.Context) error {
	return d.each(ctx, func(s int) error {
		side := d.side(s)
		c := side.stateCommand(make([]byte, stateSize))
		c.Opcode = nvmf.Write
		return side.run(ctx, &c)
	})
}
