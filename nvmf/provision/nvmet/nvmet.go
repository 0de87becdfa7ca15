// Package nvmet provisions namespaces of Linux's NVMe target through configfs.
//
// The namespace of a job is a file nvmecr:JOB in a directory, or a whole device to
// which a symbolic link of that name leads. It is namespace 1 of the subsystem
// BASE:JOB, which lists its hosts and is linked into one port. Missing entries below
// hosts/ are created. Entries with keys from this package are removed when no subsystem
// lists them any more. Others are never removed, since they may belong to another
// administrator.
//
//	nvmet.go    the methods
//	images.go   files and devices
//	subsystem.go, hosts.go, tree.go    configfs
//
// In nvmet a key belongs to a host in all subsystems. So a new key takes effect for all
// jobs of the host, and disconnects the host from all of them. A key that this package
// has not set is never replaced.
//
// # Persistence
//
// Files and links are persistent. Configfs is not: after a boot, List reports a
// namespace as incomplete, and repeated create and expose restore it with its data. An
// empty file nvmecr-keyed:JOB records that the namespace was exposed with keys. While
// it exists, the namespace cannot be exposed without keys. An empty file
// nvmecr-away:PORT:NQN records that a subsystem is temporarily not linked into its
// port. If the program dies, the next one restores the link.
//
// # Old data
//
// A namespace in a file is a new sparse file, which reads as zeros. A device is zeroed
// (as by blkdiscard -z) before its link is created. Delete begins by renaming the file
// or link to nvmecr-freed:JOB. After that only a Delete or a Create uses it. A Create
// makes a new link to a device, and zeroes the device.
//
// # Limits of the kernel
//
// There are no rate limits. A host that is removed from the list keeps its connections.
// So Expose temporarily unlinks the subsystem from its port when it removes a host.
// This disconnects all hosts, and those still listed reconnect.
package nvmet

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
)

// Options describe the target and how to use it.
type Options struct {
	// Root is the directory of the target in configfs: /sys/kernel/config/nvmet.
	Root string
	// Dir is the directory of the namespaces: files, and links to devices.
	Dir string
	// Device is a device that Create assigns to a job as a whole, instead of a file.
	Device string
	// Listen is the address of the port to use. A missing port is created. Without
	// Listen the target must have exactly one port.
	Listen *nvmf.TransportID
	// Base is the beginning of the NQNs of jobs; "" means provision.Base.
	Base string
}

// Provisioner is a provision.Provisioner for Linux's target.
type Provisioner struct {
	o    Options
	tree Tree
	// wrap executes every change of the tree and of the directory. Tests replace it to
	// interrupt changes.
	wrap func(change func() error) error
	// sync makes the names in a directory durable. Tests replace it to examine the
	// directory.
	sync func(dir string) error

	mu sync.Mutex // held during calls
}

// New returns a provisioner.
func New(o Options) *Provisioner { return newWith(o, directory(o.Root)) }

func newWith(o Options, tree Tree) *Provisioner {
	if o.Base == "" {
		o.Base = provision.Base
	}
	return &Provisioner{o: o, tree: tree, wrap: func(change func() error) error { return change() }, sync: syncDir}
}

// Close does nothing.
func (p *Provisioner) Close() error { return nil }

// Create creates a file and a subsystem for it.
func (p *Provisioner) Create(_ context.Context, job string, size nvmf.Bytes) (provision.Namespace, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.create(job, size)
	if err != nil {
		return provision.Namespace{}, about(job, err)
	}
	return n, nil
}

func (p *Provisioner) create(job string, size nvmf.Bytes) (provision.Namespace, error) {
	var none provision.Namespace
	err := errors.Join(provision.CheckJob(job), provision.CheckSize(job, size))
	if err == nil {
		err = p.prepare()
	}
	if err == nil {
		err = p.strange(job)
	}
	if err != nil {
		return none, err
	}
	have, live, err := p.imageSize(job)
	if err != nil {
		return none, err
	}
	if !live && p.o.Listen == nil { // before an image is created, which would be left behind
		if _, err := p.choosePort(); err != nil {
			return none, err
		}
	}
	size = size.AlignUp(blockSize)
	switch {
	case !live:
		// Remains of an interrupted Delete, even a subsystem with its list of hosts alone, must not
		// become part of the new namespace.
		err = p.finish(job)
		if err == nil {
			err = p.makeImage(job, size)
		}
	case have != size:
		err = &provision.SizeError{Job: job, Have: have, Want: size}
	}
	if err == nil {
		err = p.serve(job)
	}
	if err != nil {
		return none, err
	}
	return p.describe(job)
}

// Expose sets the hosts of a job's subsystem.
func (p *Provisioner) Expose(_ context.Context, job string, hosts []string, keys map[string]dhchap.Keys) error {
	hosts, err := provision.CheckHosts(job, hosts)
	if err == nil {
		err = provision.CheckJob(job)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, live, err := p.imageSize(job)
	switch {
	case err != nil:
		return about(job, err)
	case !live:
		return provision.NoNamespace(job)
	case !p.enabled(job):
		return provision.NotServed(job)
	}
	have, err := p.tree.List(allowedHosts(provision.NQN(p.o.Base, job)))
	if err != nil {
		return about(job, err)
	}
	locked, err := p.locked(job)
	if err != nil {
		return about(job, err)
	}
	if err := provision.CheckKeys(job, hosts, keys, p.keyed, locked); err != nil {
		return err
	}
	return about(job, p.alone(func() error { return p.expose(job, have, hosts, keys) }))
}

// Limit fails, since the kernel's target has no rate limits.
func (p *Provisioner) Limit(_ context.Context, job string, _ nvmf.Bytes) error {
	if err := provision.CheckJob(job); err != nil {
		return err
	}
	return fmt.Errorf("job %s: a rate limit: %w: Linux's nvmet has none; use SPDK or nvmecr target, or limit the hosts", job, provision.ErrUnsupported)
}

// Delete renames the image of a job, and removes it with its subsystem.
func (p *Provisioner) Delete(_ context.Context, job string) error {
	if err := provision.CheckJob(job); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.prepare()
	if err == nil {
		err = p.strange(job)
	}
	if err == nil {
		err = p.freeImage(job)
	}
	if err == nil {
		err = p.finish(job)
	}
	return about(job, err)
}

// finish executes the steps of a Delete after the renaming.
func (p *Provisioner) finish(job string) error {
	if err := p.tearDown(provision.NQN(p.o.Base, job)); err != nil {
		return err
	}
	if err := p.alone(p.forgetHosts); err != nil {
		return err
	}
	if err := p.unlock(job); err != nil {
		return err
	}
	return p.removeImage(job)
}

// List returns all jobs that have an image or a subsystem.
func (p *Provisioner) List(context.Context) ([]provision.Namespace, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.prepare(); err != nil {
		return nil, err
	}
	jobs, err := p.images()
	if err != nil {
		return nil, err
	}
	subsystems, err := p.tree.List("subsystems")
	if err != nil {
		return nil, err
	}
	for _, nqn := range subsystems {
		if job := provision.JobOf(p.o.Base, nqn); job != "" {
			jobs[job] = true
		}
	}
	list := []provision.Namespace{}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		n, err := p.describe(job)
		if err != nil { // one error must not hide the other jobs
			n = provision.Namespace{Job: job, State: provision.Damaged, Hosts: []string{}, Problem: about(job, err).Error()}
		}
		list = append(list, n)
	}
	return list, nil
}

// describe returns the namespace of a job.
func (p *Provisioner) describe(job string) (provision.Namespace, error) {
	n := provision.Namespace{Job: job, State: provision.Freed, Hosts: []string{}}
	size, live, err := p.imageSize(job)
	if err != nil || !live {
		return n, err
	}
	n.Size, n.State = size, provision.Incomplete
	nqn := provision.NQN(p.o.Base, job)
	if hosts, err := p.tree.List(allowedHosts(nqn)); err == nil {
		n.Hosts = append(n.Hosts, hosts...)
		slices.Sort(n.Hosts)
		n.Authenticate = slices.ContainsFunc(hosts, p.keyed)
	}
	if !p.enabled(job) {
		return n, nil
	}
	ports, err := p.portsOf(nqn)
	for _, port := range ports {
		id, err := p.portAddress(port)
		if err != nil {
			continue // an unknown transport
		}
		id.SubNQN, id.NSID = nqn, 1
		n.Targets = append(n.Targets, id)
	}
	if len(n.Targets) > 0 {
		n.State = provision.Ready
	}
	return n, err
}

// about adds the job to an error that does not name it.
func about(job string, err error) error {
	switch {
	case err == nil, errors.As(err, new(*provision.SizeError)), errors.Is(err, provision.ErrInvalid):
		return err
	}
	return fmt.Errorf("job %s: %w", job, err)
}
