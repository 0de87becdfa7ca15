package dhchap

import (
	"crypto/hmac"
	"slices"
)

// Host is the host's end of one authentication. The caller sends the controller the
// message that Start returns, passes each message of the controller to Answer, and
// sends the message that Answer returns.
type Host struct {
	session
	expects kind
	proof   []byte // the expected response of the controller
	done    bool
}

// NewHost returns the host's end. c must have a host secret. If it also has a
// controller secret, the host asks the controller for a proof.
func NewHost(c Config) *Host { return &Host{session: newSession(c), expects: kindChallenge} }

// Start returns the first message to send.
func (h *Host) Start() []byte {
	var b [2]byte
	h.random(b[:])
	h.tid = le.Uint16(b[:])
	m := negotiate{offer: h.Offer}
	return m.encode(h.tid)
}

// Done reports whether the host's part of the authentication has succeeded. The
// controller can still refuse the last message of Answer.
func (h *Host) Done() bool { return h.done }

// Answer processes a message of the controller, in a buffer that may be longer. It
// returns the next message to send, or nil if there is none. An error is an *Error; the
// message then reports the failure to the controller.
func (h *Host) Answer(b []byte) (next []byte, err error) {
	next, failed := h.answer(b)
	switch {
	case failed == nil:
		return next, nil
	case failed.Peer:
		return nil, failed // the controller has reported the failure
	}
	h.expects, h.done = kindFailure1, false
	return encodeFailure(kindFailure2, h.tid, failed.Reason), failed
}

func (h *Host) answer(b []byte) ([]byte, *Error) {
	k, tid, err := headerOf(b)
	switch {
	case err != nil:
		return nil, err
	case k == kindFailure1:
		return nil, decodeFailure(k, b)
	case h.done || k != h.expects:
		return nil, fail(IncorrectMessage, "%s instead of %s", k, h.expects)
	case tid != h.tid:
		return nil, fail(IncorrectPayload, "%s of transaction %d instead of %d", k, tid, h.tid)
	case k == kindChallenge:
		return h.reply(b)
	}
	return h.conclude(b)
}

// reply returns the message that proves the host's NQN.
func (h *Host) reply(b []byte) ([]byte, *Error) {
	var c challenge
	if err := c.decode(b); err != nil {
		return nil, err
	}
	if !slices.Contains(h.Offer.Hashes, c.hash) || !slices.Contains(h.Offer.Groups, c.group) {
		return nil, fail(IncorrectPayload, "%s with %s and %s, which were not offered", kindChallenge, c.hash, c.group)
	}
	h.hash, h.group = c.hash, c.group
	var m reply
	if h.group != NullGroup {
		var exponent []byte
		exponent, m.public = h.group.newKey(h.random)
		if err := h.exchange(exponent, c.public); err != nil {
			return nil, err
		}
	}
	m.response = h.hostResponse(c.value, c.seq)
	if !h.Keys.Controller.IsZero() {
		m.asks, m.seq, m.value = true, h.sequence(), make([]byte, h.hash.Size())
		h.random(m.value)
		h.proof = h.controllerResponse(m.value, m.seq)
	}
	h.expects = kindSuccess1
	return m.encode(h.tid), nil
}

// conclude checks the controller's proof if the host has asked for one.
func (h *Host) conclude(b []byte) ([]byte, *Error) {
	var m success1
	if err := m.decode(b, h.hash); err != nil {
		return nil, err
	}
	switch {
	case h.proof == nil:
		h.done = true
		return nil, nil
	case m.response == nil:
		return nil, fail(IncorrectPayload, "the controller gives no proof of itself")
	case !hmac.Equal(m.response, h.proof):
		return nil, fail(Failed, "the controller's proof is wrong")
	}
	h.done = true
	return kindSuccess2.start(h.tid, success2Size), nil
}
