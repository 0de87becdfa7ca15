package target

import (
	"slices"
	"sync"
	"sync/atomic"

	"nvmecr/nvmf/nvme"
)

// fence keeps hosts from a namespace that another one has reserved.
//
// The data path loads only guard, once for each command; it is nil without a
// reservation. The connection that changes the reservation asks every other connection
// to end the commands that are forbidden from now on, and completes its own command
// when all have answered. A connection answers from its own thread between two steps,
// when it executes no command: commands whose data is still arriving fail, and the rest
// of their data is dropped. No thread blocks meanwhile, so hosts that preempt each
// other do not deadlock.
type fence struct {
	guard atomic.Pointer[guard] // stored with mu held

	mu       sync.Mutex // guards the following fields
	registry registry
	users    map[*attachment]struct{}
	// asked counts the attachments with asked set: connections that have not
	// answered yet.
	asked   int
	waiting []waiter
}

// waiter is a command that completes when all attachments have answered.
type waiter struct {
	conn *conn
	slot uint16
}

// enter registers a connection that starts to use the namespace.
func (f *fence) enter(a *attachment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users == nil {
		f.users = map[*attachment]struct{}{}
	}
	f.users[a] = struct{}{}
}

// leave removes a connection that executes no more commands of the namespace.
func (f *fence) leave(a *attachment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.users, a)
	f.waiting = slices.DeleteFunc(f.waiting, func(w waiter) bool { return w.conn == a.conn })
	if a.asked.Load() {
		f.answered(a)
	}
}

// answered notes that a connection has ended the commands that it was asked to end. f.mu is held.
func (f *fence) answered(a *attachment) {
	a.asked.Store(false)
	a.abort = false
	if f.asked--; f.asked > 0 {
		return
	}
	for _, w := range f.waiting {
		w.conn.resume(w.slot)
	}
	f.waiting = nil
}

// ask demands that the connections of all hosts but one end the commands that the guard forbids
// them. Connections of aborted hosts have to end all commands that change the namespace. f.mu is
// held.
func (f *fence) ask(except hostID, aborted []hostID) {
	g := f.guard.Load()
	for a := range f.users {
		host := a.conn.ctrl.host.ID
		abort := slices.Contains(aborted, host)
		if host == except || !abort && g.writes(host) {
			continue
		}
		a.abort = a.abort || abort
		a.demands++
		if !a.asked.Swap(true) {
			f.asked++
		}
		a.conn.wake()
	}
}

// prepareReservation says what data a reservation command has.
func (c *conn) prepareReservation(m *command) nvme.Status {
	if c.target.noReservations {
		return nvme.StatusInvalidOpcode | nvme.DNR
	}
	switch m.sqe.Opcode() {
	case nvme.IOReservationReport:
		return 0
	case nvme.IOReservationRelease:
		return m.expect(nvme.ReservationKeySize)
	}
	return m.expect(nvme.ReservationKeysSize)
}

// isReservation reports whether an opcode of an I/O queue is one of the four reservation commands.
func isReservation(opcode uint8) bool {
	switch opcode {
	case nvme.IOReservationReg, nvme.IOReservationReport, nvme.IOReservationAcquire, nvme.IOReservationRelease:
		return true
	}
	return false
}

// reserve executes a reservation command. It returns true if the command has
// to wait for other connections; serveFences completes it then.
func (c *conn) reserve(slot uint16) (waits bool) {
	m := &c.commands[slot]
	f, host, r := &m.at.fence, c.ctrl.host.ID, m.sqe.Reservation()
	f.mu.Lock()
	defer f.mu.Unlock()
	var aborted []hostID
	switch op := m.sqe.Opcode(); {
	case op == nvme.IOReservationReport:
		m.status = m.report(&f.registry)
		return false
	case host == hostID{}: // the identifier zero, which many hosts may have
		m.status = nvme.StatusOperationDenied | nvme.DNR
	case op == nvme.IOReservationReg:
		m.status = f.registry.register(host, r, (*nvme.ReservationKeys)(m.into))
	case op == nvme.IOReservationRelease:
		m.status = f.registry.release(host, r, (*nvme.ReservationKey)(m.into))
	default:
		aborted, m.status = f.registry.acquire(host, r, (*nvme.ReservationKeys)(m.into))
		if r.Action != nvme.ReservationPreemptAbort {
			aborted = nil // forbidden commands end all the same
		}
	}
	if g := f.registry.guard(); !g.same(f.guard.Load()) || len(aborted) > 0 {
		f.guard.Store(g)
		f.ask(host, aborted)
	}
	// A command that changed nothing waits as well: its host may have sent it to learn whether an
	// earlier one, of another connection, is complete.
	if waits = m.status == 0 && f.asked > 0; waits {
		f.waiting = append(f.waiting, waiter{c, slot})
	}
	return waits
}

// report is Reservation Report. All hosts here have 128-bit identifiers, which only the extended
// form holds. The rest of the host's buffer is filled with zeros, up to the length of the longest
// report.
func (m *command) report(r *registry) nvme.Status {
	length, extended := m.sqe.ReservationReport()
	if !extended {
		return nvme.StatusHostIDInconsistent | nvme.DNR
	}
	b := r.report().Append(make([]byte, 0, maxReport))
	return m.reply(b[:min(length, maxReport)])
}

// resume lets a waiting command complete. Any thread may call it.
func (c *conn) resume(slot uint16) {
	c.mu.Lock()
	c.resumed = append(c.resumed, slot)
	c.mu.Unlock()
	c.wake()
}

// serveFences answers the demands of other connections, and completes the commands whose demands
// they have answered.
func (c *conn) serveFences() {
	for _, a := range c.attached {
		if a.asked.Load() {
			c.answer(a)
		}
	}
	c.mu.Lock()
	resumed := c.resumed
	c.resumed = nil
	c.mu.Unlock()
	for _, slot := range resumed {
		c.out.push(slot, false)
	}
}

// answer ends the commands of a namespace that are forbidden now. Writes are executed when their
// data has arrived, reads when they are sent.
func (c *conn) answer(a *attachment) {
	a.fence.mu.Lock()
	abort, demands, g := a.abort, a.demands, a.fence.guard.Load()
	a.fence.mu.Unlock()
	host := c.ctrl.host.ID
	writes, reads := !abort && g.writes(host), g.reads(host)
	for i := range c.commands {
		m := &c.commands[i]
		if m.at != a || m.status != 0 {
			continue
		}
		switch m.sqe.Opcode() {
		case nvme.IOWrite, nvme.IODSM:
			if !writes && m.received < m.want {
				c.abortWrite(uint16(i))
			}
		case nvme.IORead:
			if !reads && !c.abortRead(uint16(i)) {
				c.cut.Store(true) // and the end of the connection answers
				return
			}
		}
	}
	a.fence.mu.Lock()
	defer a.fence.mu.Unlock()
	// If the fence has asked again meanwhile, another answer is due: more may be forbidden now.
	if a.demands == demands {
		a.fence.answered(a)
	}
}

// abortWrite fails a command whose data has not arrived completely. A part of the data
// may have reached the namespace, so the status is not Reservation Conflict.
func (c *conn) abortWrite(slot uint16) {
	c.commands[slot].status = nvme.StatusPreemptAbort | nvme.DNR
	if c.in.phase == inData && c.in.slot == slot {
		c.in.place = nil
	}
}

// abortRead fails a read of which nothing has been sent. It returns false if the memory of the
// namespace is being sent.
func (c *conn) abortRead(slot uint16) bool {
	m := &c.commands[slot]
	for _, o := range c.out.batch {
		if o.slot == slot {
			return c.copies(m)
		}
	}
	m.status = nvme.StatusReservation | nvme.DNR
	return true
}

// getReservationFeature says that hosts are not notified of changes, which they can see in a
// report, and that reservations do not persist.
func (c *conn) getReservationFeature(m *command) nvme.Status {
	if s := c.reservationFeature(m); s != 0 {
		return s
	}
	if uint8(m.sqe.CDW(10)) == nvme.FeatureReservationNotice {
		m.result = nvme.ReservationNoticeMask
	}
	return 0
}

// setReservationFeature accepts no other values.
func (c *conn) setReservationFeature(m *command) nvme.Status {
	if s := c.reservationFeature(m); s != 0 {
		return s
	}
	fixed := uint32(0)
	if uint8(m.sqe.CDW(10)) == nvme.FeatureReservationNotice {
		fixed = nvme.ReservationNoticeMask
	}
	if m.sqe.CDW(11) != fixed {
		return nvme.StatusFeatureNotChangable | nvme.DNR
	}
	return 0
}

// reservationFeature checks that there is such a feature and namespace.
func (c *conn) reservationFeature(m *command) nvme.Status {
	if c.target.noReservations {
		return nvme.StatusInvalidField | nvme.DNR
	}
	if id := m.sqe.NSID(); id != 0xffffffff && !slices.Contains(c.visible(), id) {
		return nvme.StatusInvalidNamespace | nvme.DNR
	}
	return 0
}
