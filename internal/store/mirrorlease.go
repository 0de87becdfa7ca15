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

// The run with the lease of a mirrored store restores outdated sides before its job begins, while no other process writes.

// Degraded returns the lost targets of a mirrored store, and since when they are lost, which may be before this run.
func (l *Lease) Degraded() (lost []nvmf.TransportID, since time.Time) {
	l.mirrors.Lock()
	defer l.mirrors.Unlock()
	return slices.Clone(l.degraded), l.since
}

// earlier returns the earlier of two times; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// recordLost records that a target is lost, and reports whether that is new.
func (l *Lease) recordLost(id nvmf.TransportID) bool {
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

// outdatePause is the pause between attempts to reach a lost target.
const outdatePause = 2 * time.Second

// outdate waits until the lost side of a mirror can be reached again, and records on it that it is outdated. The job does not use that
// side again, and the next run does not take it for complete, whatever happens to the other side.
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
		} else if lost == 0 { // count each target once, as the home of one mirror
			l.say("target %s is back, and lacks what was written meanwhile: the next run copies it there", ids[lost])
		}
		return
	}
}

// withSides connects to the two namespaces of a mirror directly, and calls f with them.
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

// watchMirror reports the loss of a side of the mirror dev, whose home is target t.
func (l *Lease) watchMirror(t int, dev nvmf.Device) {
	m, ok := dev.(*mirror.Device)
	if !ok {
		return
	}
	m.OnAlone(func(lost int, cause error) {
		sides, err := mirrorSides(l.cfg, t)
		if err != nil {
			return // cannot happen: the mirror was opened with the same targets
		}
		l.ended.Go(func() { l.outdate(sides, lost) })
		if l.recordLost(sides[lost]) {
			l.say("target %s is lost: %v; the job continues with the mirrors of its data", sides[lost], cause)
		}
	})
}

// restoreMirrors copies missing data to outdated sides. A side that cannot be used stays lost, and the store works
// without it. The error is about mirrors for which it is unknown which side is current.
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
			if !l.recordLost(sides[1-only]) {
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
		l.since = time.Time{} // the targets that the previous run had lost are restored
	}
	return nil
}

// restoreMirror copies the data of side number only of a mirror to the other side, and makes the lease use both.
func (l *Lease) restoreMirror(ctx context.Context, p *leasePart, ids [2]nvmf.TransportID, only int) error {
	err := l.withSides(ctx, ids, func(sides [2]mirror.Side) error { return l.resync(ctx, p.dev, ids, sides, only) })
	if err != nil {
		return err
	}
	return l.renewOnBoth(ctx, p)
}

// resync copies the used space of the mirror dev from one side to the other.
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
		used = nil // copy everything
	}
	if err := mirror.Resync(ctx, sides[only], to, used, func(_, all nvmf.Bytes) { size = all }); err != nil {
		return err
	}
	took := time.Since(begin)
	l.say("the mirror of target %s on target %s is complete again: %v in %v, %.0f MiB/s", ids[0], ids[1], size, took.Round(time.Millisecond), float64(size/nvmf.MiB)/took.Seconds())
	return nil
}

// errNotOurs means that the namespace in the place of a lost one has other data.
var errNotOurs = errors.New("it is not empty")

// mayReplace fails if a namespace that is to become a side of a mirror has other data.
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

// renewOnBoth makes p renew its record on both sides of its mirror from now on.
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
	case <-p.done: // the renewal has ended, and has reported the reason
		return next.close()
	}
}

// swap makes p renew the record on the device of next.
func (p *leasePart) swap(next *leasePart) {
	if err := p.close(); err != nil {
		p.lease.say("target %s: %v", p.id, err)
	}
	p.dev, p.q, p.reserve = next.dev, next.q, next.reserve
	if err := p.writeBoth(); err != nil {
		p.lastError = err // the next renewal reports the error
	}
}
