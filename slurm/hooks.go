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

// Hooks are what Slurm calls.
type Hooks struct {
	State     string // directory of the leases
	Inventory *site.Inventory
	Network   *topology.Topology
	Queue     Queue
	Targets   Targets
	Defaults  Request                          // what a request does not say: Capacity is for each target, Retain for requests with a name
	Grace     time.Duration                    // how long a job has to be over, at least: one whose node is lost is, for a moment, before it is queued again
	Logf      func(format string, args ...any) // where an administrator reads it
	Now       func() time.Time
	step      func(what string) error // for tests: dies here
}

func (h *Hooks) store() *Store { return &Store{h.State} }

// at is a point at which a test may end the hook, as if it were killed.
func (h *Hooks) at(what string) error {
	if h.step == nil {
		return nil
	}
	return h.step(what)
}

// ErrUnmeetable says that a request cannot be met, however long the job waits.
var ErrUnmeetable = errors.New("the job is held, since waiting does not help: cancel it (scancel), and change the request")

// PrologController gives a job that is about to start what request asks for; "": what Slurm says that it asks for. Nothing is done for a job
// that asks for nothing. What was made for an earlier start of the job, or by a hook that was killed, is found again.
//
// Slurm queues a job again for which this fails. The job's user finds the reason with the job, which is held where it would fail again and again.
func (h *Hooks) PrologController(ctx context.Context, id uint32, request string) error {
	job, err := h.Queue.Job(ctx, id)
	if err != nil {
		return err
	}
	if request = cmp.Or(request, job.Request); request == "" {
		return nil
	}
	err = h.start(ctx, job, request)
	if err != nil {
		return errors.Join(err, h.refuse(ctx, id, err))
	}
	if job.Explained {
		return h.Queue.Explain(ctx, id, "")
	}
	return nil
}

// refuse tells the job's user why.
func (h *Hooks) refuse(ctx context.Context, id uint32, why error) error {
	err := h.Queue.Explain(ctx, id, strings.ReplaceAll(why.Error(), "\n", "; "))
	if errors.Is(why, ErrUnmeetable) {
		err = errors.Join(err, h.Queue.Hold(ctx, id))
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
	return h.provide(ctx, l)
}

// leaseName names the lease after the job, or after the user and the name in the request, so that names of other users never collide.
func leaseName(job Job, r Request) string {
	if r.Name != "" {
		return fmt.Sprintf("slurm-u%d-%s", job.User, r.Name)
	}
	return fmt.Sprintf("slurm-j%d", job.ID)
}

// lease returns the lease for this start of the job, after it is stored.
func (h *Hooks) lease(ctx context.Context, job Job, r Request) (*Lease, error) {
	unlock, err := h.store().lock() // until it is written other leases do not see what space it has
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

// newLease plans where the job writes.
func (h *Hooks) newLease(job Job, r Request, name string) (*Lease, error) {
	leases, err := h.store().all()
	if err != nil {
		return nil, err // a lease that cannot be read has space somewhere
	}
	plan, err := h.plan(job, r, leases)
	if err != nil {
		if _, alone := h.plan(job, r, nil); alone != nil {
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

// renew makes a lease that of another start: of its job, or of a later job of the name.
func (h *Hooks) renew(ctx context.Context, l *Lease, job Job, r Request) error {
	if l.User != job.User { // somebody has the user's number now
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
	if size := sizeOn(r, len(l.Targets)); size != l.Size || r.Targets != l.Request.Targets {
		return fmt.Errorf("job %d: lease %s has %s on %d targets, and the request differs: request the same, or use another name; %w",
			job.ID, l.Name, l.Size*nvmf.Bytes(len(l.Targets)), len(l.Targets), ErrUnmeetable)
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

// sizeOn is the size of each namespace.
func sizeOn(r Request, targets int) nvmf.Bytes {
	size := (r.Capacity + nvmf.Bytes(targets) - 1) / nvmf.Bytes(targets)
	return (size + nvmf.MiB - 1) / nvmf.MiB * nvmf.MiB
}

// replace gives a lease other targets in the place of those that have failed for good. What was there is lost, unless there are copies of it.
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

// failed says whether the inventory calls a target that: it does not come back with what it had.
func (h *Hooks) failed(name string) bool {
	t, err := h.target(name)
	return err == nil && t.Health == site.Failed
}

// plan chooses among the targets that can make namespaces, less what other leases have of them, and without some.
func (h *Hooks) plan(job Job, r Request, leases []*Lease, but ...LeasedSpot) (*placement.Plan, error) {
	inventory := *h.Inventory
	inventory.Targets = nil
	for _, t := range h.Inventory.Targets {
		if len(t.Admin) == 0 || slices.ContainsFunc(but, func(s LeasedSpot) bool { return s.Target == t.Name }) {
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
		inventory.Targets = append(inventory.Targets, t)
	}
	nodes, err := hostlist.Expand(job.Nodes)
	if err != nil {
		return nil, fmt.Errorf("job %d: nodes %q: %w", job.ID, job.Nodes, err)
	}
	ranks := max(job.Ranks, len(nodes), r.Targets)
	want := placement.Job{Targets: r.Targets, Strict: r.Strict, RankCapacity: r.Capacity / nvmf.Bytes(ranks)}
	for i, node := range nodes {
		want.Hosts = append(want.Hosts, placement.Host{Name: node, Ranks: (ranks + len(nodes) - 1 - i) / len(nodes)})
	}
	return placement.New(want, h.Network, &inventory)
}

// provide makes what is missing of a lease's namespaces, and lets the job's hosts in.
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
			return err
		}
		if err := h.at("before an expose"); err != nil {
			return err
		}
		if err := h.Targets.Expose(ctx, on, l.Name, l.HostNQN, l.Key); err != nil {
			return err
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
	return site.Target{}, fmt.Errorf("target %s is not in the inventory any more, and leases have namespaces on it: put it back", name)
}

// EpilogController notes that a job has ended. It may be started again: nothing is freed.
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
	case err != nil || l.Job != id || l.Ended != nil:
		return err
	}
	now := h.Now()
	l.Ended = &now
	if err := h.at("before the end is written"); err != nil {
		return err
	}
	return h.store().save(l)
}
