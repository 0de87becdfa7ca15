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
// The valid form of a PDU depends on its direction, and on the options that the ends
// have agreed on in ICReq and ICResp. [Rules] holds both for one direction of one
// connection. Both ends use the same code:
//
//   - Sending: Rules.Put writes a common header, the caller fills in the rest by
//     the Put functions of each type, and Rules.Seal adds the header digest.
//   - Receiving: Rules.Common validates the first 8 bytes as soon as they have
//     arrived, and returns the length of the header. Rules.Header then validates
//     the whole header. After that all lengths are within their limits.
//
// Errors are [*Error], and carry the fatal error status for the TermReq with which the
// receiver must answer. The package does no I/O and has no state. It allocates memory
// only for errors. A Rules is safe for concurrent use once its fields are set.
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
	// MaxTermReqData is the maximum number of bytes of the offending PDU in a TermReq.
	MaxTermReqData = 128

	// MaxAlignment is the maximum alignment that CPDA or HPDA can ask for.
	MaxAlignment = 128
	// MaxHeaderSize limits the number of bytes before the data of any PDU, since PDO
	// has one byte.
	MaxHeaderSize = 256
)

// kind has the properties that the specification defines for a PDU type.
type kind struct {
	name     string
	hlen     uint8
	fromHost bool
	data     bool // the PDU may have data
	digests  bool // the PDU has digests if they are enabled
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

// String returns the name of the type in the specification.
func (t Type) String() string {
	if k := t.kind(); k != nil {
		return k.name
	}
	return "PDU of unknown type"
}

// kind returns the properties of a type, or nil if the type does not exist.
func (t Type) kind() *kind {
	if int(t) < len(kinds) && kinds[t].hlen != 0 {
		return &kinds[t]
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest extends a header or data digest (CRC32C) by the bytes b. The initial value is
// 0. Digests are stored little-endian.
func Digest(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }
