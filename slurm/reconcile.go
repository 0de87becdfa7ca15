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

// Reconcile frees the leases of jobs that are over, if the retain time has passed or the job never got its space. A
// lease that cannot be freed, because its target is down or a hook holds it, is left for the next call. The other
// leases are freed nevertheless.
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
		return nil // the job runs or will run; after the loss of a node, too
	}
	if l.Ended == nil { // EpilogSlurmctld was killed or never called
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

// free deletes the namespaces of a lease, and then the lease. The lease stays while a target cannot be reached;
// namespaces on other targets are deleted.
func (h *Hooks) free(ctx context.Context, l *Lease) error {
	if !l.Freeing {
		l.Freeing = true
		if err := h.store().save(l); err != nil {
			return err
		}
	}
	var failed error
	for _, name := range l.on() {
		if err := h.at("before a delete"); err != nil {
			return err
		}
		on, err := h.target(name)
		if err == nil {
			err = h.Targets.Delete(ctx, on, l.Name)
		}
		if err != nil && !h.failed(name) {
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return failed
	}
	if err := h.at("before the lease is removed"); err != nil {
		return err
	}
	h.Logf("freed %s, of job %d", l.Name, l.Job)
	return h.store().remove(l.Name)
}

// Leases returns the leases, and an error for each that cannot be read.
func (h *Hooks) Leases() ([]*Lease, error) { return h.store().all() }

// An Orphan is a namespace with the name of a lease that does not exist: the state directory was lost, or the namespace
// belongs to another controller.
type Orphan struct{ Target, Name string }

// Orphans compares the namespaces on the targets with the leases. A target that does not answer is an error; the others
// are compared nevertheless.
func (h *Hooks) Orphans(ctx context.Context) (orphans []Orphan, err error) {
	if orphans, err = h.unleased(ctx); len(orphans) == 0 {
		return nil, err
	}
	// A namespace that is freed meanwhile is deleted before its lease. Then a second listing no longer has it.
	again, err := h.unleased(ctx)
	return slices.DeleteFunc(again, func(s Orphan) bool { return !slices.Contains(orphans, s) }), err
}

// maxLists is the number of targets that are listed at the same time.
const maxLists = 64

// held lists the namespaces on the targets. It asks several targets at the same time: the slowest one determines how
// long that takes.
func (h *Hooks) held(ctx context.Context) (all []Orphan, err error) {
	names, errs := make([][]string, len(h.Inventory.Targets)), make([]error, len(h.Inventory.Targets))
	var group errgroup.Group
	group.SetLimit(maxLists)
	for i, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 {
			continue
		}
		group.Go(func() error {
			names[i], errs[i] = h.Targets.List(ctx, t)
			if t.Health == site.Failed {
				errs[i] = nil // listed below with the error of the target
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	for i, t := range h.Inventory.Targets {
		for _, name := range names[i] {
			if strings.HasPrefix(name, "slurm-") {
				all = append(all, Orphan{t.Name, name})
			}
		}
	}
	return all, errors.Join(errs...)
}

// unleased lists the namespaces before the leases, since a lease is written before its first namespace is created.
func (h *Hooks) unleased(ctx context.Context) (orphans []Orphan, err error) {
	orphans, err = h.held(ctx)
	leases, e := h.store().all()
	if e != nil {
		return nil, errors.Join(err, e)
	}
	return slices.DeleteFunc(orphans, func(s Orphan) bool {
		return slices.ContainsFunc(leases, func(l *Lease) bool {
			return l.Name == s.Name && slices.Contains(l.on(), s.Target)
		})
	}), err
}
