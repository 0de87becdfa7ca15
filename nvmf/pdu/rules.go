package pdu

// Rules holds the options that the two ends have agreed on for one direction of a
// connection.
type Rules struct {
	// FromHost is true for PDUs from host to controller, and false for the other
	// direction.
	FromHost bool
	// HeaderDigest and DataDigest say that the digests are in use, since both ends
	// support them.
	HeaderDigest, DataDigest bool
	// Align is the alignment of data in a PDU in bytes: 4 x (PDA+1), where PDA is the
	// receiver's CPDA or HPDA. 0 means 4.
	Align uint32
	// MaxData limits the data of one PDU in bytes. It is MAXH2CDATA for H2CData. For
	// other types the receiver chooses it.
	MaxData uint32
	// MaxCapsuleData limits the data of a CapsuleCmd in bytes. It comes from IOCCSZ.
	MaxCapsuleData uint32
}

// Put writes the common header of a PDU of type t with n bytes of data to b, and zeroes
// the rest of the header. It returns the number of bytes that precede the data: header,
// digest and padding. b must have space for them; MaxHeaderSize always suffices.
//
// The caller sends the n bytes of data next, and then the data digest if Put has set
// FlagDataDigest. The digest has TrailerSize(n) bytes.
func (r *Rules) Put(b []byte, t Type, flags uint8, n int) int {
	k := &kinds[t]
	head := int(k.hlen)
	if r.HeaderDigest && k.digests {
		flags |= FlagHeaderDigest
		head += DigestSize
	}
	pdo, tail := 0, 0
	if n > 0 {
		if align := int(r.align()); k.digests && head%align != 0 {
			head += align - head%align
		}
		pdo = head
		if t == TypeH2CTermReq || t == TypeC2HTermReq {
			pdo = 0 // PDO is reserved in a TermReq
		}
		if r.DataDigest && k.digests {
			flags |= FlagDataDigest
			tail = DigestSize
		}
	}
	clear(b[:head])
	b[0], b[1], b[2], b[3] = uint8(t), flags, k.hlen, uint8(pdo)
	le.PutUint32(b[4:], uint32(head+n+tail))
	return head
}

// Seal adds the header digest to the complete header at the start of b, if Put has set
// FlagHeaderDigest.
func (r *Rules) Seal(b []byte) {
	if b[1]&FlagHeaderDigest != 0 {
		n := b[2]
		le.PutUint32(b[n:], Digest(0, b[:n]))
	}
}

// TrailerSize returns the number of bytes after n bytes of data: 4 if there is a data
// digest. It is not for TermReqs.
func (r *Rules) TrailerSize(n int) int {
	if r.DataDigest && n > 0 {
		return DigestSize
	}
	return 0
}

func (r *Rules) align() uint32 {
	if r.Align < 4 {
		return 4
	}
	return r.Align
}

// Alignment returns the value of Rules.Align for a CPDA or HPDA.
func Alignment(pda uint8) uint32 { return 4 * (uint32(pda&31) + 1) }

// Header is a validated common header.
type Header struct {
	Type  Type
	Flags uint8
	HLen  uint8
	// Offset is the offset of the data in the PDU, and Data its length in bytes.
	// Without data, Offset is the length of the PDU.
	Offset uint8
	Data   uint32
	// Digest says that a data digest follows the data.
	Digest bool
}

// Size returns the number of bytes that Rules.Header needs: the header and its digest.
func (h Header) Size() int {
	if h.Flags&FlagHeaderDigest != 0 {
		return int(h.HLen) + DigestSize
	}
	return int(h.HLen)
}

// Last reports whether FlagLast is set.
func (h Header) Last() bool { return h.Flags&FlagLast != 0 }

// Success reports whether FlagSuccess is set.
func (h Header) Success() bool { return h.Flags&FlagSuccess != 0 }

// Common validates the first 8 bytes of a PDU.
func (r *Rules) Common(b []byte) (Header, error) {
	if len(b) < CommonSize {
		return Header{}, fieldError(0, "PDU of %d bytes has no common header", len(b))
	}
	h := Header{Type: Type(b[0]), Flags: b[1], HLen: b[2], Offset: b[3]}
	plen := le.Uint32(b[4:])
	k := h.Type.kind()
	switch {
	case k == nil:
		return h, fieldError(0, "PDU type %#02x does not exist", b[0])
	case k.fromHost != r.FromHost:
		return h, fieldError(0, "%s came from the wrong end", h.Type)
	case h.HLen != k.hlen:
		return h, fieldError(2, "%s with a header of %d bytes instead of %d", h.Type, h.HLen, k.hlen)
	case !k.digests && h.Flags&(FlagHeaderDigest|FlagDataDigest) != 0:
		return h, fieldError(1, "%s with digest flags %#02x", h.Type, h.Flags)
	case k.digests && r.HeaderDigest != (h.Flags&FlagHeaderDigest != 0):
		return h, fieldError(1, "%s with flags %#02x where header digest is %t", h.Type, h.Flags, r.HeaderDigest)
	}
	head := uint32(h.Size())
	switch {
	case plen < head:
		return h, fieldError(4, "%s of %d bytes is shorter than its header", h.Type, plen)
	case plen == head:
		h.Offset, h.Flags = uint8(head), h.Flags&^FlagDataDigest
		return h, nil
	case !k.data:
		return h, fieldError(4, "%s of %d bytes is longer than its header", h.Type, plen)
	case !k.digests:
		h.Offset, h.Data = uint8(head), plen-head
		if h.Data > MaxTermReqData {
			return h, fieldError(4, "%s with %d bytes of data, at most %d are allowed", h.Type, h.Data, MaxTermReqData)
		}
		return h, nil
	}
	return h, r.dataLength(&h, head, plen)
}

// dataLength validates the offset and the length of the data.
func (r *Rules) dataLength(h *Header, head, plen uint32) error {
	pdo := uint32(h.Offset)
	if pdo < head || pdo%r.align() != 0 || pdo > plen {
		return fieldError(3, "%s of %d bytes with data at %d: not behind the header of %d at a multiple of %d",
			h.Type, plen, pdo, head, r.align())
	}
	h.Data = plen - pdo
	if h.Data == 0 {
		h.Flags &^= FlagDataDigest
		return nil
	}
	if r.DataDigest != (h.Flags&FlagDataDigest != 0) {
		return fieldError(1, "%s with flags %#02x where data digest is %t", h.Type, h.Flags, r.DataDigest)
	}
	if h.Digest = r.DataDigest; h.Digest {
		if h.Data <= DigestSize {
			return fieldError(4, "%s of %d bytes has no data before its digest", h.Type, plen)
		}
		h.Data -= DigestSize
	}
	limit := r.MaxData
	if h.Type == TypeCapsuleCmd {
		limit = r.MaxCapsuleData
	}
	if h.Data > limit {
		return fieldError(4, "%s with %d bytes of data, at most %d are allowed", h.Type, h.Data, limit)
	}
	return nil
}

// Header validates the whole header of a PDU. h is the result of Common, and b has at
// least h.Size() bytes.
func (r *Rules) Header(h Header, b []byte) error {
	if len(b) < h.Size() {
		return fieldError(2, "%s of %d bytes is shorter than its header", h.Type, len(b))
	}
	if h.Flags&FlagHeaderDigest != 0 {
		if got, want := le.Uint32(b[h.HLen:]), Digest(0, b[:h.HLen]); got != want {
			return &Error{FES: HeaderDigestError, FEI: got, Text: h.Type.String() + " with a wrong header digest"}
		}
	}
	switch h.Type {
	case TypeICReq, TypeICResp:
		return checkIC(h.Type, b)
	case TypeH2CData, TypeC2HData:
		return checkData(h, DataOf(b))
	case TypeR2T:
		if t := R2TOf(b); t.Length == 0 || t.Offset%4 != 0 || t.Offset > 0xffffffff-t.Length {
			return fieldError(12, "R2T for %d bytes at %d", t.Length, t.Offset)
		}
	}
	return nil
}

func checkIC(t Type, b []byte) error {
	if v := le.Uint16(b[8:]); v != 0 {
		return &Error{FES: UnsupportedParameter, FEI: 8, Text: t.String() + " of a PDU format version other than 0"}
	}
	if b[10] > 31 {
		return fieldError(10, "%s asks for an alignment of %d dwords", t, int(b[10])+1)
	}
	if m := le.Uint32(b[12:]); t == TypeICResp && (m < 4096 || m%4 != 0) {
		return fieldError(12, "ICResp with MAXH2CDATA %d, at least 4096 and a multiple of 4 is required", m)
	}
	return nil
}

func checkData(h Header, d Data) error {
	switch {
	case d.Length != h.Data || h.Data == 0:
		return fieldError(16, "%s says %d bytes of data and carries %d", h.Type, d.Length, h.Data)
	case d.Offset%4 != 0:
		return fieldError(12, "%s with data at offset %d, not a multiple of 4", h.Type, d.Offset)
	case d.Offset > 0xffffffff-d.Length:
		return fieldError(12, "%s with %d bytes at offset %d", h.Type, d.Length, d.Offset)
	case h.Success() && (h.Type != TypeC2HData || !h.Last()):
		return fieldError(1, "%s with SUCCESS that is not the last", h.Type)
	}
	return nil
}
