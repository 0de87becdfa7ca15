package target

import (
	"errors"
	"slices"
	"sync/atomic"

	"nvmecr/nvmf"
)

// namespace is a Namespace that is served. Connections attach to it on first use, and
// detach once it is removed and they have no command on it. So a command costs one
// atomic load and no other atomic operation.
type namespace struct {
	id       uint32
	backing  Backing
	identity nvmf.Identity
	memory   []byte
	faulty   faultExplainer // nil where memory is always there
	hosts    []string

	fence fence
	limit atomic.Pointer[limit] // nil: none

	removed atomic.Bool
	// refs counts the attached connections, and one for the subsystem until removal. Whoever
	// releases the last reference closes the backing. A count of zero never grows again.
	refs atomic.Int64
	gone chan struct{} // closed when the backing is
	err  error         // error of closing it; read after gone
}

func newNamespace(id uint32, n Namespace) *namespace {
	s := &namespace{
		id: id, backing: n.Backing, identity: *n.Backing.Identity(), memory: n.Backing.Memory(),
		hosts: slices.Clone(n.Hosts), gone: make(chan struct{}),
	}
	s.faulty, _ = n.Backing.(faultExplainer)
	s.limit.Store(newLimit(n.Rate))
	s.refs.Store(1)
	return s
}

// acquire takes a reference unless the last one is gone.
func (n *namespace) acquire() bool {
	for {
		refs := n.refs.Load()
		if refs == 0 || n.removed.Load() {
			return false
		}
		if n.refs.CompareAndSwap(refs, refs+1) {
			return true
		}
	}
}

// release gives a reference back.
func (n *namespace) release() {
	if n.refs.Add(-1) == 0 {
		n.err = errors.Join(n.backing.Sync(0, 0), n.backing.Close())
		close(n.gone)
	}
}

// remove gives the subsystem's reference back, once.
func (n *namespace) remove() {
	if n.removed.CompareAndSwap(false, true) {
		n.release()
	}
}

// attachment is one connection's use of a namespace. It belongs to the
// connection's thread.
type attachment struct {
	*namespace
	conn *conn
	busy int // commands in flight

	// asked says that the fence waits for an answer. It changes with fence.mu held. fence.mu guards
	// demands, the number of times that the fence has asked, and abort, which says that all writes
	// have to end.
	asked   atomic.Bool
	demands uint64
	abort   bool
}

// attachment returns the connection's use of a namespace, nil if it has none. Mostly that is the
// one of the command before, which is compared first.
func (c *conn) attachment(nsid uint32) *attachment {
	if a := c.recent; a != nil && a.id == nsid {
		return a
	}
	a := c.attached[nsid]
	if a != nil {
		c.recent = a
	}
	return a
}

// detach ends the use of a namespace.
func (c *conn) detach(a *attachment) {
	delete(c.attached, a.id)
	if c.recent == a {
		c.recent = nil
	}
	a.fence.leave(a)
	a.release()
}

// attach finds a namespace for a command. It returns nil if the host sees no namespace of that id.
func (c *conn) attach(nsid uint32) *attachment {
	a := c.attachment(nsid)
	if a != nil && !a.removed.Load() {
		return a
	}
	if a != nil {
		c.detachRemoved()
		if c.attached[nsid] != nil {
			return nil // commands on the old one are in flight
		}
	}
	n := (*c.ctrl.sub.namespaces.Load())[nsid]
	if n == nil || !allowed(n.hosts, c.ctrl.host.NQN) || !n.acquire() {
		return nil
	}
	a = &attachment{namespace: n, conn: c}
	c.attached[nsid] = a
	c.waits = c.waits || a.faulty != nil
	n.fence.enter(a)
	return a
}

// detachRemoved detaches from removed namespaces that no command is in flight on.
func (c *conn) detachRemoved() {
	for _, a := range c.attached {
		if a.removed.Load() && a.busy == 0 {
			c.detach(a)
		}
	}
}

// detachAll detaches from all namespaces when the connection ends.
func (c *conn) detachAll() {
	for _, a := range c.attached {
		c.detach(a)
	}
}
