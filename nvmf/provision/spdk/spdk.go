// Package spdk provisions namespaces of an SPDK target (nvmf_tgt) through its JSON-RPC
// socket.
//
// The namespace of a job is a logical volume nvmecr:JOB in a logical volume store. It
// is namespace 1 of the subsystem BASE:JOB, which lists its hosts. The target must have
// a TCP transport and the store; docs/administration.md says how to create them.
//
// # Persistence
//
// Logical volumes are on the device. Subsystems and limits are in the target's memory.
// After a restart of the target, List reports a namespace as incomplete, and repeated
// create, expose and limit restore it with its data.
//
// The keys of hosts are files in Options.Keys. Their names in SPDK's keyring are
// nvmecr.JOB.DIGEST; the names of the files begin with the UUID of the store. The
// digest depends on the key, so a new key has a new name, and a host has either the old
// key or the new one. A volume whose job was exposed with keys is named
// nvmecr-keyed:JOB. While it has that name, the job cannot be exposed without keys.
//
// # Old data
//
// Volumes are created with clear_method write_zeroes: SPDK zeroes their blocks when it
// deletes them. SPDK also clears the store when the store is created. Delete begins by
// renaming the volume to nvmecr-freed:JOB. A target that dies within bdev_lvol_delete
// has freed the blocks, but not zeroed all of them. So a volume nvmecr-zeroing:JOB
// exists during the deletion. If such a volume is found later, all free space is zeroed
// before it is used (zeroing.go). Data of other programs' volumes with another
// clear_method is not cleared.
package spdk

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
)

// patience is the time limit of calls other than those that clear storage.
const patience = time.Minute

// Options describe the target and how to use it.
type Options struct {
	// Socket is the path of the target's RPC socket.
	Socket string
	// Store is the name of the logical volume store; "" means the only one.
	Store string
	// Listen is the address at which new subsystems listen: transport, family, address
	// and service. Without it Create fails if it needs a new subsystem.
	Listen *nvmf.TransportID
	// Base is the beginning of the NQNs of jobs; "" means provision.Base.
	Base string
	// Keys is a directory for the keys of hosts. SPDK reads them from files in it
	// whenever it needs them. Without Keys hosts cannot have keys.
	Keys string
}

// Provisioner is a provision.Provisioner for an SPDK target.
type Provisioner struct {
	o   Options
	rpc *jsonrpc.Client
}

// New returns a provisioner. It connects when it is first used.
func New(o Options) *Provisioner {
	if o.Base == "" {
		o.Base = provision.Base
	}
	return &Provisioner{o: o, rpc: jsonrpc.NewClient(o.Socket)}
}

// Close closes the connection.
func (p *Provisioner) Close() error { return p.rpc.Close() }

// object has the parameters of a call.
type object map[string]any

// call calls a method that takes at most patience.
func (p *Provisioner) call(ctx context.Context, method string, params, result any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.explain(p.rpc.Call(ctx, method, params, result))
}

// explain adds the remedy to an error if it is known.
func (p *Provisioner) explain(err error) error {
	var e *jsonrpc.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.Code == jsonrpc.CodeMethodNotFound:
		return fmt.Errorf("the program at %s does not have method %s, is it SPDK's nvmf_tgt, and initialised?: %w", p.o.Socket, e.Method, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: start nvmf_tgt, or name its socket (its option -r)", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: become the user that nvmf_tgt runs as", err)
	}
	return err
}

// Create creates a logical volume and a subsystem for it.
func (p *Provisioner) Create(ctx context.Context, job string, size nvmf.Bytes) (provision.Namespace, error) {
	n, err := p.create(ctx, job, size)
	if err != nil {
		return provision.Namespace{}, about(job, err)
	}
	return n, nil
}

func (p *Provisioner) create(ctx context.Context, job string, size nvmf.Bytes) (provision.Namespace, error) {
	var none provision.Namespace
	if err := errors.Join(provision.CheckJob(job), provision.CheckSize(job, size)); err != nil {
		return none, err
	}
	p, end := p.session()
	defer end()
	v, err := p.look(ctx)
	if err == nil {
		err = v.strange[job]
	}
	if err != nil {
		return none, err
	}
	// Fail before a volume is created, which would be left behind.
	if s := v.subsystems[job]; p.o.Listen == nil && (s == nil || len(s.Listen) == 0) {
		return none, errNowhere
	}
	// Two programs that ran at the same time have left both volumes.
	if v.live[job] != nil && v.freed[job] != nil {
		if err := p.deleteVolume(ctx, v, job); err != nil {
			return none, err
		}
	}
	// Remains of an interrupted Delete, even a subsystem with its list of hosts alone, must not
	// become part of the new namespace.
	if v.live[job] == nil && (v.freed[job] != nil || v.zeroing[job] != nil || v.subsystems[job] != nil) {
		if err := p.finish(ctx, v, job); err != nil {
			return none, err
		}
		if v, err = p.look(ctx); err != nil {
			return none, err
		}
	}
	size = v.store.round(size)
	if l := v.live[job]; l == nil {
		if v, err = p.createVolume(ctx, v, job, size); err != nil {
			return none, err
		}
	} else if l.size() != size {
		return none, &provision.SizeError{Job: job, Have: l.size(), Want: size}
	}
	if v.live[job] == nil {
		return none, fmt.Errorf("the volume that was just made is gone, who else deletes it?: %w", provision.ErrIncomplete)
	}
	if err := p.serve(ctx, v, job); err != nil {
		return none, err
	}
	if v, err = p.look(ctx); err != nil {
		return none, err
	}
	n := v.describe(job)
	if n.State != provision.Ready {
		return none, provision.NotServed(job)
	}
	return n, nil
}

// createVolume creates the volume of a job from zeroed clusters.
func (p *Provisioner) createVolume(ctx context.Context, v *view, job string, size nvmf.Bytes) (*view, error) {
	err := v.store.checkClusters()
	if err == nil && len(v.zeroing) > 0 {
		if err = p.settle(ctx, "", false); err == nil {
			v, err = p.look(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	if free := v.store.free(); size > free {
		return nil, fmt.Errorf("%w for %s: store %s has %s left", provision.ErrNoSpace, size, v.store.Name, free)
	}
	if err := p.makeVolume(ctx, v.store, liveName+job, size); err != nil {
		return nil, err
	}
	return p.look(ctx)
}

// serve creates the missing parts of a job's subsystem. It admits no host.
func (p *Provisioner) serve(ctx context.Context, v *view, job string) error {
	nqn := provision.NQN(p.o.Base, job)
	s := v.subsystems[job]
	if s == nil {
		err := p.call(ctx, "nvmf_create_subsystem", object{
			"nqn": nqn, "serial_number": serial(nqn), "model_number": "nvmecr job", "allow_any_host": false, "max_namespaces": 1,
		}, nil)
		if err != nil {
			return err
		}
		s = &subsystem{}
	}
	if s.AllowAnyHost {
		if err := p.call(ctx, "nvmf_subsystem_allow_any_host", object{"nqn": nqn, "allow_any_host": false}, nil); err != nil {
			return err
		}
	}
	switch {
	case len(s.Namespaces) == 0:
		l := v.live[job]
		err := p.call(ctx, "nvmf_subsystem_add_ns", object{
			"nqn": nqn, "namespace": object{"nsid": 1, "bdev_name": l.Name, "uuid": l.UUID},
		}, nil)
		if err != nil {
			return err
		}
	case !s.serves(v.live[job]):
		return fmt.Errorf("subsystem %s has another namespace than volume %s: delete one of them with rpc.py", nqn, v.live[job].Name)
	}
	return p.listen(ctx, s, nqn)
}

// errNowhere: neither an option nor a subsystem has an address to listen at.
var errNowhere = fmt.Errorf("%w: the target has to listen somewhere: add ?listen=ADDRESS:PORT, the address at which the hosts find it", provision.ErrInvalid)

func (p *Provisioner) listen(ctx context.Context, s *subsystem, nqn string) error {
	l := p.o.Listen
	if l == nil && len(s.Listen) > 0 {
		return nil
	}
	if l == nil {
		return errNowhere
	}
	at := address{TRType: string(l.Transport), AdrFam: l.Family, TRAddr: l.Address, TRSvcID: l.Service}
	for _, have := range s.Listen {
		if have.same(at) {
			return nil
		}
	}
	err := p.call(ctx, "nvmf_subsystem_add_listener", object{"nqn": nqn, "listen_address": at}, nil)
	var e *jsonrpc.Error
	if errors.As(err, &e) {
		err = fmt.Errorf("cannot listen at %s: does the target have a TCP transport (rpc.py nvmf_create_transport -t TCP -i 1048576), and this machine the address?: %w", l.HostPort(), err)
	}
	return err
}

// serial returns a serial number that does not change when the target restarts.
func serial(nqn string) string { return fmt.Sprintf("%X", sha256.Sum256([]byte(nqn)))[:20] }

// Expose sets the hosts of a job's subsystem. It removes hosts first, which disconnects
// them.
func (p *Provisioner) Expose(ctx context.Context, job string, hosts []string, keys map[string]dhchap.Keys) error {
	hosts, err := provision.CheckHosts(job, hosts)
	if err == nil {
		err = provision.CheckJob(job)
	}
	if err != nil {
		return err
	}
	return about(job, p.expose(ctx, job, hosts, keys))
}

func (p *Provisioner) expose(ctx context.Context, job string, hosts []string, keys map[string]dhchap.Keys) error {
	v, err := p.look(ctx)
	if err != nil {
		return err
	}
	switch n := v.describe(job); {
	case v.live[job] == nil:
		return provision.NoNamespace(job)
	case n.State != provision.Ready:
		return provision.NotServed(job)
	}
	s, nqn := v.subsystems[job], provision.NQN(p.o.Base, job)
	keyed := func(host string) bool { h := s.host(host); return h != nil && h.Key != "" }
	files, err := p.keyFiles(v.store, job)
	if err != nil {
		return err
	}
	locked := v.keyed[job] || len(files) > 0 || slices.ContainsFunc(s.Hosts, func(h hostName) bool { return h.Key != "" })
	if err := provision.CheckKeys(job, hosts, keys, keyed, locked); err != nil {
		return err
	}
	var want []hostName
	for _, h := range hosts {
		switch have := s.host(h); {
		case keys != nil:
			want = append(want, keyNames(v.store, job, h, keys[h]))
		case have != nil:
			want = append(want, *have)
		default:
			want = append(want, hostName{NQN: h})
		}
	}
	if err := p.lock(ctx, v, job, slices.ContainsFunc(want, func(h hostName) bool { return h.Key != "" })); err != nil {
		return err
	}
	if keys != nil {
		if err := p.addKeys(ctx, v.store, job, hosts, keys); err != nil {
			return err
		}
	}
	for _, h := range s.Hosts {
		if !slices.Contains(want, h) {
			if err := p.call(ctx, "nvmf_subsystem_remove_host", object{"nqn": nqn, "host": h.NQN}, nil); err != nil {
				return err
			}
		}
	}
	for _, h := range want {
		if !slices.Contains(s.Hosts, h) {
			if err := p.call(ctx, "nvmf_subsystem_add_host", h.of(nqn), nil); err != nil {
				return err
			}
		}
	}
	if err := p.dropKeys(ctx, v.store, job, want); err != nil || len(hosts) > 0 || !v.keyed[job] {
		return err
	}
	return p.rename(ctx, v.live[job], liveName+job)
}

// lock gives the volume of a job the name that records whether its hosts have keys. The
// name survives a restart of the target, which loses the subsystems.
func (p *Provisioner) lock(ctx context.Context, v *view, job string, keyed bool) error {
	if !keyed || v.keyed[job] {
		return nil
	}
	return p.rename(ctx, v.live[job], keyedName+job)
}

// Limit sets the rate limit of a job's volume. SPDK accepts whole MiB per second.
func (p *Provisioner) Limit(ctx context.Context, job string, rate nvmf.Bytes) error {
	if err := errors.Join(provision.CheckJob(job), provision.CheckRate(job, rate)); err != nil {
		return err
	}
	if rate%nvmf.MiB != 0 {
		down := rate.AlignDown(nvmf.MiB)
		return fmt.Errorf("job %s: %w: SPDK limits to whole MiB per second: give %s or %s", job, provision.ErrInvalid, down, down+nvmf.MiB)
	}
	v, err := p.look(ctx)
	if err != nil {
		return about(job, err)
	}
	l := v.live[job]
	if l == nil {
		return provision.NoNamespace(job)
	}
	return about(job, p.call(ctx, "bdev_set_qos_limit", object{"name": l.Name, "rw_mbytes_per_sec": uint64(rate / nvmf.MiB)}, nil))
}

// Delete renames a job's volume, and then deletes it with its subsystem.
func (p *Provisioner) Delete(ctx context.Context, job string) error {
	if err := provision.CheckJob(job); err != nil {
		return err
	}
	return about(job, p.delete(ctx, job))
}

func (p *Provisioner) delete(ctx context.Context, job string) error {
	p, end := p.session()
	defer end()
	v, err := p.look(ctx)
	if err == nil {
		err = v.strange[job]
	}
	if err != nil {
		return err
	}
	// A volume that was freed before has the name for the freed volume.
	if v.freed[job] != nil && v.live[job] != nil {
		if err := p.deleteVolume(ctx, v, job); err != nil {
			return err
		}
		v.freed[job], v.zeroing[job] = nil, nil
	}
	if l := v.live[job]; l != nil {
		if err := p.rename(ctx, l, freedName+job); err != nil {
			return err
		}
		v.freed[job], v.live[job] = l, nil
	}
	return p.finish(ctx, v, job)
}

func (p *Provisioner) rename(ctx context.Context, l *volume, to string) error {
	return p.call(ctx, "bdev_lvol_rename", object{"old_name": l.Name, "new_name": to}, nil)
}

// finish executes the steps of a Delete after the renaming.
func (p *Provisioner) finish(ctx context.Context, v *view, job string) error {
	if v.subsystems[job] != nil {
		if err := p.call(ctx, "nvmf_delete_subsystem", object{"nqn": provision.NQN(p.o.Base, job)}, nil); err != nil {
			return err
		}
	}
	if err := p.dropKeys(ctx, v.store, job, nil); err != nil {
		return err
	}
	switch {
	case v.freed[job] != nil:
		return p.deleteVolume(ctx, v, job)
	case v.zeroing[job] != nil:
		return p.settle(ctx, job, false)
	}
	return nil
}

// about adds the job to an error that does not name it.
func about(job string, err error) error {
	switch {
	case err == nil, errors.As(err, new(*provision.SizeError)), errors.Is(err, provision.ErrNoNamespace),
		errors.Is(err, provision.ErrIncomplete), errors.Is(err, provision.ErrInvalid):
		return err
	}
	return fmt.Errorf("job %s: %w", job, err)
}
