package tcp

import (
	"context"
	"fmt"

	"nvmecr/nvmf"
)

// A Device is a namespace of an NVMe subsystem over TCP. It implements
// nvmf.Device and is safe for concurrent use.
type Device struct {
	id       nvmf.TransportID
	opts     Options
	identity nvmf.Identity

	// mu is a lock whose holder can be waited for with a context. It guards the
	// following fields, and is held during a reconnection, which other queues then share.
	mu     chan struct{}
	ctl    *controller
	closed bool
}

var _ nvmf.Device = (*Device)(nil)

// Open connects to the controller of id.SubNQN, and identifies namespace
// id.NSID. Errors wrap nvmf.ErrUnreachable, ErrNoSubsystem, ErrHostRefused,
// ErrNoNamespace or ErrUnsupported where they apply.
func Open(ctx context.Context, id nvmf.TransportID, o Options) (*Device, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", id, err)
	}
	d := &Device{id: id, opts: o, mu: make(chan struct{}, 1)}
	if d.ctl, err = associate(ctx, id, &d.opts, id.SubNQN); err != nil {
		return nil, fmt.Errorf("opening %s: %w", id, err)
	}
	identity, err := d.ctl.namespace(&d.opts, id)
	if err != nil {
		d.ctl.close()
		return nil, fmt.Errorf("opening %s: %w", id, err)
	}
	d.identity = *identity
	return d, nil
}

// Identity returns the identity of the namespace, which Open has read.
func (d *Device) Identity() *nvmf.Identity { return &d.identity }

// Close ends the association with the controller, and with it every queue
// that is still open. A second Close does nothing.
func (d *Device) Close() error {
	d.mu <- struct{}{}
	defer d.unlock()
	if !d.closed {
		d.closed = true
		d.ctl.close()
	}
	return nil
}

// lock takes d.mu unless ctx ends first.
func (d *Device) lock(ctx context.Context) error {
	select {
	case d.mu <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.closed {
		d.unlock()
		return nvmf.ErrClosed
	}
	return nil
}

func (d *Device) unlock() { <-d.mu }
