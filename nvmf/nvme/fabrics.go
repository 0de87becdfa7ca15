package nvme

// Fabrics command types, byte 4 of a command with opcode AdminFabrics.
const (
	FabricsPropertySet = 0x00
	FabricsConnect     = 0x01
	FabricsPropertyGet = 0x04
	FabricsAuthSend    = 0x05
	FabricsAuthReceive = 0x06
	FabricsDisconnect  = 0x08
)

// ResetFabrics clears the entry for a Fabrics command.
func (s *SQE) ResetFabrics(fctype uint8, cid uint16) {
	s.Reset(AdminFabrics, cid, 0)
	s[fabricsTypeOffset] = fctype
}

// FabricsType returns the type of a Fabrics command.
func (s *SQE) FabricsType() uint8 { return s[fabricsTypeOffset] }

// Connect attributes (CATTR).
const (
	// ConnectNoSQFlow: the host asks the controller to disable SQ flow control for the
	// queue.
	ConnectNoSQFlow = 1 << 2
)

// Connect has the fields of a Connect command:
//
//	40-41  record format, 0
//	42-43  queue id, 0 is the admin queue
//	44-45  queue size, 0's based
//	46     attributes
//	48-51  keep alive time-out in ms, admin queue only
type Connect struct {
	RecordFormat uint16
	QID          uint16
	SQSize       uint16 // 0's based
	Attributes   uint8
	KATO         uint32 // milliseconds; 0 means no keep-alive
}

// SetConnect sets the fields of a Connect command.
func (s *SQE) SetConnect(c Connect) {
	le.PutUint16(s[40:], c.RecordFormat)
	le.PutUint16(s[42:], c.QID)
	le.PutUint16(s[44:], c.SQSize)
	s[46] = c.Attributes
	le.PutUint32(s[48:], c.KATO)
}

// Connect returns the fields of a Connect command.
func (s *SQE) Connect() Connect {
	return Connect{le.Uint16(s[40:]), le.Uint16(s[42:]), le.Uint16(s[44:]), s[46], le.Uint32(s[48:])}
}

// Security protocol (SECP), and its security protocol specific field, of Authentication
// Send and Receive.
const (
	SecurityProtocolNVMe = 0xe9
	SecuritySpecificAuth = 0x0101
)

// Security has the fields of an Authentication Send or Receive command:
//
//	41-42  security protocol specific (SPSP0, SPSP1)
//	43     security protocol (SECP)
//	44-47  transfer or allocation length in bytes
type Security struct {
	Specific uint16
	Protocol uint8
	Length   uint32
}

// SetSecurity sets the fields of an Authentication Send or Receive command.
func (s *SQE) SetSecurity(c Security) {
	le.PutUint16(s[41:], c.Specific)
	s[43] = c.Protocol
	le.PutUint32(s[44:], c.Length)
}

// Security returns the fields of an Authentication Send or Receive command.
func (s *SQE) Security() Security {
	return Security{le.Uint16(s[41:]), s[43], le.Uint32(s[44:])}
}

// CNTLIDDynamic in the Connect command of an admin queue asks for a dynamic controller.
// The Connect of an I/O queue has the ID of its controller.
const CNTLIDDynamic = 0xffff

// Bits 31:16 of dword 0 of a successful Connect. A set bit (ATR, ASCR) means that the
// host must authenticate before it sends other commands.
const (
	ConnectAuthTransaction   = 1 << 17
	ConnectAuthSecureChannel = 1 << 18
)

// ConnectResult returns dword 0 of a successful Connect: the controller ID and the
// authentication requirements.
func ConnectResult(cntlid uint16, auth uint32) uint64 {
	return uint64(cntlid) | uint64(auth&0xffff0000)
}

// ConnectInvalid returns dword 0 for StatusConnectInvalidParameters: the offset of the
// invalid field in the data (inData), or in the command.
func ConnectInvalid(offset uint16, inData bool) uint64 {
	v := uint64(offset)
	if inData {
		v |= 1 << 16
	}
	return v
}

// Offsets of the fields of ConnectData, for ConnectInvalid.
const (
	ConnectOffsetHostID  = 0
	ConnectOffsetCNTLID  = 16
	ConnectOffsetSubNQN  = 256
	ConnectOffsetHostNQN = 512
)

// ConnectData is the data of Connect:
//
//	  0-  15  host identifier
//	 16-  17  controller id
//	256- 511  subsystem NQN
//	512- 767  host NQN
type ConnectData [ConnectDataSize]byte

// Set writes the whole structure.
func (d *ConnectData) Set(hostID [16]byte, cntlid uint16, subNQN, hostNQN string) {
	*d = ConnectData{}
	copy(d[0:16], hostID[:])
	le.PutUint16(d[16:], cntlid)
	putZero(d[256:256+MaxNQN], subNQN)
	putZero(d[512:512+MaxNQN], hostNQN)
}

// HostID returns the host identifier.
func (d *ConnectData) HostID() [16]byte { return [16]byte(d[0:16]) }

// CNTLID returns the controller ID that the host asks for.
func (d *ConnectData) CNTLID() uint16 { return le.Uint16(d[16:]) }

// SubNQN returns the subsystem NQN.
func (d *ConnectData) SubNQN() string { return text(d[256:512]) }

// HostNQN returns the host NQN.
func (d *ConnectData) HostNQN() string { return text(d[512:768]) }

// Offsets of the controller properties. All but PropertyCAP have 4 bytes.
const (
	PropertyCAP  = 0x00 // 8 bytes
	PropertyVS   = 0x08
	PropertyCC   = 0x14
	PropertyCSTS = 0x1c
	PropertyNSSR = 0x20
)

// SetProperty sets the fields of Property Get (value 0) or Property Set for the
// property at offset.
func (s *SQE) SetProperty(offset uint32, value uint64) {
	s[40] = 0
	if offset == PropertyCAP {
		s[40] = 1
	}
	le.PutUint32(s[44:], offset)
	le.PutUint64(s[48:], value)
}

// Property returns the fields of Property Get or Set: offset, size in bytes, and the
// value to be set. The size is 4 or 8, or 0 if the field has a reserved value.
func (s *SQE) Property() (offset uint32, size int, value uint64) {
	switch s[40] & 7 {
	case 0:
		size, value = 4, uint64(le.Uint32(s[48:]))
	case 1:
		size, value = 8, le.Uint64(s[48:])
	}
	return le.Uint32(s[44:]), size, value
}

// CAP is the controller capabilities property.
type CAP uint64

// MakeCAP returns a CAP for contiguous queues, the NVM command set and 4 KiB pages.
// mqes is the maximum queue size, 0's based; timeout is in units of 500 ms.
func MakeCAP(mqes uint16, timeout uint8) CAP {
	return CAP(mqes) | 1<<16 | CAP(timeout)<<24 | 1<<37
}

// MQES returns the maximum queue size, 0's based.
func (c CAP) MQES() uint16 { return uint16(c) }

// Timeout returns TO, the maximum time to become ready, in units of 500 ms.
func (c CAP) Timeout() uint8 { return uint8(c >> 24) }

// NVMCommandSet reports whether the NVM command set is supported (CSS bit 0).
func (c CAP) NVMCommandSet() bool { return c>>37&1 != 0 }

// MPSMin returns n for a minimum memory page size of 2^(12+n) bytes. That size is the
// unit of MDTS.
func (c CAP) MPSMin() uint8 { return uint8(c>>48) & 0xf }

// Controller configuration (CC) and status (CSTS) bits.
const (
	CCEnable        = 1 << 0
	CCShutdown      = 1 << 14 // SHN: normal shutdown
	CCShutdownMask  = 3 << 14
	CSTSReady       = 1 << 0
	CSTSFatal       = 1 << 1
	CSTSShutdown    = 2 << 2 // SHST: shutdown is complete
	CSTSShutdownBit = 3 << 2
)

// CCFabrics is the controller configuration with which a host enables a controller:
// queue entries of 2^6 and 2^4 bytes, 4 KiB pages, NVM command set.
const CCFabrics = 6<<16 | 4<<20 | CCEnable

// Values of the VS property, and of VER in Identify data.
const (
	Version13 = 0x00010300
	Version14 = 0x00010400
	Version20 = 0x00020000
)
