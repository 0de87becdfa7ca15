// Package dhchap is the in-band authentication of NVMe over Fabrics,
// DH-HMAC-CHAP (Base Specification 2.0, section 8.13): the secrets, the
// messages, and a state machine for each end. It does no I/O: a [Host] and a
// [Controller] take and give the bytes that Authentication Send and
// Authentication Receive carry.
//
//	host                            controller
//	Start          Negotiate   ->   Take
//	Answer     <-  Challenge        Give
//	               Reply       ->   Take
//	Answer     <-  Success1         Give
//	               Success2    ->   Take     where the host asked for a proof too
//
// In place of a Challenge or Success1 the host may get Failure1; in place of
// its own messages it may send Failure2. A challenge is answered with an HMAC
// under the secret that both ends know; with a Diffie-Hellman group the
// challenge is first mixed with a secret that the two have just agreed on, so
// that an eavesdropper cannot test guesses of the secret offline.
//
// The exchange authenticates the ends of a connection at that time. Later data on
// the connection is neither encrypted nor signed.
//
// Secure channel concatenation (TLS keys from the exchange) is not supported:
// a host that asks for it is refused, as the specification has it.
package dhchap

import "fmt"

// MaxMessage is the size in bytes of a buffer for any message of ours: the
// longest, a Reply of the largest group and hash, has 1168.
const MaxMessage = 4096

// Keys are the secrets of one host with one subsystem.
type Keys struct {
	// Host is what the host proves that it knows.
	Host Secret
	// Controller, if there is one, is what the controller proves that it knows.
	Controller Secret
}

// Equal reports whether both secrets are the same.
func (k Keys) Equal(other Keys) bool {
	return k.Host.Equal(other.Host) && k.Controller.Equal(other.Controller)
}

// Offer are the hashes and groups an end accepts, best first. None means all.
type Offer struct {
	Hashes []Hash
	Groups []Group
}

// Best first: the strongest hash, since it costs nothing, and the smallest
// group. The larger ones are up to fifty times its work, for each queue of each
// process, and what any of them keeps from being guessed is a random key of 256
// bits or more.
var (
	allHashes = []Hash{SHA512, SHA384, SHA256}
	allGroups = []Group{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192, NullGroup}
)

// Complete is the offer with all there are where it names none.
func (o Offer) Complete() Offer {
	if len(o.Hashes) == 0 {
		o.Hashes = allHashes
	}
	if len(o.Groups) == 0 {
		o.Groups = allGroups
	}
	return o
}

// Config is what an end of an authentication starts with.
type Config struct {
	HostNQN, SubNQN string
	Keys            Keys
	Offer           Offer
}

// Reason is why an authentication failed: the reason code explanation of a
// Failure1 or Failure2.
type Reason uint8

// The reasons there are.
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

// String is the reason in the specification's words.
func (r Reason) String() string {
	if r == 0 || r > lastReason {
		return fmt.Sprintf("reason %#02x", uint8(r))
	}
	return reasons[r]
}

// Error is an authentication that failed.
type Error struct {
	Reason Reason
	// Peer says that the other end found it, and told us.
	Peer bool
	// Text is what this end has found; it never has anything of a secret.
	Text string
}

// Error says what is wrong, and never has anything of a secret.
func (e *Error) Error() string {
	if e.Peer {
		return fmt.Sprintf("%s, says the other end", e.Reason)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Text)
}

func fail(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Text: fmt.Sprintf(format, args...)}
}
