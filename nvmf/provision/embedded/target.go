package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/target"
)

// Target is a provision.Provisioner of a target in this process.
type Target struct {
	target *target.Target
	pool   Pool
	base   string

	mu        sync.Mutex         // guards the following fields, and is held during calls
	served    map[string]*served // by job
	damaged   map[string]error   // by job: why New could not serve it
	addresses []nvmf.TransportID // without a subsystem
}

// served is a namespace that the target serves.
type served struct {
	record
	backing target.Backing // owned by the target
	freed   bool           // the pool has freed it
}

// New makes t serve the namespaces of a pool, under NQNs that begin with base. A
// namespace that cannot be served is Damaged and does not change; the others are
// served. The Target takes over the pool, even if New fails.
func New(t *target.Target, pool Pool, base string) (*Target, error) {
	x := &Target{target: t, pool: pool, base: base, served: map[string]*served{}, damaged: map[string]error{}}
	jobs, err := pool.jobs()
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	for job, state := range jobs {
		if state != provision.Ready {
			continue
		}
		if _, err := x.serve(job); err != nil {
			x.damaged[job] = err
		}
	}
	return x, nil
}

// SetAddresses sets the addresses at which the target listens. Only transport, address
// and service of each are used.
func (x *Target) SetAddresses(addresses []nvmf.TransportID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.addresses = slices.Clone(addresses)
}

// serve adds a namespace of the pool to the target.
func (x *Target) serve(job string) (*served, error) {
	r, err := x.pool.load(job)
	if err != nil {
		return nil, err
	}
	b, err := x.pool.open(r)
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", job, err)
	}
	err = x.target.AddSubsystem(target.Subsystem{
		NQN: provision.NQN(x.base, job), Listed: true, Hosts: r.Hosts, Keys: r.Keys,
		Namespaces: []target.Namespace{{NSID: 1, Backing: b, Rate: r.Rate}},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("job %s: %w", job, err), b.Close())
	}
	s := &served{record: r, backing: b}
	x.served[job] = s
	delete(x.damaged, job)
	return s, nil
}

// Create creates a namespace; see provision.Provisioner.
func (x *Target) Create(_ context.Context, job string, size nvmf.Bytes) (provision.Namespace, error) {
	if err := errors.Join(provision.CheckJob(job), provision.CheckSize(job, size)); err != nil {
		return provision.Namespace{}, err
	}
	size = size.AlignUp(blockSize)
	x.mu.Lock()
	defer x.mu.Unlock()
	s, err := x.create(job, size)
	if err != nil {
		return provision.Namespace{}, err
	}
	if s.Size != size {
		return provision.Namespace{}, &provision.SizeError{Job: job, Have: s.Size, Want: size}
	}
	return x.describe(s), nil
}

func (x *Target) create(job string, size nvmf.Bytes) (*served, error) {
	if s := x.served[job]; s != nil && !s.freed {
		return s, nil
	}
	jobs, err := x.pool.jobs()
	if err != nil {
		return nil, err
	}
	if jobs[job] == provision.Ready { // left by a failed create
		r, err := x.pool.load(job)
		if err == nil && r.Size != size {
			err = &provision.SizeError{Job: job, Have: r.Size, Want: size}
		}
		if err != nil {
			return nil, err
		}
		return x.serve(job)
	}
	if err := x.remove(job, jobs[job]); err != nil {
		return nil, err
	}
	err = x.pool.create(record{Job: job, Size: size, Hosts: []string{}})
	if err == nil {
		var s *served
		if s, err = x.serve(job); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(err, x.delete(job))
}

// Expose sets the hosts that may connect. It changes the record in the pool before it
// changes the target.
func (x *Target) Expose(_ context.Context, job string, hosts []string, keys map[string]dhchap.Keys) error {
	hosts, err := provision.CheckHosts(job, hosts)
	if err != nil {
		return err
	}
	return x.alter(job, func(r *record) error {
		if err := provision.CheckKeys(job, hosts, keys, func(h string) bool { return !r.Keys[h].Host.IsZero() }, len(r.Keys) > 0); err != nil {
			return err
		}
		if keys == nil {
			keys = r.Keys
		}
		r.Hosts, r.Keys = hosts, nil
		for _, h := range hosts {
			if k, ok := keys[h]; ok {
				r.Keys = r.Keys.with(h, k)
			}
		}
		return nil
	}, func(nqn string, r *record) error { return x.target.SetAccess(nqn, r.Hosts, r.Keys) })
}

// Limit sets the rate limit of a namespace.
func (x *Target) Limit(_ context.Context, job string, rate nvmf.Bytes) error {
	if err := provision.CheckRate(job, rate); err != nil {
		return err
	}
	return x.alter(job, func(r *record) error { r.Rate = rate; return nil },
		func(nqn string, r *record) error { return x.target.SetRate(nqn, 1, r.Rate) })
}

// alter changes the record of a job, and then the target.
func (x *Target) alter(job string, edit func(*record) error, apply func(nqn string, r *record) error) error {
	if err := provision.CheckJob(job); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.served[job]
	switch {
	case x.damaged[job] != nil:
		return x.damaged[job]
	case s == nil || s.freed:
		return provision.NoNamespace(job)
	}
	r := s.record
	if err := edit(&r); err != nil {
		return err
	}
	saved, err := x.pool.save(r)
	if err != nil {
		err = fmt.Errorf("job %s: %w", job, err)
	}
	if saved { // a restarted target uses the record, even after an error
		s.record = r
		err = errors.Join(err, apply(provision.NQN(x.base, job), &r))
	}
	return err
}

// Delete frees a namespace.
func (x *Target) Delete(_ context.Context, job string) error {
	if err := provision.CheckJob(job); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.delete(job)
}

// delete frees the storage of a job, whether the target serves it or not.
func (x *Target) delete(job string) error {
	jobs, err := x.pool.jobs()
	if err != nil {
		return fmt.Errorf("job %s: %w", job, err)
	}
	return x.remove(job, jobs[job])
}

// remove frees storage in the given state; "" means that there is none.
func (x *Target) remove(job string, state provision.State) error {
	if state != "" {
		freed, err := x.pool.free(job)
		if s := x.served[job]; s != nil {
			s.freed = s.freed || freed
		}
		if err != nil {
			return fmt.Errorf("job %s: %w", job, err)
		}
	}
	return x.finish(job)
}

// finish completes a Delete, or removes the remains of an interrupted Create.
// Afterwards nothing of the job is left.
func (x *Target) finish(job string) error {
	if s := x.served[job]; s != nil {
		nqn := provision.NQN(x.base, job)
		// The namespace is no longer in use, so it need not be flushed.
		err := x.target.SetHosts(nqn, nil)
		if err == nil {
			err = errors.Join(s.backing.Deallocate(0, int64(s.Size)), x.target.RemoveSubsystem(nqn))
			delete(x.served, job)
		}
		if err != nil {
			return fmt.Errorf("job %s: %w", job, err)
		}
	}
	if err := x.pool.purge(job); err != nil {
		return fmt.Errorf("job %s: %w", job, err)
	}
	delete(x.damaged, job)
	return nil
}

// List returns all namespaces.
func (x *Target) List(context.Context) ([]provision.Namespace, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	jobs, err := x.pool.jobs()
	list := []provision.Namespace{}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		s := x.served[job]
		switch {
		case jobs[job] == provision.Freed:
			list = append(list, provision.Namespace{Job: job, State: provision.Freed, Hosts: []string{}})
		case x.damaged[job] != nil:
			list = append(list, provision.Namespace{Job: job, State: provision.Damaged, Hosts: []string{}, Problem: x.damaged[job].Error()})
		case s == nil:
			list = append(list, provision.Namespace{Job: job, State: provision.Incomplete, Hosts: []string{}})
		default:
			list = append(list, x.describe(s))
		}
	}
	return list, err
}

func (x *Target) describe(s *served) provision.Namespace {
	n := provision.Namespace{Job: s.Job, State: provision.Ready, Size: s.Size, Hosts: s.Hosts, Rate: s.Rate,
		Authenticate: x.target.Authenticates(provision.NQN(x.base, s.Job))}
	for _, id := range x.addresses {
		id.SubNQN, id.NSID = provision.NQN(x.base, s.Job), 1
		n.Targets = append(n.Targets, id)
	}
	return n
}

// Close closes the pool. The namespaces belong to the target, which must be closed
// first.
func (x *Target) Close() error { return x.pool.Close() }
