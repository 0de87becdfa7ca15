package nvme

import "fmt"

// ReservationType is the type of a reservation (RTYPE; Base Specification 2.0, section
// 8.19). 0 means no reservation.
type ReservationType uint8

// The types differ in who may write to a reserved namespace and, with exclusive access,
// read it: only the holder; all registrants; or all registrants, each of which is a
// holder.
const (
	WriteExclusive                 ReservationType = 1
	ExclusiveAccess                ReservationType = 2
	WriteExclusiveRegistrantsOnly  ReservationType = 3
	ExclusiveAccessRegistrantsOnly ReservationType = 4
	WriteExclusiveAllRegistrants   ReservationType = 5
	ExclusiveAccessAllRegistrants  ReservationType = 6
)

// Valid reports whether t is one of the six types.
func (t ReservationType) Valid() bool {
	return t >= WriteExclusive && t <= ExclusiveAccessAllRegistrants
}

// AllRegistrants reports whether every registrant is a holder.
func (t ReservationType) AllRegistrants() bool {
	return t == WriteExclusiveAllRegistrants || t == ExclusiveAccessAllRegistrants
}

// RegistrantsOnly reports whether registrants that do not hold the reservation have the
// same access as the holder.
func (t ReservationType) RegistrantsOnly() bool {
	return t == WriteExclusiveRegistrantsOnly || t == ExclusiveAccessRegistrantsOnly
}

// ExclusiveAccess reports whether hosts without access may not even read.
func (t ReservationType) ExclusiveAccess() bool {
	return t == ExclusiveAccess || t == ExclusiveAccessRegistrantsOnly || t == ExclusiveAccessAllRegistrants
}

// String returns the name of the type in the specification.
func (t ReservationType) String() string {
	names := []string{"no reservation", "Write Exclusive", "Exclusive Access", "Write Exclusive - Registrants Only",
		"Exclusive Access - Registrants Only", "Write Exclusive - All Registrants", "Exclusive Access - All Registrants"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("reservation type %#x", uint8(t))
}

// Bits of RESCAP, the reservation capabilities of a namespace. Each reservation type
// has the bit of the number RTYPE.
const (
	RESCAPPersist        = 1 << 0 // reservations persist through power loss
	RESCAPWriteExclusive = 1 << 1
	RESCAPAllTypes       = 0x7e
	// RESCAPIgnoreKey: IEKEY has the meaning of revision 1.3, and is valid only in
	// Register.
	RESCAPIgnoreKey = 1 << 7
)

// RESCAP returns byte 31: the reservation capabilities.
func (p *IdentifyNamespace) RESCAP() uint8 { return p[31] }

// SetRESCAP sets RESCAP.
func (p *IdentifyNamespace) SetRESCAP(v uint8) { p[31] = v }

// Actions of the reservation commands: RREGA, RACQA, RRELA.
const (
	ReservationRegister   = 0
	ReservationUnregister = 1
	ReservationReplace    = 2

	ReservationAcquire      = 0
	ReservationPreempt      = 1
	ReservationPreemptAbort = 2

	ReservationRelease = 0
	ReservationClear   = 1
)

// Values of CPTPL, by which Register changes whether reservations persist.
const (
	PersistNoChange = 0
	PersistOff      = 2
	PersistOn       = 3
)

// ReservationNoticeMask has the bits of dword 11 of FeatureReservationNotice that mask
// notifications: registration preempted, reservation released, reservation preempted.
const ReservationNoticeMask = 7 << 1

// Sizes of the data of reservation commands in bytes.
const (
	// ReservationKeysSize is for Register and Acquire.
	ReservationKeysSize = 16
	// ReservationKeySize is for Release.
	ReservationKeySize = 8
	// LogReservationSize is for the Reservation Notification log page.
	LogReservationSize = 64
	// ReservationReportHeader and ReservationReportEntry are for the extended form of
	// Report.
	ReservationReportHeader = 64
	ReservationReportEntry  = 64
)

// A ReservationCommand has the fields of dword 10 of Register, Acquire and Release:
//
//	 2- 0  action: RREGA, RACQA or RRELA
//	 3     IEKEY: ignore the existing key
//	15- 8  RTYPE, of Acquire and Release
//	31-30  CPTPL, of Register
type ReservationCommand struct {
	Action    uint8
	IgnoreKey bool
	Type      ReservationType
	Persist   uint8
}

// SetReservation sets dword 10.
func (s *SQE) SetReservation(c ReservationCommand) {
	v := uint32(c.Action&7) | uint32(c.Type)<<8 | uint32(c.Persist)<<30
	if c.IgnoreKey {
		v |= 1 << 3
	}
	s.SetCDW(10, v)
}

// Reservation returns the fields of dword 10.
func (s *SQE) Reservation() ReservationCommand {
	v := s.CDW(10)
	return ReservationCommand{uint8(v & 7), v>>3&1 != 0, ReservationType(v >> 8), uint8(v >> 30)}
}

// SetReservationReport sets the fields of Reservation Report. length is in bytes, a
// multiple of 4 and at least 4. extended (EDS) asks for 128-bit host identifiers.
func (s *SQE) SetReservationReport(length uint32, extended bool) {
	s.SetCDW(10, length/4-1)
	s.SetCDW(11, 0)
	if extended {
		s.SetCDW(11, 1)
	}
}

// ReservationReport returns the fields of Reservation Report. length is in bytes. It
// may be up to 16 GiB, so the caller has to limit it.
func (s *SQE) ReservationReport() (length uint64, extended bool) {
	return 4 * (uint64(s.CDW(10)) + 1), s.CDW(11)&1 != 0
}

// ReservationKeys is the data of Register and Acquire:
//
//	0- 7  CRKEY: the key the host is registered with
//	8-15  NRKEY of Register, PRKEY of Acquire: the key to register, or that of
//	      the registrants to preempt
type ReservationKeys [ReservationKeysSize]byte

// Set writes both keys.
func (k *ReservationKeys) Set(current, other uint64) {
	le.PutUint64(k[0:], current)
	le.PutUint64(k[8:], other)
}

// Current returns CRKEY.
func (k *ReservationKeys) Current() uint64 { return le.Uint64(k[0:]) }

// Other returns NRKEY or PRKEY.
func (k *ReservationKeys) Other() uint64 { return le.Uint64(k[8:]) }

// ReservationKey is the data of Release: CRKEY.
type ReservationKey [ReservationKeySize]byte

// Set writes the key.
func (k *ReservationKey) Set(current uint64) { le.PutUint64(k[:], current) }

// Current returns CRKEY.
func (k *ReservationKey) Current() uint64 { return le.Uint64(k[:]) }

// ReservationStatus is the data of Reservation Report. Its extended form on the wire:
//
//	 0- 3  GEN
//	 4     RTYPE
//	 5- 6  number of registrants
//	 9     PTPLS
//	64-    64 bytes for each registrant:
//	        0- 1  CNTLID, FFFFh with dynamic controllers only
//	        2     RCSTS: bit 0 is set if the registrant holds the reservation
//	        8-15  RKEY
//	       16-31  HOSTID
type ReservationStatus struct {
	Generation  uint32 // counts changes of registrations
	Type        ReservationType
	Persists    bool // reservation persists through power loss
	Registrants []Registrant
}

// A Registrant is a host that registered a key.
type Registrant struct {
	CNTLID uint16
	Holder bool
	Key    uint64
	HostID [16]byte
}

// Append appends the extended form of r to b.
func (r *ReservationStatus) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, ReservationReportHeader+len(r.Registrants)*ReservationReportEntry)...)
	p := b[at:]
	le.PutUint32(p[0:], r.Generation)
	p[4] = uint8(r.Type)
	le.PutUint16(p[5:], uint16(len(r.Registrants)))
	if r.Persists {
		p[9] = 1
	}
	for i := range r.Registrants {
		g, e := &r.Registrants[i], p[ReservationReportHeader+i*ReservationReportEntry:]
		le.PutUint16(e[0:], g.CNTLID)
		if g.Holder {
			e[2] = 1
		}
		le.PutUint64(e[8:], g.Key)
		copy(e[16:32], g.HostID[:])
	}
	return b
}

// ReservationStatusOf decodes the extended form. total is the number of registrants
// that the header states; r lacks those that do not fit b. ok is false if b is shorter
// than the header.
func ReservationStatusOf(b []byte) (r ReservationStatus, total int, ok bool) {
	if len(b) < ReservationReportHeader {
		return r, 0, false
	}
	r.Generation, r.Type, r.Persists = le.Uint32(b), ReservationType(b[4]), b[9]&1 != 0
	total = int(le.Uint16(b[5:]))
	b = b[ReservationReportHeader:]
	n := min(total, len(b)/ReservationReportEntry)
	r.Registrants = make([]Registrant, n)
	for i := range r.Registrants {
		e := b[i*ReservationReportEntry:]
		r.Registrants[i] = Registrant{le.Uint16(e), e[2]&1 != 0, le.Uint64(e[8:]), [16]byte(e[16:32])}
	}
	return r, total, true
}
