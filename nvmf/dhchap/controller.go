package dhchap

import (
	"crypto/hmac"
	"slices"
)

// Controller is the controller's end of one authentication. Take gets what
// the host sends, and Give returns what the host receives.
type Controller struct {
	session
	state state
	err   *Error // with giveFailure and ended

	exponent []byte
	value    []byte // our challenge
	seq      uint32
	public   []byte
	proof    []byte // our response; nil: the host asks for none
}

// state is what a controller does next.
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

// NewController returns the controller's end. Without a host secret, or one
// of its own where the host asks for its proof, the authentication fails.
func NewController(c Config) *Controller { return &Controller{session: newSession(c)} }

// Authenticated reports whether the host has proved its NQN; if it asked the
// controller for a proof, it has also accepted that.
func (c *Controller) Authenticated() bool { return c.state == authenticated }

// Ended reports whether the authentication has failed and the host knows.
func (c *Controller) Ended() bool { return c.state == ended }

// Err returns why the authentication has failed, an *Error, or nil.
func (c *Controller) Err() error {
	if c.err == nil {
		return nil
	}
	return c.err
}

// Expensive reports whether the next call of Take or Give may take long, that
// is a Diffie-Hellman computation.
func (c *Controller) Expensive() bool {
	return c.group != NullGroup && (c.state == giveChallenge || c.state == takeReply)
}

// Take takes a message of the host. If something is wrong with it, that is
// what Give returns next.
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

// negotiate chooses the first of our hashes and groups that the host knows.
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

// check compares the host's proof with what it has to be, and makes ours.
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

// Give returns the next message for the host, of at most capacity bytes. It
// returns nil if not even a failure fits.
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
