package dhchap

import (
	"crypto/hmac"
	"crypto/rand"
	"sync/atomic"
)

// session is the state of a transaction that both ends have.
type session struct {
	Config
	tid   uint16
	hash  Hash
	group Group
	// shared is the result of the Diffie-Hellman exchange, nil for NullGroup.
	shared []byte

	// Tests replace random and sequence.
	random   func([]byte)
	sequence func() uint32
}

func newSession(c Config) session {
	c.Offer = c.Offer.Complete()
	return session{Config: c, random: fillRandom, sequence: nextSequence}
}

func fillRandom(b []byte) { _, _ = rand.Read(b) } // never fails

// lastSequence begins at a random number, so that a restarted program does not repeat
// the numbers of the previous process.
var lastSequence = func() *atomic.Uint32 {
	var b [4]byte
	fillRandom(b[:])
	n := new(atomic.Uint32)
	n.Store(le.Uint32(b[:]))
	return n
}()

// nextSequence returns the next sequence number. It skips 0, which means that there is
// no challenge.
func nextSequence() uint32 {
	for {
		if n := lastSequence.Add(1); n != 0 {
			return n
		}
	}
}

// exchange computes the shared secret from this end's exponent and the other end's
// public value.
func (s *session) exchange(exponent, public []byte) *Error {
	shared, err := s.group.shared(exponent, public)
	s.shared = shared
	return err
}

// hostResponse returns the host's response to the controller's challenge.
func (s *session) hostResponse(challenge []byte, seq uint32) []byte {
	return s.response(s.Keys.Host, "HostHost", s.HostNQN, s.SubNQN, challenge, seq)
}

// controllerResponse returns the controller's response to the host's challenge.
func (s *session) controllerResponse(challenge []byte, seq uint32) []byte {
	return s.response(s.Keys.Controller, "Controller", s.SubNQN, s.HostNQN, challenge, seq)
}

// response returns the response by which the end with the NQN own proves its identity
// to the end with the NQN other.
func (s *session) response(secret Secret, role, own, other string, challenge []byte, seq uint32) []byte {
	mac := hmac.New(hashes[s.hash].New, secret.transformed(own))
	mac.Write(s.augmented(challenge))
	var b [7]byte // the last byte is 0: no secure channel concatenation
	le.PutUint32(b[0:], seq)
	le.PutUint16(b[4:], s.tid)
	mac.Write(b[:])
	mac.Write([]byte(role))
	mac.Write([]byte(own))
	mac.Write([]byte{0})
	mac.Write([]byte(other))
	return mac.Sum(nil)
}

// augmented combines a challenge with the shared secret, if there is one.
func (s *session) augmented(challenge []byte) []byte {
	if s.shared == nil {
		return challenge
	}
	h := hashes[s.hash].New()
	h.Write(s.shared)
	mac := hmac.New(hashes[s.hash].New, h.Sum(nil))
	mac.Write(challenge)
	return mac.Sum(nil)
}
