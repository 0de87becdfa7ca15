package nvme

// Admin command opcodes (Base Specification 2.0, figure 138).
const (
	AdminGetLogPage   = 0x02
	AdminIdentify     = 0x06
	AdminAbort        = 0x08
	AdminSetFeatures  = 0x09
	AdminGetFeatures  = 0x0a
	AdminAsyncEvent   = 0x0c
	AdminKeepAlive    = 0x18
	AdminFabrics      = 0x7f // also on I/O queues
	fabricsTypeOffset = 4
)

// I/O command opcodes (NVM Command Set 1.0, figure 16).
const (
	IOFlush              = 0x00
	IOWrite              = 0x01
	IORead               = 0x02
	IOWriteUncorrectable = 0x04
	IOCompare            = 0x05
	IOWriteZeroes        = 0x08
	IODSM                = 0x09
	IOVerify             = 0x0c
	IOReservationReg     = 0x0d
	IOReservationReport  = 0x0e
	IOReservationAcquire = 0x11
	IOReservationRelease = 0x15
)

// FlagSGL is the value of the flags byte (FUSE and PSDT) of every command over fabrics:
// not fused, SGLs for data. Linux's target refuses other values even for commands
// without data.
const FlagSGL = 0x40

// SQE is a submission queue entry:
//
//	 0     opcode
//	 1     flags: FUSE (1:0), PSDT (7:6)
//	 2- 3  command identifier
//	 4- 7  namespace identifier; byte 4 is the type of a Fabrics command
//	24-39  SGL descriptor 1
//	40-63  command dwords 10 to 15
type SQE [SQESize]byte

// Reset clears the entry, and sets opcode, FlagSGL, CID and NSID.
func (s *SQE) Reset(opcode uint8, cid uint16, nsid uint32) {
	*s = SQE{opcode, FlagSGL}
	le.PutUint16(s[2:], cid)
	le.PutUint32(s[4:], nsid)
}

// Opcode returns byte 0.
func (s *SQE) Opcode() uint8 { return s[0] }

// Flags returns byte 1: FUSE and PSDT.
func (s *SQE) Flags() uint8 { return s[1] }

// CID returns the command identifier.
func (s *SQE) CID() uint16 { return le.Uint16(s[2:]) }

// SetCID sets the command identifier.
func (s *SQE) SetCID(cid uint16) { le.PutUint16(s[2:], cid) }

// NSID returns the namespace identifier.
func (s *SQE) NSID() uint32 { return le.Uint32(s[4:]) }

// CDW returns command dword n. It panics unless n is 2 to 15.
func (s *SQE) CDW(n int) uint32 { return le.Uint32(s[4*n:]) }

// SetCDW sets command dword n, 2 to 15.
func (s *SQE) SetCDW(n int, v uint32) { le.PutUint32(s[4*n:], v) }

// SGL returns SGL descriptor 1.
func (s *SQE) SGL() *SGL { return (*SGL)(s[24:40]) }

// SGL descriptor identifiers, with the type in bits 7:4 and the subtype in bits 3:0.
const (
	// SGLInCapsule (data block, offset): the data is in the capsule, and the address is
	// the offset of the data.
	SGLInCapsule = 0x01
	// SGLTransport (transport data block, transport specific): separate PDUs transfer
	// the data.
	SGLTransport = 0x5a
)

// SGL is an SGL descriptor:
//
//	 0- 7  address, or offset
//	 8-11  length in bytes
//	15     identifier
type SGL [16]byte

// Set writes the whole descriptor.
func (g *SGL) Set(id uint8, address uint64, length uint32) {
	*g = SGL{15: id}
	le.PutUint64(g[0:], address)
	le.PutUint32(g[8:], length)
}

// ID returns type and subtype.
func (g *SGL) ID() uint8 { return g[15] }

// Address returns the address, which is an offset for SGLInCapsule.
func (g *SGL) Address() uint64 { return le.Uint64(g[0:]) }

// Length returns the number of data bytes.
func (g *SGL) Length() uint32 { return le.Uint32(g[8:]) }

// FUA (force unit access) is bit 30 of dword 12 of Read and Write: the command
// completes after the data is on non-volatile media.
const FUA = 1 << 30

// SetRange sets dwords 10 to 12 of Read, Write, Compare and Write Zeroes. blocks is 1
// to 65536; flags has the upper 16 bits of dword 12.
func (s *SQE) SetRange(slba uint64, blocks uint32, flags uint32) {
	le.PutUint64(s[40:], slba)
	le.PutUint32(s[48:], (blocks-1)&0xffff|flags&0xffff0000)
}

// SLBA returns the first logical block of Read, Write, Compare and Write Zeroes.
func (s *SQE) SLBA() uint64 { return le.Uint64(s[40:]) }

// NLB returns the number of logical blocks of these commands, 1 to 65536 (not 0's
// based).
func (s *SQE) NLB() uint32 { return uint32(le.Uint16(s[48:])) + 1 }

// FUA reports whether the FUA bit is set.
func (s *SQE) FUA() bool { return s.CDW(12)&FUA != 0 }

// DSMDeallocate is the AD attribute, dword 11 of Dataset Management.
const DSMDeallocate = 1 << 2

// MaxDSMRanges is the maximum number of ranges of a Dataset Management command.
const MaxDSMRanges = 256

// SetDSM sets the fields of Dataset Management. ranges is 1 to 256.
func (s *SQE) SetDSM(ranges int, attributes uint32) {
	s.SetCDW(10, uint32(ranges-1)&0xff)
	s.SetCDW(11, attributes)
}

// DSMRanges returns the number of ranges of Dataset Management, 1 to 256.
func (s *SQE) DSMRanges() int { return int(s.CDW(10)&0xff) + 1 }

// DSMRange is one range of Dataset Management:
//
//	0- 3  context attributes
//	4- 7  length in logical blocks
//	8-15  starting LBA
type DSMRange [DSMRangeSize]byte

// Set writes the range, with context attributes of 0.
func (r *DSMRange) Set(slba uint64, blocks uint32) {
	le.PutUint32(r[0:], 0)
	le.PutUint32(r[4:], blocks)
	le.PutUint64(r[8:], slba)
}

// Blocks returns the length in logical blocks (not 0's based).
func (r *DSMRange) Blocks() uint32 { return le.Uint32(r[4:]) }

// SLBA returns the starting LBA.
func (r *DSMRange) SLBA() uint64 { return le.Uint64(r[8:]) }

// Log page identifiers.
const (
	LogError     = 0x01
	LogSMART     = 0x02
	LogFirmware  = 0x03
	LogChangedNS = 0x04
	LogEffects   = 0x05
	LogDiscovery = 0x70
	// LogReservation has LogReservationSize bytes.
	LogReservation = 0x80
)

// SetLogPage sets the fields of Get Log Page. length and offset are in bytes, and
// multiples of 4.
func (s *SQE) SetLogPage(lid uint8, offset uint64, length uint32) {
	dwords := length/4 - 1
	s.SetCDW(10, uint32(lid)|dwords<<16)
	s.SetCDW(11, dwords>>16)
	le.PutUint64(s[48:], offset)
}

// LogPage returns the fields of Get Log Page. length is in bytes. It may be up to 16
// GiB, so the caller has to limit it.
func (s *SQE) LogPage() (lid uint8, offset, length uint64) {
	dwords := uint64(s.CDW(10)>>16) | uint64(s.CDW(11)&0xffff)<<16
	return uint8(s.CDW(10)), le.Uint64(s[48:]), 4 * (dwords + 1)
}

// Feature identifiers.
const (
	FeaturePowerManagement    = 0x02
	FeatureTemperature        = 0x04
	FeatureErrorRecovery      = 0x05
	FeatureVolatileWriteCache = 0x06
	FeatureNumberOfQueues     = 0x07
	FeatureWriteAtomicity     = 0x0a
	FeatureAsyncEventConfig   = 0x0b
	FeatureKeepAliveTimer     = 0x0f // dword 11 is in milliseconds
	FeatureHostID             = 0x81
	FeatureReservationNotice  = 0x82
	FeatureReservationPersist = 0x83
)

// NumberOfQueues encodes the numbers of I/O submission and completion queues, 1 to
// 65535, for dword 11 of Set Features and dword 0 of its completion.
func NumberOfQueues(sq, cq int) uint32 { return uint32(sq-1)&0xffff | uint32(cq-1)<<16 }

// QueueCounts decodes the result of NumberOfQueues.
func QueueCounts(dw uint32) (sq, cq int) { return int(dw&0xffff) + 1, int(dw>>16) + 1 }
