package nvme

// CNS values of Identify, dword 10 bits 7:0.
const (
	CNSNamespace            = 0x00
	CNSController           = 0x01
	CNSActiveNamespaces     = 0x02
	CNSDescriptors          = 0x03
	CNSCommandSetNamespace  = 0x05
	CNSCommandSetController = 0x06
	CNSCommandSetActive     = 0x07
	CNSIndependentNamespace = 0x08
	CNSCommandSets          = 0x1c
)

// SetIdentify sets dword 10 of Identify. Reset sets the NSID.
func (s *SQE) SetIdentify(cns uint8) { s.SetCDW(10, uint32(cns)) }

// CNS returns the CNS value of Identify.
func (s *SQE) CNS() uint8 { return uint8(s.CDW(10)) }

// Controller types (CNTRLTYPE).
const (
	ControllerIO        = 1
	ControllerDiscovery = 2
)

// Bits of IdentifyController's fields.
const (
	ONCSCompare     = 1 << 0
	ONCSDSM         = 1 << 2
	ONCSWriteZeroes = 1 << 3
	ONCSReservation = 1 << 5
	ONCSVerify      = 1 << 7

	VWCPresent = 1 << 0
	// VWCFlushAll (bits 2:1 = 11b): Flush with NSID 0xffffffff is supported.
	// VWCFlushOne (10b): it is not supported.
	VWCFlushAll = 3 << 1
	VWCFlushOne = 2 << 1

	SGLSSupported = 1 << 0  // bits 1:0 = 01b: no alignment required
	SGLSKeyed     = 1 << 2  // keyed data blocks
	SGLSOffset    = 1 << 20 // address as an offset into the capsule
	SGLSTransport = 1 << 21 // transport data blocks

	// CTRATTKeepAliveTraffic: traffic based keep alive (TBKAS).
	CTRATTKeepAliveTraffic = 1 << 6
)

// IdentifyController is the Identify page for CNSController (figure 275). The comments
// of its methods give the offsets.
type IdentifyController [IdentifySize]byte

// Serial returns bytes 4 to 23.
func (p *IdentifyController) Serial() string { return text(p[4:24]) }

// SetSerial sets the serial number.
func (p *IdentifyController) SetSerial(s string) { putSpace(p[4:24], s) }

// Model returns bytes 24 to 63.
func (p *IdentifyController) Model() string { return text(p[24:64]) }

// SetModel sets the model number.
func (p *IdentifyController) SetModel(s string) { putSpace(p[24:64], s) }

// Firmware returns bytes 64 to 71.
func (p *IdentifyController) Firmware() string { return text(p[64:72]) }

// SetFirmware sets the firmware revision.
func (p *IdentifyController) SetFirmware(s string) { putSpace(p[64:72], s) }

// CMIC returns byte 76: bit 0 several ports, bit 1 several controllers.
func (p *IdentifyController) CMIC() uint8 { return p[76] }

// SetCMIC sets CMIC.
func (p *IdentifyController) SetCMIC(v uint8) { p[76] = v }

// MDTS returns byte 77: the maximum data size of a command is 2^MDTS pages of the
// minimum size. 0 means no limit.
func (p *IdentifyController) MDTS() uint8 { return p[77] }

// SetMDTS sets MDTS.
func (p *IdentifyController) SetMDTS(v uint8) { p[77] = v }

// CNTLID returns bytes 78 and 79.
func (p *IdentifyController) CNTLID() uint16 { return le.Uint16(p[78:]) }

// SetCNTLID sets CNTLID.
func (p *IdentifyController) SetCNTLID(v uint16) { le.PutUint16(p[78:], v) }

// Version returns VER, bytes 80 to 83.
func (p *IdentifyController) Version() uint32 { return le.Uint32(p[80:]) }

// SetVersion sets VER.
func (p *IdentifyController) SetVersion(v uint32) { le.PutUint32(p[80:], v) }

// OAES returns bytes 92 to 95.
func (p *IdentifyController) OAES() uint32 { return le.Uint32(p[92:]) }

// SetOAES sets OAES.
func (p *IdentifyController) SetOAES(v uint32) { le.PutUint32(p[92:], v) }

// CTRATT returns bytes 96 to 99.
func (p *IdentifyController) CTRATT() uint32 { return le.Uint32(p[96:]) }

// SetCTRATT sets CTRATT.
func (p *IdentifyController) SetCTRATT(v uint32) { le.PutUint32(p[96:], v) }

// ControllerType returns CNTRLTYPE, byte 111.
func (p *IdentifyController) ControllerType() uint8 { return p[111] }

// SetControllerType sets CNTRLTYPE.
func (p *IdentifyController) SetControllerType(v uint8) { p[111] = v }

// OACS returns bytes 256 and 257.
func (p *IdentifyController) OACS() uint16 { return le.Uint16(p[256:]) }

// SetOACS sets OACS.
func (p *IdentifyController) SetOACS(v uint16) { le.PutUint16(p[256:], v) }

// SetLimits sets ACL (byte 258), AERL (259) and ELPE (262), all 0's based. It sets FRMW
// (260) to one read-only firmware slot.
func (p *IdentifyController) SetLimits(acl, aerl, elpe uint8) {
	p[258], p[259], p[260], p[262] = acl, aerl, 1<<1|1, elpe
}

// LPA returns byte 261. Bit 2 means that Get Log Page supports offsets.
func (p *IdentifyController) LPA() uint8 { return p[261] }

// SetLPA sets LPA.
func (p *IdentifyController) SetLPA(v uint8) { p[261] = v }

// SetTemperatures sets WCTEMP and CCTEMP, bytes 266 to 269, in kelvin.
func (p *IdentifyController) SetTemperatures(warning, critical uint16) {
	le.PutUint16(p[266:], warning)
	le.PutUint16(p[268:], critical)
}

// KAS returns bytes 320 and 321: the granularity of KATO in units of 100 ms. 0 means no
// keep-alive.
func (p *IdentifyController) KAS() uint16 { return le.Uint16(p[320:]) }

// SetKAS sets KAS.
func (p *IdentifyController) SetKAS(v uint16) { le.PutUint16(p[320:], v) }

// SQES returns byte 512: exponents of the SQ entry size, minimum in bits 3:0 and
// maximum in bits 7:4.
func (p *IdentifyController) SQES() uint8 { return p[512] }

// CQES returns byte 513: the same for CQ entries.
func (p *IdentifyController) CQES() uint8 { return p[513] }

// SetEntrySizes sets SQES to 64 bytes and CQES to 16 bytes.
func (p *IdentifyController) SetEntrySizes() { p[512], p[513] = 0x66, 0x44 }

// MAXCMD returns bytes 514 and 515: the maximum number of outstanding commands of a
// queue. 0 means that it is not reported.
func (p *IdentifyController) MAXCMD() uint16 { return le.Uint16(p[514:]) }

// SetMAXCMD sets MAXCMD.
func (p *IdentifyController) SetMAXCMD(v uint16) { le.PutUint16(p[514:], v) }

// NN returns bytes 516 to 519: the maximum namespace ID.
func (p *IdentifyController) NN() uint32 { return le.Uint32(p[516:]) }

// SetNN sets NN.
func (p *IdentifyController) SetNN(v uint32) { le.PutUint32(p[516:], v) }

// ONCS returns bytes 520 and 521.
func (p *IdentifyController) ONCS() uint16 { return le.Uint16(p[520:]) }

// SetONCS sets ONCS.
func (p *IdentifyController) SetONCS(v uint16) { le.PutUint16(p[520:], v) }

// VWC returns byte 525.
func (p *IdentifyController) VWC() uint8 { return p[525] }

// SetVWC sets VWC.
func (p *IdentifyController) SetVWC(v uint8) { p[525] = v }

// SGLS returns bytes 536 to 539.
func (p *IdentifyController) SGLS() uint32 { return le.Uint32(p[536:]) }

// SetSGLS sets SGLS.
func (p *IdentifyController) SetSGLS(v uint32) { le.PutUint32(p[536:], v) }

// MNAN returns bytes 540 to 543: the maximum number of namespaces. 0 means NN.
func (p *IdentifyController) MNAN() uint32 { return le.Uint32(p[540:]) }

// SetMNAN sets MNAN.
func (p *IdentifyController) SetMNAN(v uint32) { le.PutUint32(p[540:], v) }

// SubNQN returns bytes 768 to 1023.
func (p *IdentifyController) SubNQN() string { return text(p[768:1024]) }

// SetSubNQN sets the subsystem NQN.
func (p *IdentifyController) SetSubNQN(s string) { putZero(p[768:1024], s) }

// IOCCSZ returns bytes 1792 to 1795: the maximum size of a command capsule in units of
// 16 bytes.
func (p *IdentifyController) IOCCSZ() uint32 { return le.Uint32(p[1792:]) }

// SetIOCCSZ sets IOCCSZ.
func (p *IdentifyController) SetIOCCSZ(v uint32) { le.PutUint32(p[1792:], v) }

// IORCSZ returns bytes 1796 to 1799: the maximum size of a response capsule in units of
// 16 bytes.
func (p *IdentifyController) IORCSZ() uint32 { return le.Uint32(p[1796:]) }

// SetIORCSZ sets IORCSZ.
func (p *IdentifyController) SetIORCSZ(v uint32) { le.PutUint32(p[1796:], v) }

// ICDOFF returns bytes 1800 and 1801: the offset of in-capsule data after the SQE, in
// units of 16 bytes.
func (p *IdentifyController) ICDOFF() uint16 { return le.Uint16(p[1800:]) }

// FCATTR returns byte 1802. Bit 0 means a static controller model.
func (p *IdentifyController) FCATTR() uint8 { return p[1802] }

// MSDBD returns byte 1803: the maximum number of SGL data block descriptors in a
// capsule.
func (p *IdentifyController) MSDBD() uint8 { return p[1803] }

// SetMSDBD sets MSDBD.
func (p *IdentifyController) SetMSDBD(v uint8) { p[1803] = v }

// IdentifyNamespace is the Identify page for CNSNamespace (NVM Command Set 1.0, figure
// 97).
type IdentifyNamespace [IdentifySize]byte

// NSZE returns bytes 0 to 7: the size in logical blocks. 0 means that the namespace is
// not active.
func (p *IdentifyNamespace) NSZE() uint64 { return le.Uint64(p[0:]) }

// NCAP returns bytes 8 to 15: the maximum number of allocated logical blocks.
func (p *IdentifyNamespace) NCAP() uint64 { return le.Uint64(p[8:]) }

// NUSE returns bytes 16 to 23: the number of allocated logical blocks.
func (p *IdentifyNamespace) NUSE() uint64 { return le.Uint64(p[16:]) }

// SetSize sets NSZE, NCAP and NUSE to the same value.
func (p *IdentifyNamespace) SetSize(blocks uint64) {
	for _, at := range []int{0, 8, 16} {
		le.PutUint64(p[at:], blocks)
	}
}

// NSFEAT returns byte 24.
func (p *IdentifyNamespace) NSFEAT() uint8 { return p[24] }

// SetNSFEAT sets NSFEAT.
func (p *IdentifyNamespace) SetNSFEAT(v uint8) { p[24] = v }

// NLBAF returns byte 25: the number of LBA formats, 0's based.
func (p *IdentifyNamespace) NLBAF() uint8 { return p[25] }

// FLBAS returns byte 26.
func (p *IdentifyNamespace) FLBAS() uint8 { return p[26] }

// Format returns the index of the LBA format in use. It consists of bits 3:0 of FLBAS,
// and of bits 6:5 above these if there are more than 16 formats.
func (p *IdentifyNamespace) Format() int {
	i := int(p[26] & 0xf)
	if p[25] >= 16 {
		i |= int(p[26]>>5&3) << 4
	}
	return i
}

// DPS returns byte 29. Bits 2:0 are 0 without end-to-end protection.
func (p *IdentifyNamespace) DPS() uint8 { return p[29] }

// NMIC returns byte 30. Bit 0 means that several controllers may share the namespace.
func (p *IdentifyNamespace) NMIC() uint8 { return p[30] }

// SetNMIC sets NMIC.
func (p *IdentifyNamespace) SetNMIC(v uint8) { p[30] = v }

// DLFEAT returns byte 33. Bits 2:0 tell the contents of deallocated blocks; 1 means
// zeros.
func (p *IdentifyNamespace) DLFEAT() uint8 { return p[33] }

// SetDLFEAT sets DLFEAT.
func (p *IdentifyNamespace) SetDLFEAT(v uint8) { p[33] = v }

// DeallocateUnit returns the larger of NPDG and NPDA (bytes 68 to 71): a Deallocate
// should begin and end at a multiple of this number of blocks. It returns 0 if bits 5:4
// of NSFEAT (OPTPERF) say that the fields are not valid.
func (p *IdentifyNamespace) DeallocateUnit() uint32 {
	if p[24]>>4&3 == 0 {
		return 0
	}
	return 1 + uint32(max(le.Uint16(p[68:]), le.Uint16(p[70:])))
}

// SetDeallocateUnit sets NPDG and NPDA to 1 to 65536 blocks, and OPTPERF.
func (p *IdentifyNamespace) SetDeallocateUnit(blocks uint32) {
	p[24] |= 1 << 4
	le.PutUint16(p[68:], uint16(blocks-1))
	le.PutUint16(p[70:], uint16(blocks-1))
}

// NGUID returns bytes 104 to 119, which are zeros if the namespace has no NGUID.
func (p *IdentifyNamespace) NGUID() [16]byte { return [16]byte(p[104:120]) }

// SetNGUID sets NGUID.
func (p *IdentifyNamespace) SetNGUID(v [16]byte) { copy(p[104:120], v[:]) }

// EUI64 returns bytes 120 to 127, which are zeros if the namespace has no EUI-64.
func (p *IdentifyNamespace) EUI64() [8]byte { return [8]byte(p[120:128]) }

// LBAFormat returns format i, 0 to 63: bytes of metadata (MS), exponent of the block
// size (LBADS), and relative performance (RP).
func (p *IdentifyNamespace) LBAFormat(i int) (ms uint16, lbads, rp uint8) {
	f := p[128+4*(i&63):]
	return le.Uint16(f), f[2], f[3] & 3
}

// SetLBAFormat sets a single format, with blocks of 2^lbads bytes without metadata.
func (p *IdentifyNamespace) SetLBAFormat(lbads uint8) {
	p[25], p[26] = 0, 0
	le.PutUint32(p[128:], uint32(lbads)<<16)
}

// ActiveNamespaces decodes the list of CNSActiveNamespaces. The list ends at an ID of
// zero.
func ActiveNamespaces(page *[IdentifySize]byte) []uint32 {
	var ids []uint32
	for at := 0; at < IdentifySize; at += 4 {
		id := le.Uint32(page[at:])
		if id == 0 {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

// PutActiveNamespaces encodes the list of CNSActiveNamespaces. It contains the IDs of
// ids that are greater than after, as many as fit. ids must be in ascending order.
func PutActiveNamespaces(page *[IdentifySize]byte, ids []uint32, after uint32) {
	clear(page[:])
	at := 0
	for _, id := range ids {
		if id > after && at < IdentifySize {
			le.PutUint32(page[at:], id)
			at += 4
		}
	}
}

// Namespace identifier types (NIDT) and their lengths in bytes.
const (
	NIDEUI64 = 0x01 // 8
	NIDNGUID = 0x02 // 16
	NIDUUID  = 0x03 // 16
	NIDCSI   = 0x04 // 1: command set
)

// Descriptor is an entry of the list of CNSDescriptors. On the wire it has a header of
// 4 bytes (type, length, reserved) and the identifier.
type Descriptor struct {
	Type uint8
	ID   []byte
}

// Descriptors decodes the list of CNSDescriptors. The list ends at a length of zero, or
// at an entry that exceeds the page. The identifiers alias the page.
func Descriptors(page *[IdentifySize]byte) []Descriptor {
	var list []Descriptor
	for at := 0; at+4 <= IdentifySize; {
		n := int(page[at+1])
		if n == 0 || at+4+n > IdentifySize {
			break
		}
		list = append(list, Descriptor{page[at], page[at+4 : at+4+n]})
		at += 4 + n
	}
	return list
}

// PutDescriptors encodes the list of CNSDescriptors. It leaves out entries that do not
// fit.
func PutDescriptors(page *[IdentifySize]byte, list []Descriptor) {
	clear(page[:])
	at := 0
	for _, d := range list {
		if len(d.ID) > 255 || at+4+len(d.ID) > IdentifySize {
			return
		}
		page[at], page[at+1] = d.Type, uint8(len(d.ID))
		at += 4 + copy(page[at+4:], d.ID)
	}
}
