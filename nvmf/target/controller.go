package target

import (
	"sync"
	"sync/atomic"
	"time"

	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/tlspsk"
)

// controller is the association of a host with one subsystem: an admin queue, I/O queues, and their
// common state. It ends with its admin queue.
type controller struct {
	target  *Target
	sub     *subsystem
	host    Host
	id      uint16
	started time.Time
	keys    *dhchap.Keys // nil: the host need not authenticate
	psk     tlspsk.Key   // zero: without TLS

	enabled atomic.Bool // CC.EN with CSTS.RDY, for the I/O queues

	mu     sync.Mutex // guards the following fields
	ended  bool
	admin  *conn
	queues map[uint16]*conn // I/O queues
	cc     uint32
	kato   time.Duration // 0: no keep-alive
	timer  *time.Timer

	asyncConfig uint32
	changed     []uint32 // ids of changed namespaces, for the log page
	notify      bool     // an event is due
	masked      bool     // no further event until the host has read the log page
}

// maxChanged is the length of the list of changed namespaces in the log page.
const maxChanged = 1024

func newController(t *Target, sub *subsystem, host Host, id uint16, admin *conn) *controller {
	c := &controller{target: t, sub: sub, host: host, id: id, admin: admin, started: time.Now(), queues: map[uint16]*conn{}}
	if admin.tls != nil {
		c.psk = admin.tls.psk
	}
	return c
}

// join adds an I/O queue. If the controller has a queue with that id, join returns the old one
// instead.
func (c *controller) join(q *conn, qid uint16) (old *conn, s nvme.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, s = c.occupied(qid); old == nil && s == 0 {
		c.queues[qid] = q
	}
	return old, s
}

// canJoin checks whether join would succeed, and adds nothing.
func (c *controller) canJoin(_ *conn, qid uint16) (old *conn, s nvme.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.occupied(qid)
}

// occupied returns the reason why an I/O queue cannot be added. c.mu is held.
func (c *controller) occupied(qid uint16) (old *conn, s nvme.Status) {
	switch {
	case c.ended:
		return nil, nvme.StatusConnectInvalidParameters | nvme.DNR
	case !c.enabled.Load():
		return nil, nvme.StatusCommandSequence | nvme.DNR
	case c.queues[qid] != nil:
		return c.queues[qid], 0
	}
	return nil, 0
}

// drop removes a queue that has ended. With the admin queue the controller
// ends. Target.mu is held.
func (c *controller) drop(q *conn) {
	if q.qid == 0 {
		c.end()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queues[q.qid] == q {
		delete(c.queues, q.qid)
	}
	c.admin.wake() // the admin queue may wait for the end of its I/O queues
}

// last reports whether no other queue ends with this one.
func (c *controller) last(q *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return q.qid != 0 || len(c.queues) == 0
}

// end ends the controller: its queues are told to hang up. Commands that are being executed still
// complete. Target.mu is held.
func (c *controller) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		c.target.log.Info("target: host disconnected", "nqn", c.sub.nqn, "host", c.host.NQN, "controller", c.id)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	delete(c.target.controllers, c.id)
	c.admin.hangUp()
	for _, q := range c.queues {
		q.hangUp()
	}
}

// discoveryKATO is the longest keep-alive time-out of a discovery controller in ms, also
// of one that asks for none: no host holds a controller for ever. (NVMe Base 2.0, 5.27.1.12: two
// minutes by default.)
const discoveryKATO = 120_000

// setKeepAlive starts the timer for a KATO in ms, or stops it for 0.
func (c *controller) setKeepAlive(ms uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.sub == discovery && (ms == 0 || ms > discoveryKATO) {
		ms = discoveryKATO
	}
	c.kato = time.Duration(ms) * time.Millisecond
	if ms != 0 && !c.ended {
		c.timer = time.AfterFunc(c.kato, c.expire)
	}
}

// expire runs once each KATO. If no queue of the controller has received a command
// meanwhile, the host counts as lost (traffic based keep-alive).
func (c *controller) expire() {
	c.target.mu.Lock()
	defer c.target.mu.Unlock()
	c.mu.Lock()
	alive := c.admin.traffic.Swap(false)
	for _, q := range c.queues {
		if q.traffic.Swap(false) {
			alive = true
		}
	}
	if alive && c.timer != nil && !c.ended {
		c.timer.Reset(c.kato)
	}
	gone := !alive && c.timer != nil && !c.ended
	c.mu.Unlock()
	if gone {
		c.target.log.Warn("target: keep-alive time-out", "nqn", c.sub.nqn, "host", c.host.NQN, "controller", c.id, "kato", c.kato.String())
		c.end()
	}
}

// capabilities is CAP: queues up to maxQueue, ready within 500 ms.
func capabilities() nvme.CAP { return nvme.MakeCAP(maxQueue-1, 1) }

func (c *controller) propertyGet(m *command) nvme.Status {
	offset, size, _ := m.sqe.Property()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case offset == nvme.PropertyCAP && size == 8:
		m.result = uint64(capabilities())
	case offset == nvme.PropertyVS && size == 4:
		m.result = nvme.Version14
	case offset == nvme.PropertyCC && size == 4:
		m.result = uint64(c.cc)
	case offset == nvme.PropertyCSTS && size == 4:
		m.result = uint64(c.status())
	default:
		return nvme.StatusInvalidField | nvme.DNR
	}
	return 0
}

// status is CSTS. c.mu is held.
func (c *controller) status() uint32 {
	var s uint32
	if c.cc&nvme.CCEnable != 0 {
		s |= nvme.CSTSReady
	}
	if c.cc&nvme.CCShutdownMask != 0 {
		s |= nvme.CSTSShutdown
	}
	return s
}

func (c *controller) propertySet(m *command) nvme.Status {
	offset, size, value := m.sqe.Property()
	if offset != nvme.PropertyCC || size != 4 {
		return nvme.StatusInvalidField | nvme.DNR
	}
	cc := uint32(value)
	// Entry sizes have to be 0 or those of fabrics. Command set and page size have
	// to be 0.
	if sq, cq := cc>>16&0xf, cc>>20&0xf; cc&nvme.CCEnable != 0 && (sq != 0 && sq != 6 || cq != 0 && cq != 4 || cc>>4&0x7f != 0) {
		return nvme.StatusInvalidField | nvme.DNR
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cc&nvme.CCEnable == 0 && c.cc&nvme.CCEnable != 0 {
		// A reset ends the I/O queues.
		for _, q := range c.queues {
			q.hangUp()
		}
		c.asyncConfig, c.notify, c.masked, c.changed = 0, false, false, nil
	}
	c.cc = cc
	c.enabled.Store(cc&nvme.CCEnable != 0 && cc&nvme.CCShutdownMask == 0)
	return 0
}

// Asynchronous events: namespaces that changed are the only ones.
const (
	eventNamespaces  = 1 << 8                    // in OAES and in the feature
	eventNotice      = 2 | nvme.LogChangedNS<<16 // type notice, info 0: namespace attribute changed
	eventsAreMasked  = ^uint32(eventNamespaces)  // what the feature may not set
	changedOverflow  = uint32(0xffffffff)
	asyncEventsLimit = maxEvents
)

// namespaceChanged notes an event for the host.
func (c *controller) namespaceChanged(nsid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := false
	for _, id := range c.changed {
		found = found || id == nsid || id == changedOverflow
	}
	switch {
	case found:
	case len(c.changed) == maxChanged:
		c.changed = []uint32{changedOverflow}
	default:
		c.changed = append(c.changed, nsid)
	}
	c.notify = true
	c.admin.wake()
}

// holdEvent keeps an Asynchronous Event Request until there is an event.
func (c *conn) holdEvent(slot uint16) {
	if len(c.held) == maxEvents {
		c.commands[slot].status = nvme.StatusAsyncEventLimit | nvme.DNR
		c.out.push(slot, false)
		return
	}
	c.held = append(c.held, slot)
	c.deliverEvents()
}

// deliverEvents completes a held request if an event is due.
func (c *conn) deliverEvents() {
	x := c.ctrl
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.notify || x.masked || len(c.held) == 0 || x.asyncConfig&eventNamespaces == 0 {
		return
	}
	slot := c.held[0]
	c.held = c.held[1:]
	c.commands[slot].result = eventNotice
	c.out.push(slot, false)
	x.notify, x.masked = false, true
}

// takeChanged returns the namespaces that changed. Unless retain is set, it forgets them and allows
// the next event.
func (c *controller) takeChanged(retain bool) []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.changed
	if !retain {
		c.changed, c.masked, c.notify = nil, false, false
	}
	return list
}
