package slurm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"nvmecr/balancer/site"
)

// Reconcile frees the leases of jobs that are over, if their retain time is over or they never got space. A lease that
// cannot be freed, because its target is down or a hook has it, is left for the next call, and the others are freed all the same.
func (h *Hooks) Reconcile(ctx context.Context) error {
	leases, err := h.store().all()
	for _, l := range leases {
		if e := h.reconcileLocked(ctx, l.Name); e != nil {
			err = errors.Join(err, fmt.Errorf("lease %s: %w", l.Name, e))
		}
	}
	return err
}

func (h *Hooks) reconcileLocked(ctx context.Context, name string) error {
	unlock, ok, err := h.store().tryLease(name)
	if !ok {
		return err
	}
	defer unlock()
	l, err := h.store().load(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return h.reconcile(ctx, l)
}

func (h *Hooks) reconcile(ctx context.Context, l *Lease) error {
	job, err := h.Queue.Job(ctx, l.Job)
	if err != nil && !errors.Is(err, ErrNoJob) {
		return err
	}
	if err == nil && !job.Over {
		return nil // it runs, or will: also one whose Epilog came because a node was lost
	}
	if l.Ended == nil { // its EpilogSlurmctld was killed, or never came
		now := h.Now()
		l.Ended = &now
		if err := h.at("before the end is written"); err != nil {
			return err
		}
		if err := h.store().save(l); err != nil {
			return err
		}
	}
	wait := h.Grace
	if l.Ready {
		wait = max(wait, l.Request.Retain)
	}
	if h.Now().Before(l.Ended.Add(wait)) {
		return nil
	}
	return h.free(ctx, l)
}

// free deletes the namespaces of a lease, then the lease.
func (h *Hooks) free(ctx context.Context, l *Lease) error {
	for _, spot := range l.Targets {
		on, err := h.target(spot.Target)
		if err == nil {
			err = h.at("before a delete")
		}
		if err == nil {
			err = h.Targets.Delete(ctx, on, l.Name)
		}
		if err != nil && !h.failed(spot.Target) {
			return err
		}
	}
	if err := h.at("before the lease is removed"); err != nil {
		return err
	}
	h.Logf("freed %s, of job %d", l.Name, l.Job)
	return h.store().remove(l.Name)
}

// Leases returns the leases, and an error for each that cannot be read.
func (h *Hooks) Leases() ([]*Lease, error) { return h.store().all() }

// An Orphan is a namespace that has a lease's name, and no lease: the state directory was lost, or another controller's.
type Orphan struct{ Target, Name string }

// Orphans compares what targets hold with the leases. Targets that do not answer are errors, and the others are compared all the same.
func (h *Hooks) Orphans(ctx context.Context) (orphans []Orphan, err error) {
	if orphans, err = h.unleased(ctx); len(orphans) == 0 {
		return nil, err
	}
	// What is freed meanwhile loses its lease behind its namespace: it is gone when looked at again.
	again, err := h.unleased(ctx)
	return slices.DeleteFunc(again, func(s Orphan) bool { return !slices.Contains(orphans, s) }), err
}

// listsAtOnce bounds how many targets are asked at the same time.
const listsAtOnce = 64

// held lists the namespaces that targets have for jobs. Targets are asked at once: the slowest one determines how long that takes.
func (h *Hooks) held(ctx context.Context) (all []Orphan, err error) {
	names, errs := make([][]string, len(h.Inventory.Targets)), make([]error, len(h.Inventory.Targets))
	var group errgroup.Group
	group.SetLimit(listsAtOnce)
	for i, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 {
			continue
		}
		group.Go(func() error {
			names[i], errs[i] = h.Targets.List(ctx, t)
			if t.Health == site.Failed {
				errs[i] = nil // as is known
			}
			return nil
		})
	}
	_ = group.Wait() // errs has them all
	for i, t := range h.Inventory.Targets {
		for _, name := range names[i] {
			if strings.HasPrefix(name, "slurm-") {
				all = append(all, Orphan{t.Name, name})
			}
		}
	}
	return all, errors.Join(errs...)
}

// unleased lists what targets hold before the leases, since a lease is written before its first namespace is made.
func (h *Hooks) unleased(ctx context.Context) (orphans []Orphan, err error) {
	orphans, err = h.held(ctx)
	leases, e := h.store().all()
	if e != nil {
		return nil, errors.Join(err, e)
	}
	return slices.DeleteFunc(orphans, func(s Orphan) bool {
		return slices.ContainsFunc(leases, func(l *Lease) bool {
			return l.Name == s.Name && slices.ContainsFunc(l.Targets, func(spot LeasedSpot) bool { return spot.Target == s.Target })
		})
	}), err
}
