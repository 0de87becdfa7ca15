package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/internal/runrecord"
	"nvmecr/nvmf"
)

// A run in progress renews its run records every beatInterval. If it is unknown whether the process of a record lives,
// the record is watched for missedBeats of the interval that the record names. So a crash of a host delays the next run
// by that time.
const (
	beatInterval = 2 * time.Second
	missedBeats  = 4
)

// Bounds for the interval of a record, which may be damaged.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = 15 * time.Second
)

// An InProgressError says that a run of the store is in progress. It wraps syscall.EBUSY.
type InProgressError struct {
	Store  string
	Target nvmf.TransportID
	Run    *runrecord.Record // nil: the record is being renewed, but cannot be read
	Here   bool              // the process of the run is on this host
}

// Error names the run and the remedies.
func (e *InProgressError) Error() string {
	if e.Run == nil {
		return fmt.Sprintf("store %q is in use by a run that cannot be read (target %s); wait for it to end, or take the store from it with --takeover", e.Store, e.Target)
	}
	text := fmt.Sprintf("store %q is in use by %v; wait for it to end, or take the store from it with --takeover", e.Run.Store, e.Run)
	if !e.Here {
		text += " (one `nvmecr run` around the launcher serves all nodes of a job; where each node has to start one, give all of them the same --job-id)"
	}
	return text
}

// Unwrap returns syscall.EBUSY.
func (e *InProgressError) Unwrap() error { return syscall.EBUSY }

// Idle returns nil if no run of the store is in progress on any host. A run has ended if its run records say so, if
// its process has ended, or if the records are not renewed for some seconds. Idle waits for these seconds, with a
// message. For a run in progress the error is an *InProgressError, unless cfg.Takeover. Errors of the targets are
// returned unchanged.
func Idle(ctx context.Context, cfg *config.Config, say func(format string, args ...any)) error {
	_, err := look(ctx, cfg, say, func(int, nvmf.Device) error { return nil })
	return err
}

// InProgress returns the record of a run that is not known to have ended; nil if no target has one. It reads each
// record once, so a run that died on another host counts as in progress.
func InProgress(ctx context.Context, cfg *config.Config) (run *runrecord.Record, err error) {
	err = eachTarget(ctx, cfg, true, func(_ int, _ nvmf.TransportID, dev nvmf.Device) error {
		f, err := readRecord(ctx, cfg, dev)
		if err == nil && f.Record != nil && judge(f) != runOver && f.Record.After(run) {
			run = f.Record
		}
		return err
	})
	return run, err
}

// look is Idle with two additions: it calls permit for each target before it reads the record, and it returns the
// records of the targets, in their order.
func look(ctx context.Context, cfg *config.Config, say func(format string, args ...any), permit func(t int, dev nvmf.Device) error) ([]*runrecord.Found, error) {
	w := &watch{cfg: cfg, say: say, found: make([]*runrecord.Found, len(cfg.Targets))}
	if err := w.sweep(ctx, permit); err != nil {
		return nil, err
	}
	for begin := time.Now(); time.Since(begin) < w.patience; {
		if err := sleep(ctx, w.interval/4); err != nil {
			return nil, err
		}
		if err := w.sweep(ctx, permit); err != nil {
			return nil, err
		}
		if w.patience > 0 && time.Since(begin) >= w.interval && !w.told {
			w.told = true
			say("%s; waiting %v for a sign of life (--takeover does not wait)", w.who, w.patience)
		}
	}
	return w.found, nil
}

// watch reads the records of all targets repeatedly.
type watch struct {
	cfg      *config.Config
	say      func(format string, args ...any)
	found    []*runrecord.Found // the records of the last sweep, by target
	told     bool               // the message about the wait was printed
	who      string             // the run that may live, for the message
	interval time.Duration      // between two renewals of its record
	patience time.Duration      // how long to wait for a renewal; 0: all runs have ended
}

// sweep reads all records once. It fails with *InProgressError for a run that is known to live.
func (w *watch) sweep(ctx context.Context, permit func(t int, dev nvmf.Device) error) error {
	w.interval, w.patience = 0, 0
	return eachTarget(ctx, w.cfg, true, func(t int, id nvmf.TransportID, dev nvmf.Device) error {
		if err := permit(t, dev); err != nil {
			return err
		}
		before := w.found[t]
		now, err := readRecord(ctx, w.cfg, dev)
		if err != nil {
			return err
		}
		w.found[t] = now
		switch verdict := judge(now); {
		case verdict == runOver:
			return nil
		case w.cfg.Takeover:
			return nil
		case errors.Is(now.Err, runrecord.ErrVersion):
			return fmt.Errorf("%w; use the nvmecr that wrote it, or take the store from its run with --takeover", now.Err)
		case verdict == runAlive, before != nil && !now.Same(before):
			return &InProgressError{Store: w.cfg.Name, Target: id, Run: now.Record, Here: verdict == runAlive}
		}
		interval := beatInterval
		w.who = fmt.Sprintf("target %s has a run record that cannot be read", id)
		if r := now.Record; r != nil {
			interval = min(max(r.Interval, minInterval), maxInterval)
			w.who = fmt.Sprintf("the last run of store %q, %v, has not ended by itself", r.Store, r)
		}
		w.interval, w.patience = max(w.interval, interval), max(w.patience, missedBeats*interval)
		return nil
	})
}

// A verdict is the state of a run according to its record.
type verdict int

const (
	runUnknown verdict = iota // the next renewal, or its absence, will decide
	runOver                   // there is no run, or it has ended
	runAlive                  // its process lives on this host
)

// judge decides whether the run of a record lives, as far as this host knows.
func judge(f *runrecord.Found) verdict {
	if f.Record == nil && f.Err == nil {
		return runOver
	}
	if f.Record == nil || f.Err != nil {
		return runUnknown
	}
	r, me := f.Record, self(uuid.Nil)
	if r.Ended {
		return runOver
	}
	// /proc may hide processes of other users. A host with the name and the machine id of this one, but another boot
	// time, may be a clone.
	if r.UID != uint32(os.Geteuid()) || me.Boot == uuid.Nil || r.Boot != me.Boot || r.PIDSpace != me.PIDSpace || r.PID == 0 {
		return runUnknown
	}
	switch start, err := started(int(r.PID)); {
	case errors.Is(err, errEnded), err == nil && start != r.Start:
		return runOver
	case err == nil:
		return runAlive
	}
	return runUnknown
}

// readRecord reads the run record of dev. It waits for a target that stops answering, as long as cfg allows.
func readRecord(ctx context.Context, cfg *config.Config, dev nvmf.Device) (*runrecord.Found, error) {
	if !keepsRecord(dev) {
		return &runrecord.Found{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	q, err := dev.OpenQueue(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer q.Close() // nothing was written
	for {
		f, err := runrecord.Read(dev, q)
		if !errors.Is(err, nvmf.ErrConnectionLost) {
			return f, err
		}
		if e := q.Reset(ctx); e != nil {
			return nil, fmt.Errorf("%w: %w", err, e)
		}
	}
}

// keepsRecord reports whether dev can have a run record. A private device, and one that is too small for a partition
// table, cannot.
func keepsRecord(dev nvmf.Device) bool {
	id := dev.Identity()
	return !id.Private && id.Capacity() >= parttable.HeadSize
}

// sleep waits for d. If ctx ends first it returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
