package dhchap

import "slices"

// All messages begin with this header:
//
//	0     type: 0 common, 1 DH-HMAC-CHAP
//	1     id
//	4- 5  transaction id
//
// All numbers are little-endian, except for public values, which are big-endian.
const headerSize = 6

// A kind is the type and the id of a message.
type kind uint16

const (
	kindNegotiate kind = 0x000
	kindFailure2  kind = 0x0f0
	kindFailure1  kind = 0x0f1
	kindChallenge kind = 0x101
	kindReply     kind = 0x102
	kindSuccess1  kind = 0x103
	kindSuccess2  kind = 0x104
)

var kindNames = map[kind]string{
	kindNegotiate: "AUTH_Negotiate", kindFailure1: "AUTH_Failure1", kindFailure2: "AUTH_Failure2",
	kindChallenge: "DH-HMAC-CHAP_Challenge", kindReply: "DH-HMAC-CHAP_Reply",
	kindSuccess1: "DH-HMAC-CHAP_Success1", kindSuccess2: "DH-HMAC-CHAP_Success2",
}

func (k kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return "a message of unknown type"
}

// start returns a message of n bytes with its header filled in.
func (k kind) start(tid uint16, n int) []byte {
	b := make([]byte, n)
	b[0], b[1] = byte(k>>8), byte(k)
	le.PutUint16(b[4:], tid)
	return b
}

// headerOf decodes the header of a message.
func headerOf(b []byte) (k kind, tid uint16, err *Error) {
	if len(b) < headerSize {
		return 0, 0, fail(IncorrectPayload, "a message of %d bytes", len(b))
	}
	return kind(b[0])<<8 | kind(b[1]), le.Uint16(b[4:]), nil
}

// need returns an error for a message of fewer than n bytes.
func (k kind) need(b []byte, n int) *Error {
	if len(b) < n {
		return fail(IncorrectPayload, "%s of %d bytes instead of %d", k, len(b), n)
	}
	return nil
}

// negotiate is the first message of a host:
//
//	6     secure channel concatenation, 0 for none
//	7     number of protocol descriptors, each:
//	       0     protocol, 1 for DH-HMAC-CHAP
//	       2, 3  number of hashes, of groups
//	       4-33  hashes, 34-63 groups
type negotiate struct {
	concat byte
	offer  Offer // the hashes and groups of the first DH-HMAC-CHAP descriptor that this package knows
}

const (
	negotiateSize  = 8
	descriptorSize = 64
	descriptorList = 30
	protocolDHCHAP = 1
)

func (m *negotiate) encode(tid uint16) []byte {
	b := kindNegotiate.start(tid, negotiateSize+descriptorSize)
	b[6], b[7] = m.concat, 1
	d := b[negotiateSize:]
	d[0], d[2], d[3] = protocolDHCHAP, byte(len(m.offer.Hashes)), byte(len(m.offer.Groups))
	for i, h := range m.offer.Hashes {
		d[4+i] = byte(h)
	}
	for i, g := range m.offer.Groups {
		d[4+descriptorList+i] = byte(g)
	}
	return b
}

func (m *negotiate) decode(b []byte) *Error {
	if err := kindNegotiate.need(b, negotiateSize); err != nil {
		return err
	}
	list := b[negotiateSize:]
	if len(list) != int(b[7])*descriptorSize {
		return fail(IncorrectPayload, "%s of %d bytes with %d protocols", kindNegotiate, len(b), b[7])
	}
	m.concat = b[6]
	for d := range slices.Chunk(list, descriptorSize) {
		if d[0] != protocolDHCHAP {
			continue
		}
		if d[2] > descriptorList || d[3] > descriptorList {
			return fail(IncorrectPayload, "%s with %d hashes and %d groups, at most 30 fit", kindNegotiate, d[2], d[3])
		}
		for _, h := range d[4:][:d[2]] {
			m.offer.Hashes = append(m.offer.Hashes, Hash(h))
		}
		for _, g := range d[4+descriptorList:][:d[3]] {
			m.offer.Groups = append(m.offer.Groups, Group(g))
		}
		return nil
	}
	return fail(ProtocolUnusable, "the host offers no DH-HMAC-CHAP")
}

// challenge is the controller's answer to negotiate:
//
//	 6     length of a hash
//	 8, 9  hash, group
//	10-11  length of the public value
//	12-15  sequence number, not 0
//	16-    challenge, public value
type challenge struct {
	hash   Hash
	group  Group
	seq    uint32
	value  []byte
	public []byte
}

const bodyAt = 16 // offset of the variable-length fields

func (m *challenge) encode(tid uint16) []byte {
	b := kindChallenge.start(tid, bodyAt)
	b[6], b[8], b[9] = byte(len(m.value)), byte(m.hash), byte(m.group)
	le.PutUint16(b[10:], uint16(len(m.public)))
	le.PutUint32(b[12:], m.seq)
	return append(append(b, m.value...), m.public...)
}

// decode takes a message in a buffer that may be longer.
func (m *challenge) decode(b []byte) *Error {
	if err := kindChallenge.need(b, bodyAt); err != nil {
		return err
	}
	m.hash, m.group, m.seq = Hash(b[8]), Group(b[9]), le.Uint32(b[12:])
	hl, dhvlen := int(b[6]), int(le.Uint16(b[10:]))
	switch {
	case m.hash.Size() == 0 || m.hash.Size() != hl:
		return fail(IncorrectPayload, "%s with %s of %d bytes", kindChallenge, m.hash, hl)
	case m.seq == 0:
		return fail(IncorrectPayload, "%s with sequence number 0", kindChallenge)
	}
	if err := checkPublic(m.group, dhvlen); err != nil {
		return err
	}
	if err := kindChallenge.need(b, bodyAt+hl+dhvlen); err != nil {
		return err
	}
	m.value, m.public = b[bodyAt:][:hl], b[bodyAt+hl:][:dhvlen]
	return nil
}

// checkPublic checks the length of a public value for a group.
func checkPublic(g Group, n int) *Error {
	if n > g.Size() || n%4 != 0 || (n == 0) != (g == NullGroup) {
		return fail(IncorrectPayload, "a public value of %d bytes for %s", n, g)
	}
	return nil
}

// reply has the host's proof, and the host's challenge if it asks for a proof:
//
//	 6     length of a hash
//	 8     1 if there is a challenge
//	10-11  length of the public value
//	12-15  sequence number, 0 without a challenge
//	16-    response, challenge (zeros if there is none), public value
type reply struct {
	response []byte
	asks     bool
	seq      uint32
	value    []byte
	public   []byte
}

func (m *reply) encode(tid uint16) []byte {
	hl := len(m.response)
	b := kindReply.start(tid, bodyAt+2*hl)
	b[6] = byte(hl)
	if m.asks {
		b[8] = 1
	}
	le.PutUint16(b[10:], uint16(len(m.public)))
	le.PutUint32(b[12:], m.seq)
	copy(b[bodyAt:], m.response)
	copy(b[bodyAt+hl:], m.value)
	return append(b, m.public...)
}

// decode decodes the reply to a challenge of hash h and group g.
func (m *reply) decode(b []byte, h Hash, g Group) *Error {
	if err := kindReply.need(b, bodyAt); err != nil {
		return err
	}
	hl, dhvlen := int(b[6]), int(le.Uint16(b[10:]))
	m.asks, m.seq = b[8] == 1, le.Uint32(b[12:])
	switch {
	case hl != h.Size():
		return fail(IncorrectPayload, "%s with a response of %d bytes for %s", kindReply, hl, h)
	case b[8] > 1, m.asks && m.seq == 0:
		return fail(IncorrectPayload, "%s with CVALID %d and sequence number %d", kindReply, b[8], m.seq)
	}
	if err := checkPublic(g, dhvlen); err != nil {
		return err
	}
	if len(b) != bodyAt+2*hl+dhvlen {
		return fail(IncorrectPayload, "%s of %d bytes instead of %d", kindReply, len(b), bodyAt+2*hl+dhvlen)
	}
	m.response, m.value, m.public = b[bodyAt:][:hl], b[bodyAt+hl:][:hl], b[bodyAt+2*hl:]
	return nil
}

// success1 tells the host that its proof is valid. It has the controller's proof if the
// host has asked for one:
//
//	 6     length of a hash; Linux requires it even without a response
//	 8     1 if there is a response
//	16-    response
type success1 struct {
	hash     Hash
	response []byte // nil: none
}

func (m *success1) encode(tid uint16) []byte {
	b := kindSuccess1.start(tid, bodyAt)
	b[6] = byte(m.hash.Size())
	if m.response != nil {
		b[8] = 1
	}
	return append(b, m.response...)
}

// decode takes a message in a buffer that may be longer. A response has to be
// one of hash h.
func (m *success1) decode(b []byte, h Hash) *Error {
	if err := kindSuccess1.need(b, bodyAt); err != nil {
		return err
	}
	m.hash = h
	if b[8] == 0 {
		return nil
	}
	if int(b[6]) != h.Size() {
		return fail(IncorrectPayload, "%s with a response of %d bytes for %s", kindSuccess1, b[6], h)
	}
	if err := kindSuccess1.need(b, bodyAt+h.Size()); err != nil {
		return err
	}
	m.response = b[bodyAt:][:h.Size()]
	return nil
}

const success2Size = 16

// A failure message, by which either end ends a transaction:
//
//	6     reason code, 1
//	7     reason code explanation
const failureSize = 8

func encodeFailure(k kind, tid uint16, r Reason) []byte {
	b := k.start(tid, failureSize)
	b[6], b[7] = reasonCodeFailure, byte(r)
	return b
}

// decodeFailure returns the failure that the other end reports as an *Error.
func decodeFailure(k kind, b []byte) *Error {
	if err := k.need(b, failureSize); err != nil {
		return err
	}
	return &Error{Reason: Reason(b[7]), Peer: true}
}
