// Package pdu encodes and decodes the protocol data units of NVMe/TCP
// (NVM Express TCP Transport Specification 1.0).
//
// A PDU is a header, optional digests, and data:
//
//	0            8           hlen       +4        pdo            plen
//	| common hdr | type's own | [HDGST] | padding | data | [DDGST] |
//
// The common header:
//
//	0    type            2    hlen, bytes of header
//	1    flags           3    pdo, where data starts
//	                     4-7  plen, bytes altogether
//
// What a PDU may look like depends on its direction and on what the ends
// agreed on in ICReq and ICResp. [Rules] holds that for one direction of one
// connection, and both ends use the same code for it:
//
//   - sending: Rules.Put writes a common header, the caller fills in the
//     rest through the Put functions of each type, Rules.Seal adds the
//     header digest;
//   - receiving: Rules.Common validates the first 8 bytes as soon as they
//     are there and tells how long the header is, Rules.Header validates
//     the whole header. Lengths are bounded by then: nothing the peer wrote
//     needs to be trusted further than its meaning.
//
// Errors are [*Error] and carry the fatal error status for the TermReq that
// must answer them. Nothing here does I/O or keeps state; nothing but errors
// is allocated. A Rules may be used concurrently once it is set.
package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

var le = binary.LittleEndian

// Type is byte 0 of every PDU (figure 12).
type Type uint8

// PDU types.
const (
	TypeICReq       Type = 0x00
	TypeICResp      Type = 0x01
	TypeH2CTermReq  Type = 0x02
	TypeC2HTermReq  Type = 0x03
	TypeCapsuleCmd  Type = 0x04
	TypeCapsuleResp Type = 0x05
	TypeH2CData     Type = 0x06
	TypeC2HData     Type = 0x07
	TypeR2T         Type = 0x09
)

// Flags, byte 1.
const (
	FlagHeaderDigest = 1 << 0 // HDGSTF
	FlagDataDigest   = 1 << 1 // DDGSTF
	FlagLast         = 1 << 2 // LAST_PDU of H2CData and C2HData
	FlagSuccess      = 1 << 3 // SUCCESS of C2HData: no CapsuleResp follows
)

// Lengths in bytes.
const (
	CommonSize = 8
	DigestSize = 4

	ICSize          = 128 // ICReq and ICResp
	CapsuleCmdSize  = 72
	CapsuleRespSize = 24
	DataSize        = 24 // H2CData and C2HData
	R2TSize         = 24
	TermReqSize     = 24
	// MaxTermReqData is the most of the offending PDU a TermReq carries.
	MaxTermReqData = 128

	// MaxAlignment is the largest CPDA or HPDA can ask for.
	MaxAlignment = 128
	// MaxHeaderSize bounds the bytes before the data of any PDU: PDO is one
	// byte wide.
	MaxHeaderSize = 256
)

// kind is what the specification fixes for a type.
type kind struct {
	name     string
	hlen     uint8
	fromHost bool
	data     bool // may carry data
	digests  bool // digests apply
}

var kinds = [...]kind{
	TypeICReq:       {"ICReq", ICSize, true, false, false},
	TypeICResp:      {"ICResp", ICSize, false, false, false},
	TypeH2CTermReq:  {"H2CTermReq", TermReqSize, true, true, false},
	TypeC2HTermReq:  {"C2HTermReq", TermReqSize, false, true, false},
	TypeCapsuleCmd:  {"CapsuleCmd", CapsuleCmdSize, true, true, true},
	TypeCapsuleResp: {"CapsuleResp", CapsuleRespSize, false, false, true},
	TypeH2CData:     {"H2CData", DataSize, true, true, true},
	TypeC2HData:     {"C2HData", DataSize, false, true, true},
	TypeR2T:         {"R2T", R2TSize, false, false, true},
}

// String returns the specification's name.
func (t Type) String() string {
	if k := t.kind(); k != nil {
		return k.name
	}
	return "PDU of unknown type"
}

// kind returns nil for a type that does not exist.
func (t Type) kind() *kind {
	if int(t) < len(kinds) && kinds[t].hlen != 0 {
		return &kinds[t]
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest extends a header or data digest (CRC32C) by b. It starts from 0 and
// is stored little-endian.
func Digest(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }
