//go:build spdk

package spdk

import (
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// A link is the association with a controller, one after the other, and the
// queues that it has. Each Device has one of its own, but those of a local
// drive in this process share one: it is one controller for all openings.
type link struct {
	// mu, a lock that gives up with a context, guards what follows. It is
	// held over a reconnection: the queues that come second share it.
	mu     chan struct{}
	ctl    *association // nil: there is none
	queues []*Queue
	users  int // devices
	// To a shared drive all are the host that came first, in every association
	// until none is left: what it reserves is its own still.
	hostID  uuid.UUID
	hostNQN string // empty: no host connected
}

// drives are the links of local drives, by address, for good.
var drives struct {
	mu    sync.Mutex
	links map[string]*link
}

// linkTo is the link for a controller.
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

// lock takes l.mu unless ctx ends first.
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

// connect makes an association where there is none, or it has ended. The caller
// holds l.mu.
func (l *link) connect(ctx context.Context, id nvmf.TransportID, o *Options) (err error) {
	if l.ctl != nil && l.ctl.alive() {
		return nil
	}
	l.end(nvmf.ErrConnectionLost)
	l.ctl, err = associate(ctx, id, l.asFirst(o))
	return err
}

// asFirst is o with the host that came first. The caller holds l.mu.
func (l *link) asFirst(o *Options) *Options {
	if l.hostNQN == "" {
		l.hostID, l.hostNQN = o.HostID, o.HostNQN
	}
	as := *o
	as.HostID, as.HostNQN = l.hostID, l.hostNQN
	return &as
}

// end takes the queue pairs from all queues, whosever they are, and ends the
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

// leave takes the queue pairs from the queues of a device, and ends the
// association if no other device uses it. The caller holds l.mu.
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
