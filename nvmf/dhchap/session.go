package dhchap

import (
	"crypto/hmac"
	"crypto/rand"
	"sync/atomic"
)

// session is what both ends know of a transaction.
type session struct {
	Config
	tid   uint16
	hash  Hash
	group Group
	// shared is what the Diffie-Hellman exchange gave, nil without a group.
	shared []byte

	// random and sequence are replaced by tests.
	random   func([]byte)
	sequence func() uint32
}

func newSession(c Config) session {
	c.Offer = c.Offer.Complete()
	return session{Config: c, random: fillRandom, sequence: nextSequence}
}

func fillRandom(b []byte) { _, _ = rand.Read(b) } // never fails

// lastSequence begins at random, so that a program started anew does not
// repeat the numbers of the last one.
var lastSequence = func() *atomic.Uint32 {
	var b [4]byte
	fillRandom(b[:])
	n := new(atomic.Uint32)
	n.Store(le.Uint32(b[:]))
	return n
}()

// nextSequence returns the next sequence number. 0 says that there is none.
func nextSequence() uint32 {
	for {
		if n := lastSequence.Add(1); n != 0 {
			return n
		}
	}
}

// exchange returns our public value, and keeps what we and the other end now
// share.
func (s *session) exchange(exponent, public []byte) *Error {
	shared, err := s.group.shared(exponent, public)
	s.shared = shared
	return err
}

// hostResponse is how the host answers the controller's challenge.
func (s *session) hostResponse(challenge []byte, seq uint32) []byte {
	return s.response(s.Keys.Host, "HostHost", s.HostNQN, s.SubNQN, challenge, seq)
}

// controllerResponse is how the controller answers the host's challenge.
func (s *session) controllerResponse(challenge []byte, seq uint32) []byte {
	return s.response(s.Keys.Controller, "Controller", s.SubNQN, s.HostNQN, challenge, seq)
}

// response is the proof of the end with the NQN own to the end with the NQN other.
func (s *session) response(secret Secret, role, own, other string, challenge []byte, seq uint32) []byte {
	mac := hmac.New(hashes[s.hash].New, secret.transformed(own))
	mac.Write(s.augmented(challenge))
	var b [7]byte // ends with the secure channel concatenation, none
	le.PutUint32(b[0:], seq)
	le.PutUint16(b[4:], s.tid)
	mac.Write(b[:])
	mac.Write([]byte(role))
	mac.Write([]byte(own))
	mac.Write([]byte{0})
	mac.Write([]byte(other))
	return mac.Sum(nil)
}

// augmented mixes a challenge with the shared secret, if there is one.
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
