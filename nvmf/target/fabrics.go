package target

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"nvmecr/nvmf/nvme"
)

// prepareFabrics validates a Fabrics command before its data.
func (c *conn) prepareFabrics(m *command) nvme.Status {
	kind := m.sqe.FabricsType()
	switch {
	case kind == nvme.FabricsConnect && c.ctrl == nil:
		return m.expect(nvme.ConnectDataSize)
	case c.ctrl == nil, kind == nvme.FabricsConnect:
		return nvme.StatusCommandSequence | nvme.DNR
	case c.ctrl.keys != nil && (kind == nvme.FabricsAuthSend || kind == nvme.FabricsAuthReceive):
		return c.prepareAuth(m)
	case c.barred:
		return nvme.StatusAuthRequired | nvme.DNR
	case kind == nvme.FabricsDisconnect && c.qid != 0:
		return 0
	case (kind == nvme.FabricsPropertyGet || kind == nvme.FabricsPropertySet) && c.qid == 0:
		return 0
	}
	return nvme.StatusInvalidOpcode | nvme.DNR
}

func (c *conn) executeFabrics(m *command) nvme.Status {
	switch m.sqe.FabricsType() {
	case nvme.FabricsConnect:
		return c.connect(m)
	case nvme.FabricsDisconnect:
		c.leaving = true
		return 0
	case nvme.FabricsPropertyGet:
		return c.ctrl.propertyGet(m)
	case nvme.FabricsAuthSend:
		return c.authSend(m)
	case nvme.FabricsAuthReceive:
		return c.authReceive(m)
	}
	return c.ctrl.propertySet(m)
}

// Offsets of the fields of Connect that may be invalid.
const (
	connectQID    = 42
	connectSQSize = 44
)

// connect makes the connection a queue of a controller.
func (c *conn) connect(m *command) nvme.Status {
	r := m.sqe.Connect()
	d := (*nvme.ConnectData)(m.into)
	host := Host{NQN: d.HostNQN(), ID: d.HostID()}
	invalid := func(offset uint16, inData bool) nvme.Status {
		c.target.log.Warn("target: Connect with invalid parameters", "peer", c.peer.String(), "host", host.NQN, "nqn", d.SubNQN(),
			"queue", r.QID, "entries", int(r.SQSize)+1, "controller", d.CNTLID(), "field", offset, "inData", inData)
		m.result = nvme.ConnectInvalid(offset, inData)
		return nvme.StatusConnectInvalidParameters | nvme.DNR
	}
	switch {
	case r.RecordFormat != 0:
		return nvme.StatusConnectFormat | nvme.DNR
	case r.SQSize == 0 || r.SQSize >= maxQueue:
		return invalid(connectSQSize, false)
	case r.QID > maxIOQueues:
		return invalid(connectQID, false)
	case len(host.NQN) > nvme.MaxNQN: // some hosts send none
		return invalid(nvme.ConnectOffsetHostNQN, true)
	}
	if !c.tls.is(host.NQN, d.SubNQN()) {
		c.target.log.Warn("target: Connect of another host or subsystem than TLS was agreed for", "peer", c.peer.String(), "host", host.NQN, "nqn", d.SubNQN())
		return nvme.StatusConnectInvalidHost | nvme.DNR
	}
	var ctrl *controller
	var status nvme.Status
	if r.QID == 0 {
		if d.CNTLID() != nvme.CNTLIDDynamic {
			return invalid(nvme.ConnectOffsetCNTLID, true)
		}
		ctrl, status = c.target.newController(c, d.SubNQN(), host, r.KATO)
	} else {
		ctrl, status = c.target.joinController(c, d.CNTLID(), d.SubNQN(), host, r.QID)
	}
	switch {
	case status.Code() == nvme.StatusConnectInvalidParameters && ctrl == nil && r.QID == 0:
		return invalid(nvme.ConnectOffsetSubNQN, true)
	case status.Code() == nvme.StatusConnectInvalidParameters:
		return invalid(nvme.ConnectOffsetCNTLID, true)
	case status != 0:
		return status
	}
	c.qid, c.sqSize, c.sqHead = r.QID, r.SQSize+1, 1
	c.noSQFlow = r.Attributes&nvme.ConnectNoSQFlow != 0
	c.ctrl = ctrl
	if ctrl.keys != nil {
		c.barred = true
		m.result = nvme.ConnectResult(ctrl.id, nvme.ConnectAuthTransaction)
		return 0
	}
	if c.qid != 0 {
		c.in.rules.MaxCapsuleData = c.target.inCapsule
	}
	c.admitted()
	m.result = nvme.ConnectResult(ctrl.id, 0)
	return 0
}

// admitted marks the connection as authenticated, unless it is to the discovery
// subsystem, which every host may use.
func (c *conn) admitted() {
	c.target.mu.Lock()
	defer c.target.mu.Unlock()
	c.authenticated = c.ctrl.sub != discovery
}

// newController makes a controller for the admin queue c.
func (t *Target) newController(c *conn, nqn string, host Host, kato uint32) (*controller, nvme.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.subsystems[nqn]
	switch {
	case nqn == nvme.DiscoveryNQN:
		sub = discovery
	case t.closed:
		return nil, nvme.StatusConnectControllerBusy
	case sub == nil:
		return nil, nvme.StatusConnectInvalidParameters | nvme.DNR
	case !sub.admits(host.NQN):
		t.log.Warn("target: host is not allowed", "nqn", nqn, "host", host.NQN, "peer", c.peer.String())
		return nil, nvme.StatusConnectInvalidHost | nvme.DNR
	}
	id, ok := t.freeCNTLID()
	if !ok {
		return nil, nvme.StatusConnectControllerBusy
	}
	ctrl := newController(t, sub, host, id, c)
	if k, ok := sub.keys[host.NQN]; ok {
		ctrl.keys = &k
	}
	c.of = ctrl
	ctrl.setKeepAlive(kato)
	t.controllers[id] = ctrl
	t.log.Info("target: host connected", "nqn", nqn, "host", host.NQN, "controller", id, "peer", c.peer.String(),
		"authenticates", ctrl.keys != nil)
	return ctrl, 0
}

// freeCNTLID returns the next controller id; 0xfff0 and above are reserved.
// Target.mu is held.
func (t *Target) freeCNTLID() (uint16, bool) {
	for range 0xffef {
		if t.nextCNTLID++; t.nextCNTLID >= 0xfff0 {
			t.nextCNTLID = 1
		}
		if t.controllers[t.nextCNTLID] == nil {
			return t.nextCNTLID, true
		}
	}
	return 0, false
}

// handOver is how long a Connect waits for an older connection with the same
// queue id, which may not have noticed its end yet.
const handOver = 500 * time.Millisecond

// joinController adds the I/O queue c to the controller it names.
func (t *Target) joinController(c *conn, id uint16, nqn string, host Host, qid uint16) (*controller, nvme.Status) {
	for end := time.Now().Add(handOver); ; {
		t.mu.Lock()
		ctrl := t.controllers[id]
		if ctrl == nil || ctrl.sub.nqn != nqn || ctrl.host != host || ctrl.sub == discovery {
			t.mu.Unlock()
			return nil, nvme.StatusConnectInvalidParameters | nvme.DNR
		}
		// A host that has yet to authenticate joins after that.
		join := ctrl.join
		if ctrl.keys != nil {
			join = ctrl.canJoin
		}
		old, status := join(c, qid)
		if old == nil && status == 0 {
			c.of = ctrl
		}
		t.mu.Unlock()
		if old == nil {
			return ctrl, status
		}
		select {
		case <-old.done:
		case <-time.After(time.Until(end)):
			return nil, nvme.StatusCommandSequence | nvme.DNR
		}
	}
}

// checkNQN reports what is wrong with an NQN: the standard's form is checked,
// not that the domain exists.
func checkNQN(nqn string) error {
	switch {
	case len(nqn) > nvme.MaxNQN:
		return fmt.Errorf("NQN of %d bytes, at most %d are allowed", len(nqn), nvme.MaxNQN)
	case !strings.HasPrefix(nqn, "nqn.") || len(nqn) < 12 || !utf8.ValidString(nqn):
		return fmt.Errorf("%q is no NQN: it has to look like nqn.2014-08.org.example:name", nqn)
	}
	return nil
}
