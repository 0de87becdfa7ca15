package target

import (
	"time"

	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
)

// A queue of a host that has a key is barred from Connect on: every command
// but those of the authentication is refused. The queue becomes part of its
// controller once the host is authenticated, so that another host which knows the
// NQN cannot take the queue ids of this one. A host may authenticate again later; the
// queue stays usable meanwhile, unless the authentication fails.

// prepareAuth validates Authentication Send and Receive before their data.
func (c *conn) prepareAuth(m *command) nvme.Status {
	s := m.sqe.Security()
	if s.Protocol != nvme.SecurityProtocolNVMe || s.Specific != nvme.SecuritySpecificAuth ||
		s.Length == 0 || s.Length > adminCapsule || s.Length != m.sqe.SGL().Length() {
		return nvme.StatusInvalidField | nvme.DNR
	}
	if m.sqe.FabricsType() == nvme.FabricsAuthReceive {
		return 0
	}
	return m.expect(1)
}

// authSend accepts a message of the host. An error in it is reported in the answer to the next
// Authentication Receive.
func (c *conn) authSend(m *command) nvme.Status {
	if c.auth == nil {
		c.auth = dhchap.NewController(dhchap.Config{HostNQN: c.ctrl.host.NQN, SubNQN: c.ctrl.sub.nqn, Keys: *c.ctrl.keys, Offer: c.target.auth})
	}
	if !c.compute(func() { c.auth.Take(m.into) }) {
		return nvme.StatusInternalError
	}
	return c.checkAuth()
}

// authReceive answers with the next message for the host. The answer fills the whole buffer of the
// host, because some hosts count the bytes.
func (c *conn) authReceive(m *command) nvme.Status {
	if c.auth == nil {
		return nvme.StatusCommandSequence | nvme.DNR
	}
	if c.auth.Err() != nil && !c.refused {
		c.holdBack()
	}
	answer := make([]byte, m.sqe.Security().Length)
	var message []byte
	if !c.compute(func() { message = c.auth.Give(len(answer)) }) {
		return nvme.StatusInternalError
	}
	status := c.checkAuth()
	if message == nil {
		return nvme.StatusInvalidField | nvme.DNR
	}
	if status != 0 {
		return status
	}
	copy(answer, message)
	return m.reply(answer)
}

// compute runs a step of the authentication. An expensive step first waits for one of the slots for
// computations. compute returns false, and does not run the step, if the connection is to end.
func (c *conn) compute(step func()) bool {
	if !c.auth.Expensive() {
		step()
		return true
	}
	if !c.awaitTurn() {
		return false
	}
	defer func() { <-c.target.exchanges }()
	if c.unwanted() {
		return false
	}
	step()
	return true
}

// awaitTurn waits for a slot for computations, and returns false if the connection is to end first.
// Meanwhile the connection counts as asleep, and can be closed at any time.
func (c *conn) awaitTurn() bool {
	c.target.running.Add(-1)
	defer c.target.running.Add(1)
	for !c.unwanted() {
		select {
		case c.target.exchanges <- struct{}{}:
			return true
		case <-c.woken:
		}
	}
	return false
}

// holdBackFor is the delay of the answer to a wrong proof. It slows down hosts that guess keys.
const holdBackFor = time.Second

// holdBack waits for holdBackFor, or until the connection is to end.
func (c *conn) holdBack() {
	c.target.running.Add(-1)
	defer c.target.running.Add(1)
	for wait := time.After(holdBackFor); !c.unwanted(); {
		select {
		case <-wait:
			return
		case <-c.woken:
		}
	}
}

// unwanted reports whether the connection is to end even if the authentication succeeds.
func (c *conn) unwanted() bool {
	return c.cut.Load() || c.barred && (c.overdue.Load() || c.closing.Load())
}

// failureTimeout is the time that a refused host has to read the reason. A host that polls, as
// SPDK's does, could otherwise find the message and the end of the connection together, and look
// only at the end.
const failureTimeout = 100 * time.Millisecond

// checkAuth acts on the state of the authentication.
func (c *conn) checkAuth() nvme.Status {
	switch {
	case c.refused:
		c.leaving = true
	case c.auth.Ended():
		if c.refused = c.barred; c.refused {
			c.patience.Reset(failureTimeout)
		} else {
			c.leaving = true
		}
		c.target.log.Warn("target: authentication failed", "nqn", c.ctrl.sub.nqn, "host", c.ctrl.host.NQN,
			"controller", c.ctrl.id, "queue", c.qid, "peer", c.peer.String(), "err", c.auth.Err())
	case c.auth.Authenticated():
		c.auth = nil
		if c.barred {
			return c.admit()
		}
	}
	return 0
}

// admit makes the queue one whose commands are executed.
func (c *conn) admit() nvme.Status {
	if c.qid != 0 {
		if old, status := c.ctrl.join(c, c.qid); old != nil || status != 0 {
			c.leaving = true
			return nvme.StatusCommandSequence | nvme.DNR
		}
		c.in.rules.MaxCapsuleData = max(c.target.inCapsule, adminCapsule)
	} else {
		c.target.log.Info("target: host authenticated", "nqn", c.ctrl.sub.nqn, "host", c.ctrl.host.NQN, "controller", c.ctrl.id)
	}
	c.barred = false
	c.admitted()
	return 0
}
