//go:build spdk

package spdk

// #include "driver.h"
import "C"

import (
	"context"
	"fmt"
	"slices"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// A Device is a namespace of an NVMe controller. It implements nvmf.Device and
// is safe for concurrent use.
type Device struct {
	id       nvmf.TransportID
	opts     Options
	identity nvmf.Identity

	link   *link
	closed bool // guarded by link.mu
}

var _ nvmf.Reserver = (*Device)(nil)

// Open connects to the controller of id, and identifies the namespace id.NSID. Errors
// wrap nvmf.ErrUnreachable, ErrNoSubsystem, ErrHostRefused, ErrAuthentication,
// ErrNoNamespace or ErrUnsupported if one of them applies.
func Open(ctx context.Context, id nvmf.TransportID, o Options) (nvmf.Reserver, error) {
	d, err := open(ctx, id, o.complete(id.Transport))
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", id, err)
	}
	return d, nil
}

func open(ctx context.Context, id nvmf.TransportID, o Options) (*Device, error) {
	switch {
	case id.Transport != nvmf.TCP && id.Transport != nvmf.RDMA && id.Transport != nvmf.PCIe:
		return nil, fmt.Errorf("transport %s: %w", id.Transport, nvmf.ErrUnsupported)
	case len(o.HostNQN) > nvme.MaxNQN:
		return nil, fmt.Errorf("host NQN is %d bytes long, at most %d are allowed", len(o.HostNQN), nvme.MaxNQN)
	}
	if err := checkKeys(id, &o); err != nil {
		return nil, err
	}
	if err := initialize(id.Transport, o.Memory); err != nil {
		return nil, err
	}
	d := &Device{id: id, opts: o, link: linkTo(id)}
	if err := d.link.lock(ctx); err != nil {
		return nil, err
	}
	defer d.link.unlock()
	d.link.users++
	if err := d.identify(ctx); err != nil {
		d.link.leave(d)
		return nil, err
	}
	return d, nil
}

// identify connects and reads the identity of the namespace. The caller holds
// d.link.mu.
func (d *Device) identify(ctx context.Context) error {
	if err := d.link.connect(ctx, d.id, &d.opts); err != nil {
		return err
	}
	a := d.link.ctl
	d.opts.QueueDepth = min(d.opts.QueueDepth, a.facts.MaxCommands)
	identity, err := d.namespace(ctx, a)
	if err != nil {
		return err
	}
	// All devices of a shared drive have the host identifier of the first one.
	identity.Reservations = identity.Reservations && a.hostID == d.opts.HostID
	d.identity = *identity
	return nil
}

// namespace returns the current identity of the namespace.
func (d *Device) namespace(ctx context.Context, a *association) (*nvmf.Identity, error) {
	limit := nvmf.Bytes(C.driver_most(a.controller, C.uint32_t(d.id.NSID)))
	w := initiator.TransferSizes{MaxTransfer: d.opts.MaxTransfer, OptimalTransfer: d.opts.OptimalTransfer}
	if limit != 0 {
		w.MaxTransfer = min(w.MaxTransfer, limit)
	}
	identity, err := a.facts.Namespace(asking{a, ctx}, d.id, w)
	if err == nil && limit == 0 {
		err = fmt.Errorf("namespace %d: %w", d.id.NSID, nvmf.ErrNoNamespace)
	}
	return identity, err
}

// Identity returns the identity that Open has read.
func (d *Device) Identity() *nvmf.Identity { return &d.identity }

// Close closes all open queues, and ends the association with the controller. A second
// Close does nothing.
func (d *Device) Close() error {
	d.link.mu <- struct{}{}
	defer d.link.unlock()
	if !d.closed {
		d.closed = true
		d.link.leave(d)
	}
	return nil
}

// lock acquires the link's lock. It fails if ctx ends first, or if the device is
// closed.
func (d *Device) lock(ctx context.Context) error {
	if err := d.link.lock(ctx); err != nil {
		return err
	}
	if d.closed {
		d.link.unlock()
		return nvmf.ErrClosed
	}
	return nil
}

// OpenQueue opens an I/O queue of up to depth commands in flight; see
// nvmf.Device.
func (d *Device) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	q, err := d.openQueue(ctx, depth)
	if err != nil {
		return nil, fmt.Errorf("opening a queue to %s: %w", d.id, err)
	}
	return q, nil
}

func (d *Device) openQueue(ctx context.Context, depth int) (*Queue, error) {
	q, err := newQueue(d, min(max(1, depth), d.opts.QueueDepth))
	if err != nil {
		return nil, err
	}
	if err := initiator.Connect(ctx, func() error { return d.attach(ctx, q) }); err != nil {
		q.release()
		return nil, err
	}
	return q, nil
}

// attach connects a queue pair for q. It uses the device's association, or a new one if
// that has ended.
func (d *Device) attach(ctx context.Context, q *Queue) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.link.unlock()
	a, err := d.association(ctx)
	if err != nil {
		return err
	}
	if err := q.connect(ctx, a); err != nil {
		return err
	}
	if !slices.Contains(d.link.queues, q) {
		d.link.queues = append(d.link.queues, q)
	}
	return nil
}

// detach removes q, which has no queue pair any more, from the link.
func (d *Device) detach(q *Queue) {
	d.link.mu <- struct{}{}
	defer d.link.unlock()
	d.link.queues = slices.DeleteFunc(d.link.queues, func(x *Queue) bool { return x == q })
}

// association returns an association that answers and has the opened namespace. The
// caller holds d.link.mu.
func (d *Device) association(ctx context.Context) (*association, error) {
	if a := d.link.ctl; a != nil && a.alive() {
		if err := d.verify(ctx, a); a.alive() || ctx.Err() != nil {
			return a, err
		}
	}
	if err := d.link.connect(ctx, d.id, &d.opts); err != nil {
		return nil, err
	}
	return d.link.ctl, d.verify(ctx, d.link.ctl)
}

// verify checks that the namespace is the one that was opened.
func (d *Device) verify(ctx context.Context, a *association) error {
	now, err := d.namespace(ctx, a)
	if err != nil {
		return err
	}
	return initiator.Verify(&d.identity, now)
}

// Reset reconnects after a loss; see nvmf.Queue and initiator.Reconnect.
func (q *Queue) Reset(ctx context.Context) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	if q.healthy() {
		return ctx.Err()
	}
	return initiator.Reconnect(ctx, q.dev.id, func() error { return q.dev.attach(ctx, q) })
}
