package dhchap

import (
	"crypto/hmac"
	"slices"
)

// Controller is the controller's end of one authentication. The caller passes each
// message of the host to Take, and sends the host the message that Give returns.
type Controller struct {
	session
	state state
	err   *Error // set in the states giveFailure and ended

	exponent []byte
	value    []byte // the controller's challenge
	seq      uint32
	public   []byte
	proof    []byte // the controller's response; nil if the host has not asked for one
}

// A state is the step that a controller expects next.
type state uint8

const (
	takeNegotiate state = iota
	giveChallenge
	takeReply
	giveSuccess
	takeSuccess
	giveFailure
	authenticated
	ended
)

// NewController returns the controller's end. The authentication fails if c has no host
// secret. It also fails if the host asks for a proof of the controller and c has no
// controller secret.
func NewController(c Config) *Controller { return &Controller{session: newSession(c)} }

// Authenticated reports whether the host has proved its NQN. If the host has asked for
// a proof of the controller, the host has also accepted that proof.
func (c *Controller) Authenticated() bool { return c.state == authenticated }

// Ended reports whether the authentication has failed and the host has been notified.
func (c *Controller) Ended() bool { return c.state == ended }

// Err returns the reason of a failure as an *Error, or nil.
func (c *Controller) Err() error {
	if c.err == nil {
		return nil
	}
	return c.err
}

// Expensive reports whether the next call of Take or Give may take long, for a
// Diffie-Hellman computation.
func (c *Controller) Expensive() bool {
	return c.group != NullGroup && (c.state == giveChallenge || c.state == takeReply)
}

// Take processes a message of the host. After an invalid message, Give returns the
// failure message for the host.
func (c *Controller) Take(b []byte) {
	if err := c.take(b); err != nil {
		c.err, c.state = err, giveFailure
		if err.Peer {
			c.state = ended
		}
	}
}

func (c *Controller) take(b []byte) *Error {
	k, tid, err := headerOf(b)
	if err != nil {
		return err
	}
	switch {
	case k == kindNegotiate && c.state == takeNegotiate:
		c.tid = tid
		return c.negotiate(b)
	case k == kindReply && c.state == takeReply, k == kindSuccess2 && c.state == takeSuccess, k == kindFailure2:
	default:
		return fail(IncorrectMessage, "%s is out of place", k)
	}
	switch {
	case tid != c.tid:
		return fail(IncorrectPayload, "%s of transaction %d instead of %d", k, tid, c.tid)
	case k == kindReply:
		return c.check(b)
	case k == kindFailure2:
		return decodeFailure(k, b)
	case len(b) != success2Size:
		return fail(IncorrectPayload, "%s of %d bytes", k, len(b))
	}
	c.state = authenticated
	return nil
}

// negotiate chooses the hash and the group that the controller prefers among those that
// the host offers.
func (c *Controller) negotiate(b []byte) *Error {
	var m negotiate
	if err := m.decode(b); err != nil {
		return err
	}
	if m.concat != 0 {
		return fail(ConcatMismatch, "the host asks for secure channel concatenation")
	}
	i := slices.IndexFunc(c.Offer.Hashes, func(h Hash) bool { return slices.Contains(m.offer.Hashes, h) })
	if i < 0 {
		return fail(HashUnusable, "the host offers none of %v", c.Offer.Hashes)
	}
	j := slices.IndexFunc(c.Offer.Groups, func(g Group) bool { return slices.Contains(m.offer.Groups, g) })
	if j < 0 {
		return fail(GroupUnusable, "the host offers none of %v", c.Offer.Groups)
	}
	c.hash, c.group, c.state = c.Offer.Hashes[i], c.Offer.Groups[j], giveChallenge
	return nil
}

// check verifies the host's proof, and computes the controller's proof if the host has
// asked for it.
func (c *Controller) check(b []byte) *Error {
	var m reply
	if err := m.decode(b, c.hash, c.group); err != nil {
		return err
	}
	if c.Keys.Host.IsZero() {
		return fail(Failed, "there is no key for the host")
	}
	if c.group != NullGroup {
		if err := c.exchange(c.exponent, m.public); err != nil {
			return err
		}
	}
	switch {
	case !hmac.Equal(m.response, c.hostResponse(c.value, c.seq)):
		return fail(Failed, "the host's proof is wrong")
	case !m.asks:
		c.state = giveSuccess
		return nil
	case c.Keys.Controller.IsZero():
		return fail(Failed, "the host asks for a proof, and there is no key for one")
	case hmac.Equal(m.value, c.value):
		return fail(Failed, "the host's challenge is our own")
	}
	c.proof, c.state = c.controllerResponse(m.value, m.seq), giveSuccess
	return nil
}

// Give returns the next message for the host, of at most capacity bytes. It returns nil
// if capacity is too small even for a failure message.
func (c *Controller) Give(capacity int) []byte {
	var b []byte
	switch c.state {
	case giveChallenge:
		b = c.challenge()
	case giveSuccess:
		m := success1{hash: c.hash, response: c.proof}
		b = m.encode(c.tid)
	case giveFailure:
	default:
		c.err = fail(IncorrectMessage, "the host receives before it has sent")
	}
	if c.err == nil && len(b) > capacity {
		c.err = fail(IncorrectPayload, "the host accepts %d bytes, the message has %d", capacity, len(b))
	}
	switch {
	case c.err != nil:
		c.state = ended
		if b = encodeFailure(kindFailure1, c.tid, c.err.Reason); len(b) > capacity {
			return nil
		}
	case c.state == giveChallenge:
		c.state = takeReply
	case c.proof != nil:
		c.state = takeSuccess
	default:
		c.state = authenticated
	}
	return b
}

func (c *Controller) challenge() []byte {
	c.value, c.seq = make([]byte, c.hash.Size()), c.sequence()
	c.random(c.value)
	if c.group != NullGroup {
		c.exponent, c.public = c.group.newKey(c.random)
	}
	m := challenge{hash: c.hash, group: c.group, seq: c.seq, value: c.value, public: c.public}
	return m.encode(c.tid)
}
