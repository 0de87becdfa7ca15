//go:build spdk

package spdk

import (
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// A link has the current association with a controller, and its queues. Each Device has a
// link of its own. Only the devices of a local drive in this process share one, since the
// drive is one controller for all of them.
type link struct {
	// mu is a lock whose holder can be waited for with a context. It guards the
	// following fields, and is held during a reconnection, which other queues then share.
	mu     chan struct{}
	ctl    *association // nil: there is none
	queues []*Queue
	users  int // number of devices
	// All users of a shared drive connect as the host of the first one, in every
	// association until the last user has left. So the first user keeps its reservation.
	hostID  uuid.UUID
	hostNQN string // empty: no host connected
}

// drives has the links of local drives by address. Links are never removed.
var drives struct {
	mu    sync.Mutex
	links map[string]*link
}

// linkTo returns the link for a controller: the existing one for a drive that is in
// use, otherwise a new one.
func linkTo(id nvmf.TransportID) *link {
	if id.Transport != nvmf.PCIe {
		return &link{mu: make(chan struct{}, 1)}
	}
	drives.mu.Lock()
	defer drives.mu.Unlock()
	if drives.links == nil {
		drives.links = map[string]*link{}
	}
	address := fullAddress(id.Address)
	l := drives.links[address]
	if l == nil {
		l = &link{mu: make(chan struct{}, 1)}
		drives.links[address] = l
	}
	return l
}

// lock acquires l.mu, unless ctx ends first.
func (l *link) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case l.mu <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *link) unlock() { <-l.mu }

// connect creates an association, unless there is one that has not ended. The caller
// holds l.mu.
func (l *link) connect(ctx context.Context, id nvmf.TransportID, o *Options) (err error) {
	if l.ctl != nil && l.ctl.alive() {
		return nil
	}
	l.end(nvmf.ErrConnectionLost)
	l.ctl, err = associate(ctx, id, l.asFirst(o))
	return err
}

// asFirst returns o with the host of the first user. The caller holds l.mu.
func (l *link) asFirst(o *Options) *Options {
	if l.hostNQN == "" {
		l.hostID, l.hostNQN = o.HostID, o.HostNQN
	}
	as := *o
	as.HostID, as.HostNQN = l.hostID, l.hostNQN
	return &as
}

// end removes the queue pairs of all queues, also those of other devices, and ends the
// association. The caller holds l.mu.
func (l *link) end(cause error) {
	for _, q := range l.queues {
		q.take(cause)
	}
	if l.ctl != nil {
		l.ctl.close()
		l.ctl = nil
	}
}

// leave removes the queue pairs of a device's queues, and ends the association if no other
// device uses it. The caller holds l.mu.
func (l *link) leave(d *Device) {
	l.queues = slices.DeleteFunc(l.queues, func(q *Queue) bool {
		if q.dev == d {
			q.take(nvmf.ErrClosed)
		}
		return q.dev == d
	})
	if l.users--; l.users == 0 {
		l.end(nvmf.ErrClosed)
		l.hostID, l.hostNQN = uuid.Nil, ""
	}
}
