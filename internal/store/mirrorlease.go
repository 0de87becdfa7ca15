package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"nvmecr/internal/parttable"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// The run that has the lease of a mirrored store makes sides whole again that are behind, before its job begins: no other process writes then.

// Degraded returns the targets that are lost, and without which a mirrored store goes on, and since when: the run before may have gone on without them, too.
func (l *Lease) Degraded() (lost []nvmf.TransportID, since time.Time) {
	l.mirrors.Lock()
	defer l.mirrors.Unlock()
	return slices.Clone(l.degraded), l.since
}

// earlier returns the earlier one of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// without takes note that a target is lost, and reports whether that is new.
func (l *Lease) without(id nvmf.TransportID) bool {
	l.mirrors.Lock()
	defer l.mirrors.Unlock()
	if slices.Contains(l.degraded, id) {
		return false
	}
	l.degraded = append(l.degraded, id)
	if l.since.IsZero() {
		l.since = time.Now()
	}
	return true
}

// outdatePause is between attempts to reach a target that is lost.
const outdatePause = 2 * time.Second

// outdate waits until the lost side of a mirror is back, and records there that it is behind. The job does not use it again; and the next run does not
// take it for complete, whatever has become of the other side.
func (l *Lease) outdate(ids [2]nvmf.TransportID, lost int) {
	for {
		if err := sleep(l.life, outdatePause); err != nil {
			return
		}
		err := l.withSides(l.life, ids, func(sides [2]mirror.Side) error { return mirror.Outdate(l.life, sides[1-lost], sides[lost]) })
		if Unavailable(err) || l.life.Err() != nil {
			continue
		}
		if err != nil {
			l.say("target %s is back, and cannot be told that it lacks what was written meanwhile: %v", ids[lost], err)
		} else if lost == 0 { // each target is the home of one mirror
			l.say("target %s is back, and lacks what was written meanwhile: the next run copies it there", ids[lost])
		}
		return
	}
}

// withSides connects to the namespaces of a mirror themselves.
func (l *Lease) withSides(ctx context.Context, ids [2]nvmf.TransportID, f func([2]mirror.Side) error) (err error) {
	var sides [2]mirror.Side
	for s, id := range ids {
		dev, err := connectTo(ctx, l.cfg, id, false)
		if err != nil {
			return err
		}
		defer func() { err = andClosing(err, dev.Close()) }()
		sides[s] = mirror.Side{Device: dev, Number: s}
	}
	return f(sides)
}

// watchMirror tells when a side of the mirror dev, whose home is target t, is lost.
func (l *Lease) watchMirror(t int, dev nvmf.Device) {
	m, ok := dev.(*mirror.Device)
	if !ok {
		return
	}
	m.OnAlone(func(lost int, cause error) {
		sides, err := mirrorSides(l.cfg, t)
		if err != nil {
			return // it was opened as one
		}
		l.ended.Go(func() { l.outdate(sides, lost) })
		if l.without(sides[lost]) {
			l.say("target %s is lost: %v; the job goes on, with the mirrors of what is there", sides[lost], cause)
		}
	})
}

// restoreMirrors copies to sides that are behind what they lack. One that cannot be had stays away: the store goes on without it. The error is
// about sides of which it is unknown which one counts.
func (l *Lease) restoreMirrors(ctx context.Context) error {
	for _, p := range l.parts {
		m, ok := p.dev.(*mirror.Device)
		if !ok {
			continue
		}
		if err := m.Advance(ctx); err != nil {
			return fmt.Errorf("target %s: %w", p.id, err)
		}
		only, alone := m.Alone()
		if !alone {
			continue
		}
		sides, err := mirrorSides(l.cfg, slices.Index(l.cfg.Targets, p.id))
		if err == nil {
			err = l.restoreMirror(ctx, p, sides, only)
		}
		switch {
		case err == nil:
		case errors.Is(err, mirror.ErrSplit), errors.Is(err, mirror.ErrOther), errors.Is(err, errNotOurs), ctx.Err() != nil:
			return fmt.Errorf("targets %s and %s, its mirror: %w", sides[0], sides[1], err)
		default:
			l.ended.Go(func() { l.outdate(sides, 1-only) })
			if !l.without(sides[1-only]) {
				continue
			}
			if errors.Is(err, mirror.ErrSource) {
				l.say("target %s: %v; nvmecr verify names the files; remove them or have them written again, and start another run", sides[only], err)
				err = errors.New("it cannot be copied to")
			}
			l.say("target %s: %v; the store goes on without it, and what is mirrored there is on one target only", sides[1-only], err)
		}
	}
	l.mirrors.Lock()
	defer l.mirrors.Unlock()
	if len(l.degraded) == 0 {
		l.since = time.Time{} // what the run before was without is there again
	}
	return nil
}

// restoreMirror copies what side number only of a mirror has to the other one, and has the lease use both.
func (l *Lease) restoreMirror(ctx context.Context, p *leasePart, ids [2]nvmf.TransportID, only int) error {
	err := l.withSides(ctx, ids, func(sides [2]mirror.Side) error { return l.resync(ctx, p.dev, ids, sides, only) })
	if err != nil {
		return err
	}
	return l.renewOnBoth(ctx, p)
}

// resync copies what is in use of the mirror dev from one of its sides to the other one.
func (l *Lease) resync(ctx context.Context, dev nvmf.Device, ids [2]nvmf.TransportID, sides [2]mirror.Side, only int) error {
	to := sides[1-only]
	if err := l.mayReplace(ctx, to.Device); err != nil {
		return err
	}
	if _, err := fence(ctx, l.cfg, to.Device); err != nil {
		return err
	}
	l.say("the mirror of target %s on target %s: copying to target %s", ids[0], ids[1], ids[1-only])
	begin, size := time.Now(), nvmf.Bytes(0)
	used, err := inUse(ctx, l.cfg, dev)
	if err != nil {
		used = nil // all of it
	}
	if err := mirror.Resync(ctx, sides[only], to, used, func(_, all nvmf.Bytes) { size = all }); err != nil {
		return err
	}
	took := time.Since(begin)
	l.say("the mirror of target %s on target %s is complete again: %v in %v, %.0f MiB/s", ids[0], ids[1], size, took.Round(time.Millisecond), float64(size/nvmf.MiB)/took.Seconds())
	return nil
}

// errNotOurs: a namespace in the place of a lost one holds something else.
var errNotOurs = errors.New("it is not empty")

// mayReplace fails if a namespace that a side of a mirror is to be written to holds something else.
func (l *Lease) mayReplace(ctx context.Context, dev nvmf.Device) error {
	table, err := readTable(ctx, l.cfg, dev)
	if errors.Is(err, parttable.ErrNoTable) {
		return nil
	}
	if err == nil {
		err = table.Check(want(l.cfg, 0, 0, 0))
	}
	if err == nil && table.Incompatible&parttable.Mirrored == 0 && !l.cfg.Fresh {
		err = parttable.ErrOtherMirror
	}
	if err != nil && !Unavailable(err) {
		return fmt.Errorf("%w: %w", errNotOurs, err)
	}
	return err
}

// renewOnBoth has p renew its record on both sides of its mirror from now on.
func (l *Lease) renewOnBoth(ctx context.Context, p *leasePart) error {
	next := &leasePart{lease: l, id: p.id}
	var err error
	if next.dev, err = connect(ctx, l.cfg, p.id, false); err != nil {
		return err
	}
	l.watchMirror(slices.Index(l.cfg.Targets, p.id), next.dev)
	if next.q, err = next.dev.OpenQueue(ctx, 1); err == nil {
		next.reserve, err = fence(ctx, l.cfg, next.dev)
	}
	if err != nil {
		return andClosing(err, next.close())
	}
	select {
	case p.fresh <- next:
		return nil
	case <-p.done: // it has told why
		return next.close()
	}
}

// swap makes the device of next the one that the record is renewed on.
func (p *leasePart) swap(next *leasePart) {
	if err := p.close(); err != nil {
		p.lease.say("target %s: %v", p.id, err)
	}
	p.dev, p.q, p.reserve = next.dev, next.q, next.reserve
	if err := p.writeBoth(); err != nil {
		p.told = err // the next renewal tells
	}
}
