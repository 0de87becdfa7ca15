package pdu

import "nvmecr/nvmf/nvme"

// The following functions encode and decode the part of a PDU after the common header.
// The decoding functions require a header that Rules.Header has accepted.

// Digest enable bits (DGST) of ICReq and ICResp.
const (
	EnableHeaderDigest = 1 << 0
	EnableDataDigest   = 1 << 1
)

// IC is the part of ICReq and ICResp after the common header:
//
//	 8- 9  PDU format version, 0
//	10     HPDA of ICReq, CPDA of ICResp: alignment in dwords, 0's based
//	11     DGST: digests asked for, or agreed on
//	12-15  MAXR2T of ICReq (0's based), MAXH2CDATA of ICResp (bytes)
type IC struct {
	PDA    uint8
	Digest uint8
	Max    uint32
}

// ICOf reads an ICReq or ICResp.
func ICOf(b []byte) IC { return IC{b[10], b[11], le.Uint32(b[12:])} }

// PutICReq writes a whole ICReq of ICSize bytes. maxR2T is the number of R2Ts that the
// host accepts per command at once, at least 1. pda is the HPDA.
func PutICReq(b []byte, pda, digest uint8, maxR2T uint32) {
	(&Rules{FromHost: true}).Put(b, TypeICReq, 0, 0)
	b[10], b[11] = pda, digest
	le.PutUint32(b[12:], maxR2T-1)
}

// PutICResp writes a whole ICResp of ICSize bytes. maxH2CData is the maximum data
// length of an H2CData: a multiple of 4, at least 4096.
func PutICResp(b []byte, pda, digest uint8, maxH2CData uint32) {
	(&Rules{}).Put(b, TypeICResp, 0, 0)
	b[10], b[11] = pda, digest
	le.PutUint32(b[12:], maxH2CData)
}

// SQEOf returns the command in a CapsuleCmd, without a copy.
func SQEOf(b []byte) *nvme.SQE { return (*nvme.SQE)(b[8:72]) }

// CQEOf returns the completion in a CapsuleResp, without a copy.
func CQEOf(b []byte) *nvme.CQE { return (*nvme.CQE)(b[8:24]) }

// Data is the part of H2CData and C2HData between the common header and the data:
//
//	 8- 9  command identifier
//	10-11  transfer tag, H2CData only
//	12-15  offset in the command's data, bytes
//	16-19  length, bytes
type Data struct {
	CID    uint16
	TTag   uint16
	Offset uint32
	Length uint32
}

// DataOf reads an H2CData or C2HData.
func DataOf(b []byte) Data {
	return Data{le.Uint16(b[8:]), le.Uint16(b[10:]), le.Uint32(b[12:]), le.Uint32(b[16:])}
}

// PutData writes d after a common header.
func PutData(b []byte, d Data) {
	le.PutUint16(b[8:], d.CID)
	le.PutUint16(b[10:], d.TTag)
	le.PutUint32(b[12:], d.Offset)
	le.PutUint32(b[16:], d.Length)
}

// R2T asks the host for data. It has the same fields as Data, at the same offsets.
type R2T Data

// R2TOf reads an R2T.
func R2TOf(b []byte) R2T { return R2T(DataOf(b)) }

// PutR2T writes r after a common header.
func PutR2T(b []byte, r R2T) { PutData(b, Data(r)) }

// TermReq is the part of a TermReq PDU after the common header. The PDU ends a
// connection:
//
//	 8- 9  fatal error status
//	10-13  fatal error information
type TermReq struct {
	FES FES
	FEI uint32
}

// TermReqOf reads an H2CTermReq or C2HTermReq.
func TermReqOf(b []byte) TermReq { return TermReq{FES(le.Uint16(b[8:])), le.Uint32(b[10:])} }

// PutTermReq writes the TermReq for err to b and returns its length, at most
// TermReqSize+MaxTermReqData. fromHost is the direction of the TermReq. offending is
// the header of the invalid PDU. PutTermReq truncates it to the permitted length.
func PutTermReq(b []byte, fromHost bool, err *Error, offending []byte) int {
	t := TypeC2HTermReq
	if fromHost {
		t = TypeH2CTermReq
	}
	offending = offending[:min(len(offending), MaxTermReqData)]
	n := (&Rules{FromHost: fromHost}).Put(b, t, 0, len(offending))
	le.PutUint16(b[8:], uint16(err.FES))
	le.PutUint32(b[10:], err.FEI)
	return n + copy(b[n:], offending)
}
