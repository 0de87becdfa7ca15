package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/internal/panics"
	"nvmecr/internal/runrecord"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// endTimeout is the time within which the end of the run must be recorded on a target. End stops waiting after silent, also if a command
// to a target has not returned by then.
const (
	endTimeout = 4 * time.Second
	silent     = 5 * time.Second
)

// lostPause is the pause between attempts after a lost connection.
const lostPause = 50 * time.Millisecond

// Reasons why a lease ends before its run.
var (
	errTaken    = errors.New("another run has taken it over")
	errReleased = errors.New("it was released meanwhile")
)

// leasePart is the lease on one target. After take it is owned by one goroutine.
type leasePart struct {
	lease     *Lease
	id        nvmf.TransportID
	dev       nvmf.Device
	q         nvmf.Queue
	reserve   func(context.Context) error // see fence
	me        runrecord.Record
	fresh     chan *leasePart // device to use from now on: both sides of a mirror are available again
	done      chan struct{}   // closed at the end of renewal
	full      bool            // the target has no space for a record
	again     bool            // the connection was made again: a restarted target may have lost the reservation
	lastError error           // last reported error of writing the record
}

// keep renews the records in the background.
func (l *Lease) keep() {
	l.kept = true
	for _, p := range l.parts {
		l.ended.Go(func() { p.keep(l.life) })
	}
}

// End records on all targets that the run has ended, if the run still has them and they answer within seconds. A second
// End does nothing.
func (l *Lease) End() {
	if !l.kept {
		l.keep()
	}
	l.stop()
	done := make(chan struct{})
	go func() { l.ended.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(silent):
		l.say("a target does not answer, and the end of this run is not recorded there: a run on another host waits %v before it takes the store", missedBeats*beatInterval)
	}
}

// keep renews one record until ctx ends, and then records that the run has ended.
func (p *leasePart) keep(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(p.me.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.leave()
			return
		case next := <-p.fresh:
			p.swap(next)
		case <-tick.C:
		}
		if err := p.renew(ctx); err != nil && ctx.Err() == nil && p.over(ctx, err) {
			p.end(p.close())
			return
		}
	}
}

// renew writes the next heartbeat, if the record is still the one of this run. It waits for a target that does not
// answer until ctx ends.
func (p *leasePart) renew(ctx context.Context) (err error) {
	defer panics.Contain("the renewal of the run record", &err)
	err = p.retry(ctx, func() error {
		f, err := runrecord.Read(p.dev, p.q)
		if err != nil {
			return err
		}
		if err := p.mine(f); err != nil {
			return err
		}
		if p.again && p.reserve != nil {
			if err := p.reserve(ctx); err != nil {
				return err
			}
		}
		p.again = false
		if job := p.lease.job.Load(); job != nil {
			p.me.Job = *job
		}
		if err := p.write(int(p.me.Beat % 2)); err != nil {
			return err
		}
		if q, ok := p.q.(*mirror.Queue); ok {
			return q.Look()
		}
		return nil
	})
	if taken(err) && p.reserve != nil {
		return p.reserve(ctx) // fails if another run has the reservation; otherwise reserves the target again
	}
	return err
}

// taken reports whether a command was refused because another host has a reservation.
func taken(err error) bool { return nvmf.IsConflict(err) || nvmf.IsPreempted(err) }

// retry calls f until the connection is not lost during the call, or until ctx ends.
func (p *leasePart) retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, nvmf.ErrConnectionLost) || errors.Is(err, ErrHalfFormatted) {
			return err
		}
		p.again = true
		away := time.AfterFunc(missedBeats*p.me.Interval, func() {
			p.lease.say("target %s: %v; nvmecr keeps trying to renew the record of this run there", p.id, err)
		})
		e := p.q.Reset(ctx)
		away.Stop()
		if e == nil {
			e = sleep(ctx, lostPause) // the error may be of another connection than the queue's
		}
		if e != nil {
			return fmt.Errorf("%w: %w", err, e)
		}
	}
}

// over reports whether err ends the lease. It prints a message for that, and one message for each other error.
func (p *leasePart) over(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, errTaken), errors.Is(err, errReleased), errors.Is(err, nvmf.ErrFenced), errors.Is(err, nvmf.ErrNamespaceChanged):
		p.lease.lost.Do(func() { p.lease.say("this run has lost store %q: %v", p.me.Store, p.reason(ctx, err)) })
		return true
	case p.lastError == nil || p.lastError.Error() != err.Error():
		p.lastError = err
		p.lease.say("target %s: the run record cannot be renewed, a run on another host may take the store over: %v", p.id, err)
	}
	return false
}

// reason adds the name of the run that now has the store to err, if that name is known.
func (p *leasePart) reason(ctx context.Context, err error) error {
	if !errors.Is(err, nvmf.ErrFenced) {
		return err
	}
	err = p.beaten(ctx, err)
	if living := new(InProgressError); errors.As(err, &living) && living.Run != nil {
		return fmt.Errorf("%w: %v", errTaken, living.Run)
	}
	return err
}

// mine fails if f is another run's record, or if the store no longer exists.
func (p *leasePart) mine(f *runrecord.Found) error {
	r := f.Record
	switch {
	case r == nil && f.Err == nil:
		return errReleased
	case errors.Is(f.Err, runrecord.ErrVersion):
		return fmt.Errorf("%w: %w", errTaken, f.Err)
	case r != nil && r.Run != p.me.Run:
		return fmt.Errorf("%w: %v", errTaken, r)
	}
	return nil // the next renewals replace damaged copies
}

// leave records that the run has ended, if the record is still the one of this run.
func (p *leasePart) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	f, err := p.read(ctx)
	if err == nil && p.mine(f) == nil {
		p.me.Ended = true
		err = p.retry(ctx, p.writeBoth)
	}
	if taken(err) {
		err = nil // another run has the target now
	}
	p.end(andClosing(err, p.close()))
}

// end reports err, an error of recording the end of the run; nil is none.
func (p *leasePart) end(err error) {
	if err != nil {
		p.lease.say("target %s: the end of this run is not recorded, and a run on another host waits %v before it takes the store: %v",
			p.id, missedBeats*p.me.Interval, err)
	}
}

// read returns the record. It retries as retry does.
func (p *leasePart) read(ctx context.Context) (f *runrecord.Found, err error) {
	err = p.retry(ctx, func() (err error) { f, err = runrecord.Read(p.dev, p.q); return err })
	return f, err
}

// writeBoth writes both copies of the record and makes them durable.
func (p *leasePart) writeBoth() error {
	for c := range 2 {
		if err := p.write(c); err != nil {
			return err
		}
	}
	return runrecord.Flush(p.dev, p.q)
}

// write writes the next heartbeat to copy c of the record.
func (p *leasePart) write(c int) error {
	p.me.Beat++
	p.me.Written = time.Now()
	_, p.me.Degraded = p.lease.Degraded()
	return runrecord.Write(p.dev, p.q, &p.me, c)
}

func (p *leasePart) close() error {
	var err error
	if p.q != nil {
		err = p.q.Close()
	}
	return andClosing(err, p.dev.Close())
}
