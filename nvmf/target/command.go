package target

import (
	"errors"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// command is a slot for one command, from its capsule to the last byte of its
// answer. Its index is the transfer tag.
type command struct {
	sqe    nvme.SQE
	at     *attachment // namespace of an I/O command
	offset int64       // in the namespace, bytes
	// want is the number of bytes that the host sends, received the number that have arrived.
	want, received uint32
	// into is where these bytes go; nil is the memory of the namespace.
	into []byte
	// read is the number of bytes of the namespace that the host gets, answer any other data that
	// it gets.
	read   uint32
	answer []byte
	status nvme.Status
	result uint64
	r2t    bool // an R2T has been sent: H2CData may come
}

// sizeQueue allocates the slots for a queue of n commands. Before, the connection has one slot.
// This slot is still in use by the command that has admitted the host: Connect, or the last one of
// the authentication.
func (c *conn) sizeQueue(n int) {
	c.commands = append(c.commands, make([]command, n-len(c.commands))...)
	c.free = make([]uint16, 0, n)
	for i := n - 1; i > 0; i-- {
		c.free = append(c.free, uint16(i))
	}
	c.out.size(n)
}

// Limits of a discovery controller, to which every host may connect. More commands wait in the socket.
const (
	discoverySlots    = 32       // commands at a time
	discoveryTransfer = 64 << 10 // bytes of one command
	discoveryMDTS     = 4        // the same, as mdts
)

// maxUnsent limits the bytes of answers that wait to be sent on a connection; the limit of a
// discovery controller is discoveryTransfer. One command may exceed the limit.
const maxUnsent = 4 * maxTransfer

// slots is how many commands the connection takes at a time.
func (c *conn) slots() int {
	if c.discovers() {
		return min(int(c.sqSize), discoverySlots)
	}
	return int(c.sqSize)
}

// discovers reports whether this is a connection of a discovery controller.
func (c *conn) discovers() bool { return c.ctrl != nil && c.ctrl.sub == discovery }

// full reports whether no command can be taken until answers have been sent.
func (c *conn) full() bool {
	limit := maxUnsent
	if c.discovers() {
		limit = discoveryTransfer
	}
	return len(c.free) == 0 || c.unsentBytes >= limit
}

// begin starts the command of a capsule, for which there is a slot. It validates the command and
// chooses the destination of its data. If there is no data to wait for, it executes the command.
func (c *conn) begin(h pdu.Header, sqe *nvme.SQE) {
	slot := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	m := &c.commands[slot]
	*m = command{sqe: *sqe}
	if !c.traffic.Load() {
		c.traffic.Store(true)
	}
	if c.sqHead++; c.sqHead >= c.sqSize {
		c.sqHead = 0
	}
	m.status = c.prepare(m)
	if m.status == 0 {
		m.status = c.checkData(m, h)
	}
	switch {
	case h.Data > 0:
		c.in.aim(c, slot, h.Data)
	case m.status == 0 && m.want > 0:
		m.r2t = true
		c.out.push(slot, true)
	default:
		c.execute(slot)
	}
}

// prepare validates a command before its data.
func (c *conn) prepare(m *command) nvme.Status {
	sqe := &m.sqe
	switch {
	case sqe.Flags()&0x03 != 0: // FUSE
		return nvme.StatusInvalidField | nvme.DNR
	case sqe.Opcode() == nvme.AdminFabrics:
		return c.prepareFabrics(m)
	case c.ctrl == nil:
		return nvme.StatusCommandSequence | nvme.DNR
	case c.barred:
		return nvme.StatusAuthRequired | nvme.DNR
	case c.qid == 0:
		return c.prepareAdmin(m)
	case !c.ctrl.enabled.Load():
		return nvme.StatusCommandSequence | nvme.DNR
	}
	return c.prepareIO(m)
}

// expect makes a command wait for data that is not for the namespace: for all that the host sends,
// at least as many bytes as least. Some hosts send more than they need to.
func (m *command) expect(least uint32) nvme.Status {
	n := m.sqe.SGL().Length()
	if n < least || n > adminCapsule {
		return nvme.StatusSGLLengthInvalid | nvme.DNR
	}
	m.want, m.into = n, make([]byte, n)
	return 0
}

// checkData compares the data that a command expects with the lengths in its SGL and its capsule.
func (c *conn) checkData(m *command, h pdu.Header) nvme.Status {
	sgl := m.sqe.SGL()
	if m.want == 0 {
		if h.Data > 0 {
			return nvme.StatusInvalidField | nvme.DNR
		}
		if m.read > 0 && (sgl.ID() != nvme.SGLTransport || sgl.Length() < m.read) {
			return nvme.StatusSGLLengthInvalid | nvme.DNR
		}
		return 0
	}
	switch {
	case sgl.Length() != m.want:
		return nvme.StatusSGLLengthInvalid | nvme.DNR
	case sgl.ID() == nvme.SGLInCapsule && sgl.Address() != 0:
		return nvme.StatusSGLOffsetInvalid | nvme.DNR
	case sgl.ID() == nvme.SGLInCapsule && h.Data == m.want, sgl.ID() == nvme.SGLTransport && h.Data == 0:
		return 0
	}
	return nvme.StatusSGLTypeInvalid | nvme.DNR
}

// execute runs a command whose data is complete, or that has failed.
func (c *conn) execute(slot uint16) {
	m := &c.commands[slot]
	if m.status == 0 {
		switch {
		case m.sqe.Opcode() == nvme.AdminFabrics:
			m.status = c.executeFabrics(m)
		case c.qid == 0:
			if m.sqe.Opcode() == nvme.AdminAsyncEvent {
				c.holdEvent(slot)
				return
			}
			m.status = c.executeAdmin(m)
		case isReservation(m.sqe.Opcode()):
			if c.reserve(slot) {
				return
			}
		default:
			m.status = c.executeIO(m)
		}
	}
	c.unsentBytes += cap(m.answer)
	if len(c.commands) == 1 && c.ctrl != nil && !c.barred {
		c.sizeQueue(c.slots())
	}
	c.out.push(slot, false)
}

// releaseCommand frees a slot whose answer was sent.
func (c *conn) releaseCommand(slot uint16) {
	m := &c.commands[slot]
	if m.at != nil {
		m.at.busy--
	}
	c.unsentBytes -= cap(m.answer)
	*m = command{}
	c.free = append(c.free, slot)
}

// releaseCommands frees all slots when the connection ends.
func (c *conn) releaseCommands() {
	for i := range c.commands {
		if m := &c.commands[i]; m.at != nil {
			m.at.busy--
			m.at = nil
		}
	}
}

// statusOf translates an error of a Backing.
func (c *conn) statusOf(m *command, err error) nvme.Status {
	if err == nil {
		return 0 // before s, which would be allocated
	}
	var s *nvmf.StatusError
	switch {
	case errors.As(err, &s):
		status := nvme.Status(s.SC) | nvme.Status(s.SCT)<<8
		if s.DNR {
			status |= nvme.DNR
		}
		return status
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return nvme.StatusCapacityExceeded | nvme.DNR
	case errors.Is(err, unix.EROFS):
		return nvme.StatusWriteProtected | nvme.DNR
	}
	c.target.log.Error("target: namespace failed", "nqn", c.ctrl.sub.nqn, "nsid", m.sqe.NSID(),
		"command", nvmf.Opcode(m.sqe.Opcode()).String(), "offset", m.offset, "err", err)
	switch m.sqe.Opcode() {
	case nvme.IOWrite, nvme.IOWriteZeroes:
		return nvme.StatusWriteFault
	case nvme.IORead, nvme.IOVerify:
		return nvme.StatusReadError
	}
	return nvme.StatusInternalError
}

// noCommand is the error of an H2CData that no command waits for.
func noCommand(d pdu.Data) error {
	return pdu.Violation(pdu.InvalidHeaderField, 10, "H2CData for command %d with transfer tag %d that no R2T had", d.CID, d.TTag)
}

// h2c accepts the header of an H2CData.
func (c *conn) h2c(h pdu.Header, d pdu.Data) error {
	if int(d.TTag) >= len(c.commands) || !c.commands[d.TTag].r2t || c.commands[d.TTag].sqe.CID() != d.CID {
		return noCommand(d)
	}
	m := &c.commands[d.TTag]
	switch {
	case d.Offset != m.received:
		return pdu.Violation(pdu.SequenceError, 12, "H2CData at offset %d of command %d, not %d", d.Offset, d.CID, m.received)
	case d.Length > m.want-m.received:
		return pdu.Violation(pdu.TransferOutOfRange, 16, "H2CData of %d bytes at %d of command %d of %d", d.Length, d.Offset, d.CID, m.want)
	case h.Last() != (d.Length == m.want-m.received):
		return pdu.Violation(pdu.InvalidHeaderField, 1, "H2CData of %d bytes at %d of command %d of %d with LAST_PDU %t",
			d.Length, d.Offset, d.CID, m.want, h.Last())
	}
	c.in.aim(c, d.TTag, d.Length)
	return nil
}

// arrived notes that n bytes of data of a command have arrived. digestOK is false if they have a
// digest that does not match.
func (c *conn) arrived(slot uint16, n uint32, digestOK bool) {
	m := &c.commands[slot]
	if !digestOK && m.status == 0 {
		m.status = nvme.StatusTransientTransport
		c.target.log.Warn("target: wrong data digest", "peer", c.peer.String(), "queue", c.qid, "command", m.sqe.CID())
	}
	if m.status == 0 && c.in.bounced {
		m.status = c.statusOf(m, m.at.backing.WriteAt(c.in.bounce[:n], m.offset+int64(m.received)))
	}
	m.received += n
	if m.r2t && m.received < m.want {
		return
	}
	m.r2t = false
	c.execute(slot)
}
