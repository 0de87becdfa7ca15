package target

import (
	"encoding/binary"
	"time"

	"nvmecr/nvmf/nvme"
)

var le = binary.LittleEndian

// prepareAdmin validates an admin command before its data.
func (c *conn) prepareAdmin(m *command) nvme.Status {
	switch m.sqe.Opcode() {
	case nvme.AdminKeepAlive, nvme.AdminIdentify, nvme.AdminGetLogPage, nvme.AdminGetFeatures, nvme.AdminAbort, nvme.AdminAsyncEvent:
		return 0
	case nvme.AdminSetFeatures:
		if uint8(m.sqe.CDW(10)) == nvme.FeatureHostID {
			if c.ctrl.sub == discovery { // takes no data
				return nvme.StatusInvalidField | nvme.DNR
			}
			return m.expect(uint32(len(Host{}.ID)))
		}
		return 0
	}
	return nvme.StatusInvalidOpcode | nvme.DNR
}

func (c *conn) executeAdmin(m *command) nvme.Status {
	if m.sqe.Opcode() != nvme.AdminKeepAlive && !c.ctrl.enabled.Load() {
		return nvme.StatusCommandSequence | nvme.DNR
	}
	switch m.sqe.Opcode() {
	case nvme.AdminKeepAlive:
		return 0
	case nvme.AdminIdentify:
		return c.identify(m)
	case nvme.AdminGetLogPage:
		return c.getLogPage(m)
	case nvme.AdminGetFeatures:
		return c.getFeatures(m)
	case nvme.AdminSetFeatures:
		return c.setFeatures(m)
	}
	return c.abort(m)
}

// abort ends an Asynchronous Event Request. No other command can be aborted: it is complete, or
// waits for data of the host.
func (c *conn) abort(m *command) nvme.Status {
	sqid, cid := uint16(m.sqe.CDW(10)), uint16(m.sqe.CDW(10)>>16)
	m.result = 1 // not aborted
	if sqid != 0 {
		return 0
	}
	for i, slot := range c.held {
		if h := &c.commands[slot]; h.sqe.CID() == cid {
			h.status = nvme.StatusAbortRequested
			c.held = append(c.held[:i], c.held[i+1:]...)
			c.out.push(slot, false)
			m.result = 0
			return 0
		}
	}
	return 0
}

func (c *conn) setFeatures(m *command) nvme.Status {
	value := m.sqe.CDW(11)
	if m.sqe.CDW(10)>>31 != 0 { // SV: save
		return nvme.StatusFeatureNotSaveable | nvme.DNR
	}
	x := c.ctrl
	switch uint8(m.sqe.CDW(10)) {
	case nvme.FeatureNumberOfQueues:
		if value&0xffff == 0xffff || value>>16 == 0xffff {
			return nvme.StatusInvalidField | nvme.DNR
		}
		m.result = uint64(nvme.NumberOfQueues(maxIOQueues, maxIOQueues))
	case nvme.FeatureKeepAliveTimer:
		x.setKeepAlive(value)
	case nvme.FeatureAsyncEventConfig:
		x.mu.Lock()
		x.asyncConfig = value & eventNamespaces
		x.mu.Unlock()
	case nvme.FeaturePowerManagement:
		if value&0x1f != 0 {
			return nvme.StatusInvalidField | nvme.DNR
		}
	case nvme.FeatureTemperature, nvme.FeatureErrorRecovery, nvme.FeatureWriteAtomicity:
		// Accepted and without effect.
	case nvme.FeatureVolatileWriteCache:
		if value&1 == 0 { // the page cache cannot be switched off
			return nvme.StatusFeatureNotChangable | nvme.DNR
		}
	case nvme.FeatureReservationNotice, nvme.FeatureReservationPersist:
		return c.setReservationFeature(m)
	case nvme.FeatureHostID:
		// Set by Connect; the same value again is no change.
		if [16]byte(m.into) != x.host.ID {
			return nvme.StatusCommandSequence | nvme.DNR
		}
	default:
		return nvme.StatusInvalidField | nvme.DNR
	}
	return 0
}

func (c *conn) getFeatures(m *command) nvme.Status {
	x := c.ctrl
	if m.sqe.CDW(10)>>8&7 == 3 { // supported capabilities: changeable, not saveable
		m.result = 1 << 2
		return 0
	}
	switch uint8(m.sqe.CDW(10)) {
	case nvme.FeatureNumberOfQueues:
		m.result = uint64(nvme.NumberOfQueues(maxIOQueues, maxIOQueues))
	case nvme.FeatureKeepAliveTimer:
		x.mu.Lock()
		m.result = uint64(x.kato.Milliseconds())
		x.mu.Unlock()
	case nvme.FeatureAsyncEventConfig:
		x.mu.Lock()
		m.result = uint64(x.asyncConfig)
		x.mu.Unlock()
	case nvme.FeatureVolatileWriteCache:
		if !x.sub.volatile() {
			return nvme.StatusInvalidField | nvme.DNR
		}
		m.result = 1
	case nvme.FeaturePowerManagement, nvme.FeatureErrorRecovery, nvme.FeatureWriteAtomicity:
	case nvme.FeatureTemperature:
		m.result = 0x157 // 70 degrees Celsius
	case nvme.FeatureReservationNotice, nvme.FeatureReservationPersist:
		return c.getReservationFeature(m)
	case nvme.FeatureHostID:
		return m.reply(x.host.ID[:])
	default:
		return nvme.StatusInvalidField | nvme.DNR
	}
	return 0
}

// reply answers a command with data, cut to what the host has space for.
func (m *command) reply(b []byte) nvme.Status {
	sgl := m.sqe.SGL()
	if sgl.ID() != nvme.SGLTransport {
		return nvme.StatusSGLTypeInvalid | nvme.DNR
	}
	if n := sgl.Length(); uint64(n) < uint64(len(b)) {
		b = b[:n]
	}
	m.answer = b
	return 0
}

// Log pages.
const (
	logBytes      = 512
	errorLogEntry = 64
)

func (c *conn) getLogPage(m *command) nvme.Status {
	lid, offset, length := m.sqe.LogPage()
	if length > maxTransfer || c.discovers() && length > discoveryTransfer || offset%4 != 0 {
		return nvme.StatusInvalidField | nvme.DNR
	}
	var page []byte
	switch {
	case lid == nvme.LogDiscovery && c.ctrl.sub == discovery:
		page = c.discoveryLog()
	case lid == nvme.LogError:
		page = make([]byte, errorLogEntry)
	case c.ctrl.sub == discovery:
		return nvme.StatusInvalidLogPage | nvme.DNR
	case lid == nvme.LogSMART:
		page = c.ctrl.smart()
	case lid == nvme.LogFirmware:
		page = make([]byte, logBytes)
		page[0] = 1 // active slot
		copy(page[8:16], firmware+"        ")
	case lid == nvme.LogChangedNS:
		page = make([]byte, 4096)
		for i, id := range c.ctrl.takeChanged(m.sqe.CDW(10)>>15&1 != 0) {
			le.PutUint32(page[4*i:], id)
		}
	case lid == nvme.LogEffects:
		page = c.effects()
	case lid == nvme.LogReservation && !c.target.noReservations:
		page = make([]byte, nvme.LogReservationSize) // no notification
	default:
		return nvme.StatusInvalidLogPage | nvme.DNR
	}
	if offset > uint64(len(page)) {
		return nvme.StatusInvalidField | nvme.DNR
	}
	// A host may ask for more than there is; the rest reads as zeros.
	answer := make([]byte, length)
	copy(answer, page[offset:])
	return m.reply(answer)
}

// smart is the SMART / Health Information log: a healthy device of 300 K.
func (c *controller) smart() []byte {
	page := make([]byte, logBytes)
	le.PutUint16(page[1:], 300) // composite temperature, K
	page[3] = 100               // available spare, percent
	page[4] = 10                // its threshold
	le.PutUint64(page[128:], uint64(time.Since(c.started).Hours()))
	return page
}

// effects is the Commands Supported and Effects log.
func (c *conn) effects() []byte {
	const supported, changesData = 1 << 0, 1 << 1
	page := make([]byte, 4096)
	for _, op := range []int{nvme.AdminGetLogPage, nvme.AdminIdentify, nvme.AdminAbort, nvme.AdminSetFeatures,
		nvme.AdminGetFeatures, nvme.AdminAsyncEvent, nvme.AdminKeepAlive} {
		le.PutUint32(page[4*op:], supported)
	}
	for op, bits := range map[int]uint32{
		nvme.IOFlush: supported, nvme.IORead: supported, nvme.IOVerify: supported, nvme.IOWrite: supported | changesData,
		nvme.IOWriteZeroes: supported | changesData, nvme.IODSM: supported | changesData,
		nvme.IOReservationReg: supported, nvme.IOReservationReport: supported,
		nvme.IOReservationAcquire: supported, nvme.IOReservationRelease: supported,
	} {
		if c.target.noReservations && isReservation(uint8(op)) {
			continue
		}
		le.PutUint32(page[1024+4*op:], bits)
	}
	return page
}
