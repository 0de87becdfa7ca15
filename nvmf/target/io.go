package target

import (
	"nvmecr/nvmf/nvme"
)

// prepareIO validates a command of an I/O queue and says where its data is.
func (c *conn) prepareIO(m *command) nvme.Status {
	sqe := &m.sqe
	if sqe.Opcode() == nvme.IOFlush && sqe.NSID() == 0xffffffff {
		return 0
	}
	if m.at = c.attach(sqe.NSID()); m.at == nil {
		return nvme.StatusInvalidNamespace | nvme.DNR
	}
	m.at.busy++
	if g := m.at.fence.guard.Load(); g != nil && !g.permits(c.ctrl.host.ID, sqe.Opcode()) {
		return nvme.StatusReservation | nvme.DNR
	}
	switch sqe.Opcode() {
	case nvme.IOFlush:
		return 0
	case nvme.IOWrite:
		status := c.prepareTransfer(m, &m.want)
		c.charge(m, m.want)
		c.slicing.moved(takingSlice, m.want)
		return status
	case nvme.IORead:
		status := c.prepareTransfer(m, &m.read)
		c.charge(m, m.read)
		c.slicing.moved(puttingSlice, m.read)
		return status
	case nvme.IOVerify:
		var length uint32 // as if the blocks were read
		status := c.prepareTransfer(m, &length)
		c.charge(m, length)
		return status
	case nvme.IOWriteZeroes:
		return m.place(sqe.SLBA(), sqe.NLB())
	case nvme.IODSM:
		return m.expect(uint32(sqe.DSMRanges()) * nvme.DSMRangeSize)
	case nvme.IOReservationReg, nvme.IOReservationReport, nvme.IOReservationAcquire, nvme.IOReservationRelease:
		return c.prepareReservation(m)
	}
	return nvme.StatusInvalidOpcode | nvme.DNR
}

// place checks a range of blocks and sets offset.
func (m *command) place(slba uint64, blocks uint32) nvme.Status {
	id := &m.at.identity
	if slba >= uint64(id.Blocks) || uint64(blocks) > uint64(id.Blocks)-slba {
		return nvme.StatusLBARange | nvme.DNR
	}
	m.offset = int64(slba) * int64(id.LBASize)
	return 0
}

// prepareTransfer checks Read, Write and Verify, and stores the number of bytes to move in length.
func (c *conn) prepareTransfer(m *command, length *uint32) nvme.Status {
	if s := m.place(m.sqe.SLBA(), m.sqe.NLB()); s != 0 {
		return s
	}
	n := uint64(m.sqe.NLB()) * uint64(m.at.identity.LBASize)
	if n > maxTransfer {
		return nvme.StatusInvalidField | nvme.DNR
	}
	*length = uint32(n)
	if m.at.memory == nil && m.want > 0 && m.sqe.SGL().ID() == nvme.SGLTransport {
		// H2CData may be cut anywhere, a device wants whole blocks.
		m.into = make([]byte, n)
	}
	return 0
}

// executeIO runs a command whose data, if any, has arrived. A read takes place when it is sent.
func (c *conn) executeIO(m *command) nvme.Status {
	sqe := &m.sqe
	if m.at == nil {
		return c.flushAll(m)
	}
	backing, length := m.at.backing, int64(sqe.NLB())*int64(m.at.identity.LBASize)
	switch sqe.Opcode() {
	case nvme.IOFlush:
		return c.statusOf(m, backing.Sync(0, 0))
	case nvme.IOWrite:
		if m.into != nil {
			if s := c.statusOf(m, backing.WriteAt(m.into, m.offset)); s != 0 {
				return s
			}
		}
		if sqe.FUA() {
			return c.statusOf(m, backing.Sync(m.offset, length))
		}
	case nvme.IOVerify:
		if m.at.memory != nil && m.at.faulty == nil {
			return 0 // the memory is always there
		}
		return c.statusOf(m, backing.ReadAt(make([]byte, length), m.offset))
	case nvme.IOWriteZeroes:
		if s := c.statusOf(m, backing.Zero(m.offset, length)); s != 0 {
			return s
		}
		if sqe.FUA() {
			return c.statusOf(m, backing.Sync(m.offset, length))
		}
	case nvme.IODSM:
		return c.deallocate(m)
	}
	return 0
}

// flushAll is Flush of every namespace.
func (c *conn) flushAll(m *command) nvme.Status {
	for id := range *c.ctrl.sub.namespaces.Load() {
		a := c.attach(id)
		if a == nil {
			continue
		}
		if !a.fence.guard.Load().writes(c.ctrl.host.ID) {
			return nvme.StatusReservation | nvme.DNR
		}
		if s := c.statusOf(m, a.backing.Sync(0, 0)); s != 0 {
			return s
		}
	}
	return 0
}

// deallocate is Dataset Management. Attributes other than AD are hints
// without effect.
func (c *conn) deallocate(m *command) nvme.Status {
	if m.sqe.CDW(11)&nvme.DSMDeallocate == 0 {
		return 0
	}
	ranges := m.into[:m.sqe.DSMRanges()*nvme.DSMRangeSize]
	for b := ranges; len(b) > 0; b = b[nvme.DSMRangeSize:] {
		r := (*nvme.DSMRange)(b)
		if s := m.place(r.SLBA(), r.Blocks()); s != 0 {
			return s
		}
	}
	for b := ranges; len(b) > 0; b = b[nvme.DSMRangeSize:] {
		r := (*nvme.DSMRange)(b)
		_ = m.place(r.SLBA(), r.Blocks()) // checked above
		length := int64(r.Blocks()) * int64(m.at.identity.LBASize)
		if length == 0 {
			continue
		}
		if s := c.statusOf(m, m.at.backing.Deallocate(m.offset, length)); s != 0 {
			return s
		}
	}
	return 0
}

// explain returns the status of a write to memory that is missing.
func (c *conn) explain(m *command) nvme.Status {
	err := m.at.faulty.explain(m.offset, int64(m.want))
	return c.statusOf(m, err)
}
