package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/runrecord"
	"nvmecr/nvmf"
)

// A Lease declares, on each target of a run, that the run is in progress. It is renewed until End, or until another run
// has taken the store over.
//
// Of runs that start at the same instant at most one gets a lease: each writes its record, pauses, and checks that no
// other run has written since. If a target has reservations the record is written under one, which keeps the others
// from writing.
type Lease struct {
	cfg   *config.Config
	say   func(format string, args ...any)
	parts []*leasePart
	life  context.Context // until End
	stop  context.CancelFunc
	kept  bool                          // the records are being renewed in the background
	job   atomic.Pointer[runrecord.Job] // set by Lease.Open
	ended sync.WaitGroup
	lost  sync.Once // for the one message that another run has the store

	before []uuid.UUID // the earlier runs in the records, which have ended or have lost the store

	mirrors  sync.Mutex         // guards the fields below
	degraded []nvmf.TransportID // lost targets of mirrors
	since    time.Time          // when the first of them was lost, in this run or before; zero: none
}

// Follows reports whether the lease is known to have replaced that of a run. A nil Lease has replaced none.
func (l *Lease) Follows(run uuid.UUID) bool { return l != nil && slices.Contains(l.before, run) }

// A pace has the intervals of a lease.
type pace struct {
	beat time.Duration // between renewals
	// quiesce is the wait before the last read. A run that read the records before this run wrote its record has written its own
	// by then. With reservations that run has also removed this run from the registrants, however long that takes.
	quiesce func(ctx context.Context, reserved bool) error
}

var defaultPace = pace{beat: beatInterval, quiesce: func(ctx context.Context, reserved bool) error {
	if reserved {
		return sleep(ctx, 100*time.Millisecond)
	}
	return sleep(ctx, 500*time.Millisecond)
}}

// takeLease makes sure, as Idle does, that no run of the store is in progress. It then writes the run records of
// cfg.Run. It replaces cfg.Run by a greater id if the records have a run that is not smaller. From then on it keeps
// other runs from writing, if the targets have reservations. Before the first write it checks that all targets have
// this store or nothing, or with cfg.Fresh something that Reset would replace. say gets a line for each wait, and for
// later events of the lease, also from other goroutines.
//
// Errors: *InProgressError; nvmf.ErrFenced; parttable's for a target of another store or user; those of the targets.
func takeLease(ctx context.Context, cfg *config.Config, say func(format string, args ...any), pace pace) (*Lease, error) {
	found, err := look(ctx, cfg, say, func(t int, dev nvmf.Device) error { return mayHold(ctx, cfg, t, dev) })
	if err != nil {
		return nil, err
	}
	l := &Lease{cfg: cfg, say: say}
	l.life, l.stop = context.WithCancel(context.Background())
	for _, f := range found {
		r := f.Record
		if r == nil {
			continue
		}
		l.before = append(l.before, r.Run)
		l.since = earlier(l.since, r.Degraded)
		if reservationKey(r.Run) >= reservationKey(cfg.Run) { // the clock of its host is ahead of the local one
			if cfg.Run, err = NewRun(r.Run); err != nil {
				return nil, err
			}
		}
		if cfg.Takeover && judge(f) != runOver {
			say("the store is taken over from %v, as --takeover asks", r)
		}
	}
	me := runrecord.Record{
		Holder: self(cfg.Run), Store: cfg.Name, UID: uint32(os.Geteuid()), Interval: pace.beat, Since: time.Now(),
		Job: runrecord.Job{ID: cfg.Job},
	}
	err = l.take(ctx, found, me)
	if err == nil {
		err = l.confirm(ctx, pace)
	}
	if err != nil {
		l.End()
		return nil, err
	}
	l.keep()
	if err := l.restoreMirrors(ctx); err != nil {
		l.End()
		return nil, err
	}
	return l, nil
}

// Whole reports whether every target has the record of the run. If so, another run cannot begin without seeing a
// record.
func (l *Lease) Whole() bool { return len(l.parts) == len(l.cfg.Targets) }

// mayHold fails unless dev, which is target t, contains nothing, this store, or, for a run with --fresh, something that
// may be replaced.
func mayHold(ctx context.Context, cfg *config.Config, t int, dev nvmf.Device) (err error) {
	if cfg.Fresh {
		_, err = replaceable(ctx, cfg, dev)
	} else if table, e := readTable(ctx, cfg, dev); e != nil {
		err = e
	} else {
		err = table.Check(want(cfg, t, len(cfg.Targets), 0))
	}
	if errors.Is(err, parttable.ErrNoTable) {
		return nil
	}
	return err
}

// take writes the records on all targets that have space for one. found are the records on which the decision to take
// the store was based.
func (l *Lease) take(ctx context.Context, found []*runrecord.Found, me runrecord.Record) error {
	for t, id := range l.cfg.Targets {
		if id.Transport == nvmf.PCIe {
			continue // only one process can use a local drive
		}
		dev, err := connect(ctx, l.cfg, id, false)
		if err != nil {
			return err
		}
		if !keepsRecord(dev) {
			if err := dev.Close(); err != nil {
				return fmt.Errorf("target %s: %w", id, err)
			}
			continue
		}
		p := &leasePart{lease: l, id: id, dev: dev, me: me, fresh: make(chan *leasePart), done: make(chan struct{})}
		l.watchMirror(t, dev)
		err = p.open(ctx, found[t])
		if err != nil || p.full {
			err = andClosing(err, p.close())
		} else {
			l.parts = append(l.parts, p)
		}
		if err != nil {
			return fmt.Errorf("target %s: %w", id, err)
		}
	}
	return nil
}

// confirm waits until every run that has not seen the record of this run must have written its own. Then it checks
// that the record of this run is still there.
func (l *Lease) confirm(ctx context.Context, pace pace) error {
	reserved := true
	for _, p := range l.parts {
		reserved = reserved && p.reserve != nil
	}
	if err := pace.quiesce(ctx, reserved); err != nil {
		return err
	}
	for _, p := range l.parts {
		if err := p.confirm(ctx); err != nil {
			return fmt.Errorf("target %s: %w", p.id, err)
		}
	}
	return nil
}

// open writes the record of one target. It fails if the current record differs from before, because then another run
// has begun.
func (p *leasePart) open(ctx context.Context, before *runrecord.Found) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.lease.cfg.Timeout)
	defer cancel()
	if p.q, err = p.dev.OpenQueue(ctx, 1); err != nil {
		return err
	}
	return p.beaten(ctx, p.retry(ctx, func() error { return p.take(ctx, before) }))
}

// take is one attempt of open.
func (p *leasePart) take(ctx context.Context, before *runrecord.Found) error {
	now, err := runrecord.Read(p.dev, p.q)
	if err != nil {
		return err
	}
	ours := now.Record != nil && now.Record.Run == p.me.Run // an earlier attempt has written it
	if !ours && !now.Same(before) && judge(now) != runOver && !p.lease.cfg.Takeover {
		return p.living(now)
	}
	if p.reserve, err = fence(ctx, p.lease.cfg, p.dev); err != nil {
		return err
	}
	// Once the target is fenced the table does not change any more.
	table, err := parttable.Read(ctx, p.dev)
	switch {
	case errors.Is(err, parttable.ErrNoTable):
		err = halfFormatted(parttable.Begin(ctx, p.dev, nil)) // marks the head as nvmecr's
	case errors.Is(err, parttable.ErrForeign), errors.Is(err, parttable.ErrCorrupt):
		err = nil // --fresh overwrites the content
	case err == nil && !table.HasRunRecord():
		p.lease.say("target %s: %d partitions leave no space for the record of this run: a run on another host may take the store over", p.id, len(table.Entries))
		p.full = true
		return nil
	}
	if err == nil {
		err = equaliseHead(ctx, p.dev)
	}
	if err != nil {
		return err
	}
	return p.writeBoth()
}

// confirm fails if another run has taken this target.
func (p *leasePart) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.lease.cfg.Timeout)
	defer cancel()
	return p.beaten(ctx, p.retry(ctx, func() error {
		f, err := runrecord.Read(p.dev, p.q)
		switch {
		case err != nil:
			return err
		case f.Record == nil || f.Record.Run != p.me.Run:
			return p.living(f)
		case p.reserve == nil:
			return nil
		}
		return p.reserve(ctx)
	}))
}

// A run that has taken the reservation from this run writes its record within a moment. This run waits for that record, to
// name the other run in its error.
const (
	introductions = 20
	introduction  = 50 * time.Millisecond
)

// beaten adds the name of the run that was faster to err, if err is that of a lost reservation.
func (p *leasePart) beaten(ctx context.Context, err error) error {
	if !errors.Is(err, nvmf.ErrFenced) && !taken(err) {
		return err
	}
	for range introductions {
		f, e := p.read(ctx)
		if e == nil && f.Record != nil && !f.Record.Ended && reservationKey(f.Record.Run) > reservationKey(p.me.Run) {
			return p.living(f)
		}
		if e != nil || sleep(ctx, introduction) != nil {
			break
		}
	}
	return err
}

func (p *leasePart) living(f *runrecord.Found) error {
	return &InProgressError{Store: p.lease.cfg.Name, Target: p.id, Run: f.Record, Here: judge(f) == runAlive}
}
