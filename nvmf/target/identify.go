package target

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math/bits"
	"slices"

	"nvmecr/nvmf/nvme"
)

// firmware is the firmware revision, up to 8 characters.
const firmware = "1"

// serialOf derives a serial number from an NQN.
func serialOf(nqn string) string {
	sum := sha256.Sum256([]byte(nqn))
	return hex.EncodeToString(sum[:10])
}

// identify is the Identify command.
func (c *conn) identify(m *command) nvme.Status {
	page := new([nvme.IdentifySize]byte)
	nsid, csi := m.sqe.NSID(), uint8(m.sqe.CDW(11)>>24)
	cns := m.sqe.CNS()
	discovers := c.ctrl.sub == discovery
	switch {
	case cns == nvme.CNSController:
		c.identifyController((*nvme.IdentifyController)(page))
	case discovers:
		return nvme.StatusInvalidField | nvme.DNR
	case cns == nvme.CNSActiveNamespaces, cns == nvme.CNSCommandSetActive && csi == 0:
		if nsid >= 0xfffffffe {
			return nvme.StatusInvalidNamespace | nvme.DNR
		}
		nvme.PutActiveNamespaces(page, c.visible(), nsid)
	case cns == nvme.CNSCommandSetController && csi == 0:
		page[0] = mdts // VSL, of Verify; the others have no limits
	case cns == nvme.CNSCommandSets:
		page[0] = 1 // the NVM command set alone
	case cns == nvme.CNSNamespace, cns == nvme.CNSDescriptors, cns == nvme.CNSIndependentNamespace,
		cns == nvme.CNSCommandSetNamespace && csi == 0:
		if s := c.identifyNamespace(page, cns, nsid); s != 0 {
			return s
		}
	default:
		return nvme.StatusInvalidField | nvme.DNR
	}
	return m.reply(page[:])
}

func (c *conn) identifyController(p *nvme.IdentifyController) {
	sub := c.ctrl.sub
	p.SetSerial(sub.serial)
	p.SetModel(sub.model)
	p.SetFirmware(firmware)
	p.SetMDTS(mdts)
	p.SetCNTLID(c.ctrl.id)
	p.SetVersion(nvme.Version14)
	p.SetCTRATT(1 | nvme.CTRATTKeepAliveTraffic) // 128-bit host identifiers
	p.SetLimits(3, asyncEventsLimit-1, 0)
	p.SetLPA(1<<1 | 1<<2) // effects log, offsets
	p.SetKAS(1)
	p.SetMAXCMD(maxQueue)
	p.SetSGLS(nvme.SGLSSupported | nvme.SGLSOffset | nvme.SGLSTransport)
	p.SetSubNQN(sub.nqn)
	if sub == discovery {
		p.SetMDTS(discoveryMDTS)
		p.SetControllerType(nvme.ControllerDiscovery)
		return
	}
	p.SetControllerType(nvme.ControllerIO)
	p.SetCMIC(1 << 1) // several controllers
	p.SetOAES(eventNamespaces)
	p.SetTemperatures(343, 353)
	p.SetEntrySizes()
	p.SetNN(maxNSID)
	p.SetMNAN(maxNSID)
	p.SetONCS(nvme.ONCSDSM | nvme.ONCSWriteZeroes | nvme.ONCSVerify)
	if !c.target.noReservations {
		p.SetONCS(p.ONCS() | nvme.ONCSReservation)
	}
	vwc := uint8(nvme.VWCFlushAll)
	if sub.volatile() {
		vwc |= nvme.VWCPresent
	}
	p.SetVWC(vwc)
	p.SetIOCCSZ((nvme.SQESize + c.target.inCapsule) / 16)
	p.SetIORCSZ(nvme.CQESize / 16)
	p.SetMSDBD(1)
}

// volatile reports whether any namespace has a volatile write cache.
func (s *subsystem) volatile() bool {
	for _, n := range *s.namespaces.Load() {
		if n.identity.VolatileWriteCache {
			return true
		}
	}
	return false
}

// visible returns the ids of the namespaces the host sees, ascending.
func (c *conn) visible() []uint32 {
	namespaces := *c.ctrl.sub.namespaces.Load()
	ids := slices.Sorted(maps.Keys(namespaces))
	return slices.DeleteFunc(ids, func(id uint32) bool { return !allowed(namespaces[id].hosts, c.ctrl.host.NQN) })
}

// identifyNamespace fills the pages about one namespace. If the namespace does not exist, or the
// host may not see it, the page is zeros where the specification says so.
func (c *conn) identifyNamespace(page *[nvme.IdentifySize]byte, cns uint8, nsid uint32) nvme.Status {
	if nsid == 0 || nsid > maxNSID && nsid != 0xffffffff {
		return nvme.StatusInvalidNamespace | nvme.DNR
	}
	if nsid == 0xffffffff {
		if cns != nvme.CNSNamespace {
			return nvme.StatusInvalidNamespace | nvme.DNR
		}
		return 0 // capabilities common to all namespaces: none
	}
	n := (*c.ctrl.sub.namespaces.Load())[nsid]
	if n == nil || !allowed(n.hosts, c.ctrl.host.NQN) {
		if cns == nvme.CNSDescriptors {
			return nvme.StatusInvalidNamespace | nvme.DNR
		}
		return 0
	}
	switch cns {
	case nvme.CNSNamespace:
		n.identify((*nvme.IdentifyNamespace)(page))
		(*nvme.IdentifyNamespace)(page).SetRESCAP(c.target.rescap())
	case nvme.CNSDescriptors:
		nvme.PutDescriptors(page, []nvme.Descriptor{
			{Type: nvme.NIDUUID, ID: n.identity.UUID[:]},
			{Type: nvme.NIDNGUID, ID: n.identity.UUID[:]},
			{Type: nvme.NIDCSI, ID: []byte{0}},
		})
	case nvme.CNSIndependentNamespace:
		page[1] = 1 // NMIC: may be shared
		page[2] = c.target.rescap()
		page[14] = 1 // NSTAT: ready
	}
	return 0
}

// rescap returns the reservation capabilities of a namespace: all types, none of which outlives the
// target.
func (t *Target) rescap() uint8 {
	if t.noReservations {
		return 0
	}
	return nvme.RESCAPAllTypes | nvme.RESCAPIgnoreKey
}

func (n *namespace) identify(p *nvme.IdentifyNamespace) {
	p.SetSize(uint64(n.identity.Blocks))
	p.SetLBAFormat(uint8(bits.TrailingZeros64(uint64(n.identity.LBASize))))
	p.SetNMIC(1)
	if n.identity.CanDeallocate && n.memory != nil {
		p.SetDLFEAT(1) // deallocated blocks read as zeros
	}
	p.SetNGUID(n.identity.UUID)
}
