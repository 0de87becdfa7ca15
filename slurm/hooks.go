package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"nvmecr/balancer/hostlist"
	"nvmecr/balancer/placement"
	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
)

// Hooks has a method for each hook that Slurm calls.
type Hooks struct {
	State     string // directory of the leases
	Inventory *site.Inventory
	Network   *topology.Topology
	Unusable  error // why inventory or network cannot be read; jobs without a request start nevertheless
	Queue     Queue
	Targets   Targets
	Defaults  Request                          // defaults of a request: Capacity for each target, Retain for requests with a name
	Grace     time.Duration                    // minimum time from the end of a job until its space is freed: a job whose node is lost has ended, for a moment, before it is requeued
	Logf      func(format string, args ...any) // log of the administrator
	Now       func() time.Time
	step      func(what string) error // for tests: called at each step; an error ends the hook there
}

func (h *Hooks) store() *Store { return &Store{h.State} }

// at is called at points at which a test may end the hook, as if it were killed.
func (h *Hooks) at(what string) error {
	if h.step == nil {
		return nil
	}
	return h.step(what)
}

// ErrUnmeetable means that a request can never be met, however long the job waits.
var ErrUnmeetable = errors.New("the job is held, since waiting does not help: cancel it (scancel), and change the request")

// PrologController provides a job that is about to start with the requested space. If request is "" it uses the
// request that Slurm has for the job. A job without a request gets nothing. Namespaces that were created for an
// earlier start of the job, or by a hook that was killed, are used again.
//
// After an error Slurm requeues the job. The user finds the reason in the job's AdminComment. A job that would fail
// each time is held.
func (h *Hooks) PrologController(ctx context.Context, id uint32, request string) error {
	job, err := h.Queue.Job(ctx, id)
	if err != nil {
		return err
	}
	if request = cmp.Or(request, job.Request); request == "" {
		return nil
	}
	if err = h.Unusable; err == nil {
		err = h.start(ctx, job, request)
	}
	if err != nil {
		return errors.Join(err, h.refuse(ctx, job, err))
	}
	if err := h.Queue.Explain(ctx, job, ""); err != nil { // the job has its space nevertheless
		h.Logf("job %d: %v", id, err)
	}
	return nil
}

// refuse shows the user of the job why it cannot start.
func (h *Hooks) refuse(ctx context.Context, job Job, why error) error {
	err := h.Queue.Explain(ctx, job, strings.ReplaceAll(why.Error(), "\n", "; "))
	if errors.Is(why, ErrUnmeetable) {
		err = errors.Join(err, h.Queue.Hold(ctx, job))
	}
	return err
}

func (h *Hooks) start(ctx context.Context, job Job, request string) error {
	r, err := ParseRequest(request, h.Defaults)
	if err != nil {
		return fmt.Errorf("%w; %w", err, ErrUnmeetable)
	}
	unlock, err := h.store().lockLease(leaseName(job, r))
	if err != nil {
		return err
	}
	defer unlock()
	l, err := h.lease(ctx, job, r)
	if err != nil {
		return err
	}
	for {
		err := h.provide(ctx, l)
		failed := new(targetError)
		if !errors.As(err, &failed) || l.Ready || ctx.Err() != nil || h.planWithout(l, job, r, failed) != nil {
			return err
		}
	}
}

// planWithout plans a lease that has no data yet again, without a target that has failed. The namespace that may
// exist on that target stays in the lease.
func (h *Hooks) planWithout(l *Lease, job Job, r Request, failed *targetError) error {
	unlock, err := h.store().lock()
	if err != nil {
		return err
	}
	defer unlock()
	left := append(slices.Clone(l.Abandoned), failed.name)
	inventory, others := *h.Inventory, *h
	inventory.Targets = slices.DeleteFunc(slices.Clone(inventory.Targets), func(t site.Target) bool { return slices.Contains(left, t.Name) })
	others.Inventory = &inventory
	next, err := others.newLease(job, r, l.Name)
	if err != nil {
		return err
	}
	next.Abandoned = slices.DeleteFunc(l.on(), func(name string) bool { return slices.Contains(next.on(), name) })
	h.Logf("job %d: other targets in its place: %v", job.ID, failed)
	*l = *next
	if err := h.at("before the lease has other targets"); err != nil {
		return err
	}
	return h.store().save(l)
}

// A targetError is the failure of a target to provide a namespace.
type targetError struct {
	name string
	error
}

func (e *targetError) Unwrap() error { return e.error }

// leaseName returns the name of the lease: that of the job; or, if the request has a name, that of user and name, so
// that names of different users never collide.
func leaseName(job Job, r Request) string {
	if r.Name != "" {
		return fmt.Sprintf("slurm-u%d-%s", job.User, r.Name)
	}
	return fmt.Sprintf("slurm-j%d", job.ID)
}

// lease creates or renews the lease for this start of the job, and saves it.
func (h *Hooks) lease(ctx context.Context, job Job, r Request) (*Lease, error) {
	unlock, err := h.store().lock() // until the lease is saved other plans do not see its space
	if err != nil {
		return nil, err
	}
	defer unlock()
	name := leaseName(job, r)
	l, err := h.store().load(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l, err = h.newLease(job, r, name)
	case err == nil:
		err = h.renew(ctx, l, job, r)
	}
	if err != nil {
		return nil, err
	}
	if err := h.at("before the lease is written"); err != nil {
		return nil, err
	}
	return l, h.store().save(l)
}

// newLease plans the targets of a job.
func (h *Hooks) newLease(job Job, r Request, name string) (*Lease, error) {
	leases, err := h.store().all()
	if err != nil {
		return nil, err // the space of an unreadable lease is unknown
	}
	leases = slices.DeleteFunc(leases, func(l *Lease) bool { return l.Name == name })
	plan, err := h.planAll(job, r, leases)
	if err != nil {
		if _, alone := h.planAll(job, r, nil); alone != nil {
			err = fmt.Errorf("%w; %w", err, ErrUnmeetable)
		}
		return nil, err
	}
	for _, w := range plan.Warnings {
		h.Logf("job %d: %s", job.ID, w)
	}
	l := &Lease{Name: name, User: job.User, Request: r, Job: job.ID, Restarts: job.Restarts, Nodes: job.Nodes, Ranks: plan.Ranks(),
		Mapping: plan.Mapping().String(), Size: sizeOn(r, len(plan.Targets)), HostNQN: "nqn.2014-08.org.nvmexpress:uuid:" + uuid.NewString(), Started: h.Now()}
	for _, t := range plan.Targets {
		l.Targets = append(l.Targets, LeasedSpot{Target: t.Name})
	}
	l.Key = dhchap.NewSecret(dhchap.SHA256).Reveal()
	return l, nil
}

// planAll plans for the requested number of targets, or for one more if mirroring needs it: with two nodes, an odd
// number of targets would leave one without a mirror.
func (h *Hooks) planAll(job Job, r Request, leases []*Lease) (*placement.Plan, error) {
	plan, err := h.plan(job, r, leases)
	if err != nil && r.CopiesSync && r.Targets%2 == 1 {
		r.Targets++
		return h.plan(job, r, leases)
	}
	return plan, err
}

// renew changes a lease for another start of its job, or for a later job with the same name.
func (h *Hooks) renew(ctx context.Context, l *Lease, job Job, r Request) error {
	if l.User != job.User { // the uid belongs to another user now
		return fmt.Errorf("lease %s is of user %d, and job %d of user %d", l.Name, l.User, job.ID, job.User)
	}
	if l.Job != job.ID {
		switch holder, err := h.Queue.Job(ctx, l.Job); {
		case err != nil && !errors.Is(err, ErrNoJob):
			return err
		case err == nil && !holder.Over:
			return fmt.Errorf("job %d: name %q is in use by job %d: start this job after that one (sbatch --dependency=afterany:%d)", job.ID, r.Name, l.Job, l.Job)
		}
	}
	if l.Freeing {
		return fmt.Errorf("job %d: the retain time of lease %s has passed, and a part of it is freed: the job starts when the remaining targets answer; or use another name", job.ID, l.Name)
	}
	if size := sizeOn(r, len(l.Targets)); size != l.Size || r.Targets != l.Request.Targets {
		return fmt.Errorf("job %d: lease %s has %s on %d targets, and the request differs: request the same, or use another name; %w",
			job.ID, l.Name, l.Size*nvmf.Bytes(len(l.Targets)), len(l.Targets), ErrUnmeetable)
	}
	if r.CopiesSync != l.Request.CopiesSync {
		return fmt.Errorf("job %d: lease %s has copies-sync=%t, which cannot be changed: request the same, or use another name; %w", job.ID, l.Name, l.Request.CopiesSync, ErrUnmeetable)
	}
	if err := h.replace(l, job, r); err != nil {
		return err
	}
	if l.Job == job.ID && l.Restarts == job.Restarts && l.Ended == nil {
		return nil // the hook is repeated
	}
	l.Reused = l.Reused || l.Ready
	l.Job, l.Restarts, l.Nodes, l.Request, l.Started, l.Ended = job.ID, job.Restarts, job.Nodes, r, h.Now(), nil
	l.Key = dhchap.NewSecret(dhchap.SHA256).Reveal()
	return nil
}

// sizeOn returns the size of each namespace.
func sizeOn(r Request, targets int) nvmf.Bytes {
	size := (r.Capacity + nvmf.Bytes(targets) - 1) / nvmf.Bytes(targets)
	return (size + nvmf.MiB - 1) / nvmf.MiB * nvmf.MiB
}

// replace replaces targets of a lease that have failed permanently. Their data is lost, unless there are copies.
func (h *Hooks) replace(l *Lease, job Job, r Request) error {
	var failed []int
	for i, spot := range l.Targets {
		if h.failed(spot.Target) {
			failed = append(failed, i)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	leases, err := h.store().all()
	if err != nil {
		return err
	}
	r.Targets, r.Capacity = len(failed), l.Size*nvmf.Bytes(len(failed))
	plan, err := h.plan(job, r, leases, l.Targets...)
	if err != nil {
		return fmt.Errorf("lease %s, in the place of %s, which has failed: %w", l.Name, l.Targets[failed[0]].Target, err)
	}
	for n, i := range failed {
		h.Logf("lease %s: target %s has failed, and %s takes its place", l.Name, l.Targets[i].Target, plan.Targets[n].Name)
		l.Targets[i] = LeasedSpot{Target: plan.Targets[n].Name}
	}
	return nil
}

// failed reports whether the inventory marks a target as failed: it will not return with its data.
func (h *Hooks) failed(name string) bool {
	t, err := h.target(name)
	return err == nil && t.Health == site.Failed
}

// plan chooses targets that can create namespaces and have space that other leases do not use. has are targets that
// the job keeps.
func (h *Hooks) plan(job Job, r Request, leases []*Lease, has ...LeasedSpot) (*placement.Plan, error) {
	nodes, err := hostlist.Expand(job.Nodes)
	if err != nil {
		return nil, fmt.Errorf("job %d: nodes %q: %w", job.ID, job.Nodes, err)
	}
	inventory := *h.Inventory
	inventory.Targets = h.available(leases, has)
	copies := r.Copies != "" || r.CopiesSync
	if copies {
		inventory.Targets = h.limitPerNode(inventory.Targets, r, has)
	}
	ranks := max(job.Ranks, len(nodes), r.Targets)
	want := placement.Job{Targets: r.Targets, Strict: r.Strict, RankCapacity: r.Capacity / nvmf.Bytes(ranks)}
	for i, node := range nodes {
		want.Hosts = append(want.Hosts, placement.Host{Name: node, Ranks: (ranks + len(nodes) - 1 - i) / len(nodes)})
	}
	plan, err := placement.New(want, h.Network, &inventory)
	if err != nil && copies {
		err = fmt.Errorf("with copies on other nodes: %w", err)
	}
	return plan, err
}

// available returns the targets that can create namespaces, with the space that leases do not use, and without the
// targets of has.
func (h *Hooks) available(leases []*Lease, has []LeasedSpot) (list []site.Target) {
	for _, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 || slices.ContainsFunc(has, func(s LeasedSpot) bool { return s.Target == t.Name }) {
			continue
		}
		for _, l := range leases {
			for _, spot := range l.Targets {
				if spot.Target == t.Name {
					t.Load += (l.Ranks + len(l.Targets) - 1) / len(l.Targets)
					if t.Capacity > 0 {
						t.Capacity = max(1, t.Capacity-l.Size)
					}
				}
			}
		}
		list = append(list, t)
	}
	return list
}

// provide creates the missing namespaces of a lease, and gives the job's hosts access.
func (h *Hooks) provide(ctx context.Context, l *Lease) error {
	for i := range l.Targets {
		on, err := h.target(l.Targets[i].Target)
		if err != nil {
			return err
		}
		if err := h.at("before a create"); err != nil {
			return err
		}
		if l.Targets[i].Namespace, err = h.Targets.Create(ctx, on, l.Name, l.Size); err != nil {
			return &targetError{on.Name, err}
		}
		if err := h.at("before an expose"); err != nil {
			return err
		}
		if err := h.Targets.Expose(ctx, on, l.Name, l.HostNQN, l.Key); err != nil {
			return &targetError{on.Name, err}
		}
	}
	if err := h.at("before the lease is ready"); err != nil {
		return err
	}
	l.Ready = true
	return h.store().save(l)
}

func (h *Hooks) target(name string) (site.Target, error) {
	for _, t := range h.Inventory.Targets {
		if t.Name == name {
			return t, nil
		}
	}
	return site.Target{}, fmt.Errorf("target %s is no longer in the inventory, and leases have namespaces on it: add it again", name)
}

// EpilogController records that a job has ended. It frees nothing, since the job may be started again. A later call
// overrides an earlier one, which may be about a lost node.
func (h *Hooks) EpilogController(id uint32) error {
	l, err := h.store().ofJob(id)
	if l == nil {
		return err
	}
	unlock, err := h.store().lockLease(l.Name)
	if err != nil {
		return err
	}
	defer unlock()
	switch l, err = h.store().load(l.Name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil || l.Job != id:
		return err
	}
	now := h.Now()
	l.Ended = &now
	if err := h.at("before the end is written"); err != nil {
		return err
	}
	return h.store().save(l)
}
