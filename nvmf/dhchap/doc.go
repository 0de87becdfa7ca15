// Package dhchap implements DH-HMAC-CHAP, the in-band authentication of NVMe over
// Fabrics (Base Specification 2.0, section 8.13): secrets, messages, and a state
// machine for each end. The package does no I/O. A [Host] and a [Controller] consume
// and produce the bytes that the commands Authentication Send and Authentication
// Receive carry.
//
//	host                            controller
//	Start          Negotiate   ->   Take
//	Answer     <-  Challenge        Give
//	               Reply       ->   Take
//	Answer     <-  Success1         Give
//	               Success2    ->   Take     if the host has asked for a proof
//
// The controller may send Failure1 instead of Challenge or Success1. The host may send
// Failure2 instead of any of its messages.
//
// The response to a challenge is an HMAC under the secret that both ends know. With a
// Diffie-Hellman group, the challenge is first combined with the result of a key
// exchange. An eavesdropper then cannot test guesses of the secret offline.
//
// The exchange authenticates the ends of a connection at that time. Later data on the
// connection is neither encrypted nor signed.
//
// Secure channel concatenation (TLS keys from the exchange) is not supported. A host
// that asks for it is refused with the reason code that the specification gives.
package dhchap

import "fmt"

// MaxMessage is the size in bytes of a buffer for any message of this package. The
// longest, a Reply with the largest group and hash, has 1168 bytes.
const MaxMessage = 4096

// Keys are the secrets of one host with one subsystem.
type Keys struct {
	// Host is the secret with which the host authenticates.
	Host Secret
	// Controller is the secret with which the controller authenticates. It is zero if
	// only the host authenticates.
	Controller Secret
}

// Equal reports whether both secrets are equal.
func (k Keys) Equal(other Keys) bool {
	return k.Host.Equal(other.Host) && k.Controller.Equal(other.Controller)
}

// An Offer lists the hashes and groups that an end accepts, best first. An empty list
// means all.
type Offer struct {
	Hashes []Hash
	Groups []Group
}

// Both lists begin with the preferred choice. The strongest hash costs no more than the
// others. The smallest group is preferred because a larger one takes up to fifty times
// its computation, for each queue of each process. Guessing offline is hopeless anyway
// for generated secrets, which are random keys of at least 256 bits.
var (
	allHashes = []Hash{SHA512, SHA384, SHA256}
	allGroups = []Group{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192, NullGroup}
)

// Complete returns the offer with each empty list replaced by all choices.
func (o Offer) Complete() Offer {
	if len(o.Hashes) == 0 {
		o.Hashes = allHashes
	}
	if len(o.Groups) == 0 {
		o.Groups = allGroups
	}
	return o
}

// Config is the configuration of one end of an authentication.
type Config struct {
	HostNQN, SubNQN string
	Keys            Keys
	Offer           Offer
}

// A Reason tells why an authentication failed. It is the reason code explanation of a
// Failure1 or Failure2 message.
type Reason uint8

// Reason code explanations of the specification.
const (
	Failed            Reason = 1 // a response was wrong
	ProtocolUnusable  Reason = 2
	ConcatMismatch    Reason = 3 // secure channel concatenation
	HashUnusable      Reason = 4
	GroupUnusable     Reason = 5
	IncorrectPayload  Reason = 6
	IncorrectMessage  Reason = 7
	lastReason               = IncorrectMessage
	reasonCodeFailure        = 1 // the only reason code
)

var reasons = [lastReason + 1]string{
	Failed:           "authentication failed",
	ProtocolUnusable: "authentication protocol not usable",
	ConcatMismatch:   "secure channel concatenation mismatch",
	HashUnusable:     "hash function not usable",
	GroupUnusable:    "Diffie-Hellman group not usable",
	IncorrectPayload: "incorrect payload",
	IncorrectMessage: "incorrect protocol message",
}

// String returns the reason in the words of the specification.
func (r Reason) String() string {
	if r == 0 || r > lastReason {
		return fmt.Sprintf("reason %#02x", uint8(r))
	}
	return reasons[r]
}

// An Error describes a failed authentication.
type Error struct {
	Reason Reason
	// Peer says that the other end detected the failure, and reported it to this end.
	Peer bool
	// Text describes what this end detected. It contains no part of a secret.
	Text string
}

// Error describes the failure without any part of a secret.
func (e *Error) Error() string {
	if e.Peer {
		return fmt.Sprintf("%s, says the other end", e.Reason)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Text)
}

func fail(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Text: fmt.Sprintf(format, args...)}
}
