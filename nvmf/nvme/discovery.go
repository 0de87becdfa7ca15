package nvme

// Transport types (TRTYPE) and address families (ADRFAM) of discovery log entries.
const (
	TransportRDMA = 1
	TransportFC   = 2
	TransportTCP  = 3

	FamilyIPv4 = 1
	FamilyIPv6 = 2
)

// Subsystem types (SUBTYPE) of discovery log entries.
const (
	SubtypeReferral         = 1
	SubtypeNVM              = 2
	SubtypeCurrentDiscovery = 3
)

// Transport requirements (TREQ). Bits 1:0 are 01b if a secure channel is required, and
// 10b if it is not. Bit 2 is set if SQ flow control can be disabled.
const (
	TREQRequired    = 1
	TREQNotRequired = 2
	TREQNoSQFlow    = 1 << 2
)

// SecurityTLS13 is the security type (SECTYPE) of TLS 1.3 in TSAS, byte 768 of an entry.
const SecurityTLS13 = 2

// DiscoveryHeader is the header of a discovery log page:
//
//	 0- 7  generation counter
//	 8-15  number of records
//	16-17  record format, 0
type DiscoveryHeader [DiscoveryHeaderSize]byte

// Set writes the whole header.
func (h *DiscoveryHeader) Set(generation, records uint64) {
	*h = DiscoveryHeader{}
	le.PutUint64(h[0:], generation)
	le.PutUint64(h[8:], records)
}

// Generation returns the generation counter, which changes whenever the log changes.
func (h *DiscoveryHeader) Generation() uint64 { return le.Uint64(h[0:]) }

// Records returns the number of entries that follow.
func (h *DiscoveryHeader) Records() uint64 { return le.Uint64(h[8:]) }

// RecordFormat returns the record format. It is 0 for the entries of this package.
func (h *DiscoveryHeader) RecordFormat() uint16 { return le.Uint16(h[16:]) }

// DiscoveryEntry is an entry of a discovery log page:
//
//	0  transport type    4- 5  port id             32- 63  trsvcid
//	1  address family    6- 7  controller id      256- 511  subsystem NQN
//	2  subsystem type    8- 9  admin SQ size      512- 767  traddr
//	3  requirements     10-11  entry flags        768-1023  transport specific
type DiscoveryEntry [DiscoveryEntrySize]byte

// SetSubsystem writes the whole entry for a subsystem at a TCP port. The subsystem uses
// the dynamic controller model and no TLS. subtype is SubtypeNVM or
// SubtypeCurrentDiscovery.
func (e *DiscoveryEntry) SetSubsystem(subtype, family uint8, portID uint16, subNQN, traddr, trsvcid string) {
	*e = DiscoveryEntry{TransportTCP, family, subtype, TREQNoSQFlow}
	le.PutUint16(e[4:], portID)
	le.PutUint16(e[6:], CNTLIDDynamic)
	le.PutUint16(e[8:], 32)
	putSpace(e[32:64], trsvcid)
	putZero(e[256:512], subNQN)
	putSpace(e[512:768], traddr)
}

// RequireTLS marks the port as one that accepts only connections with TLS 1.3. It sets
// TREQ, and the security type in TCP's TSAS (NVMe TCP Transport Specification 1.0,
// figure 10).
func (e *DiscoveryEntry) RequireTLS() {
	e[3] = e[3]&^3 | TREQRequired
	e[768] = SecurityTLS13
}

// TransportType returns TRTYPE.
func (e *DiscoveryEntry) TransportType() uint8 { return e[0] }

// AddressFamily returns ADRFAM.
func (e *DiscoveryEntry) AddressFamily() uint8 { return e[1] }

// Subtype returns SUBTYPE.
func (e *DiscoveryEntry) Subtype() uint8 { return e[2] }

// TREQ returns the transport requirements.
func (e *DiscoveryEntry) TREQ() uint8 { return e[3] }

// PortID returns PORTID.
func (e *DiscoveryEntry) PortID() uint16 { return le.Uint16(e[4:]) }

// CNTLID returns the controller ID; CNTLIDDynamic means any controller.
func (e *DiscoveryEntry) CNTLID() uint16 { return le.Uint16(e[6:]) }

// Service returns TRSVCID, the port number.
func (e *DiscoveryEntry) Service() string { return text(e[32:64]) }

// SubNQN returns the subsystem NQN.
func (e *DiscoveryEntry) SubNQN() string { return text(e[256:512]) }

// Address returns TRADDR.
func (e *DiscoveryEntry) Address() string { return text(e[512:768]) }

// SecurityType returns SECTYPE of a TCP entry: 0 none, 1 TLS 1.2, 2 TLS 1.3.
func (e *DiscoveryEntry) SecurityType() uint8 { return e[768] }
