package dhchap

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	hostNQN = "nqn.2014-08.org.example:host"
	subNQN  = "nqn.2014-08.org.example:subsystem"
)

// converse runs a whole authentication, and returns its messages, the error of the
// host, and the error of the controller.
func converse(h *Host, c *Controller) (messages [][]byte, host, controller error) {
	next := h.Start()
	for next != nil && !c.Ended() {
		messages = append(messages, next)
		c.Take(next)
		if host != nil || h.Done() {
			break
		}
		answer := make([]byte, MaxMessage) // a host receives zeros after the message
		copy(answer, c.Give(MaxMessage))
		messages = append(messages, answer)
		next, host = h.Answer(answer)
	}
	return messages, host, c.Err()
}

func pairOf(host, controller Keys, offer Offer) (*Host, *Controller) {
	return NewHost(Config{hostNQN, subNQN, host, offer}), NewController(Config{hostNQN, subNQN, controller, Offer{}})
}

// TestAll runs an authentication for all combinations of hash, group, key transformation, and one or two directions.
func TestAll(t *testing.T) {
	for _, hash := range allHashes {
		for group := NullGroup; group <= FFDHE8192; group++ {
			for _, mutual := range []bool{false, true} {
				for transformation := NoHash; transformation <= SHA512; transformation++ {
					if group > FFDHE2048 && transformation != SHA256 {
						continue // these slow cases test nothing else
					}
					name := fmt.Sprintf("%s %s mutual=%t key=%d", hash, group, mutual, transformation)
					keys := Keys{Host: NewSecret(transformation), Controller: NewSecret(transformation)}
					ours := keys
					if !mutual {
						ours.Controller = Secret{}
					}
					h, c := pairOf(ours, keys, Offer{Hashes: []Hash{hash}, Groups: []Group{group}})
					messages, host, controller := converse(h, c)
					require.NoError(t, host, name)
					require.NoError(t, controller, name)
					assert.True(t, h.Done() && c.Authenticated(), name)
					assert.Equal(t, []any{hash, group}, []any{c.hash, c.group}, name)
					assert.Len(t, messages, map[bool]int{false: 4, true: 5}[mutual], name)
				}
			}
		}
	}
}

// TestPreference checks that the controller chooses the hash and the group that it
// prefers among those that the host offers.
func TestPreference(t *testing.T) {
	keys := Keys{Host: NewSecret(SHA256)}
	h, c := pairOf(keys, keys, Offer{})
	_, host, _ := converse(h, c)
	require.NoError(t, host)
	assert.Equal(t, []any{SHA512, FFDHE2048}, []any{c.hash, c.group})
	h, c = pairOf(keys, keys, Offer{Hashes: []Hash{SHA256, SHA384}, Groups: []Group{NullGroup, FFDHE4096}})
	_, host, _ = converse(h, c)
	require.NoError(t, host)
	assert.Equal(t, []any{SHA384, FFDHE4096}, []any{c.hash, c.group})
}

// TestRefusals checks that a wrong key, name or offer fails the authentication on both sides with the same reason.
func TestRefusals(t *testing.T) {
	k, other := Keys{NewSecret(SHA256), NewSecret(SHA384)}, NewSecret(SHA256)
	for _, x := range []struct {
		name             string
		host, controller Keys
		change           func(*Host, *Controller)
		reason           Reason
		hostFound        bool
	}{
		{"host's key is wrong", Keys{other, k.Controller}, k, nil, Failed, false},
		{"host's key is wrong, one way", Keys{Host: other}, k, nil, Failed, false},
		{"no key for the host", k, Keys{Controller: k.Controller}, nil, Failed, false},
		{"controller's key is wrong", k, Keys{k.Host, other}, nil, Failed, true},
		{"no key for the controller", k, Keys{Host: k.Host}, nil, Failed, false},
		{"stolen NQN", Keys{Host: NewSecret(SHA256)}, k, nil, Failed, false},
		{"another host's NQN", k, k, func(h *Host, _ *Controller) { h.HostNQN += "x" }, Failed, false},
		{"another subsystem", k, k, func(h *Host, _ *Controller) { h.SubNQN += "x" }, Failed, false},
		{"same bytes, another transformation", Keys{Host: Secret{SHA384, k.Host.key}}, k, nil, Failed, false},
		{"no hash in common", k, k, func(_ *Host, c *Controller) { c.Offer.Hashes = []Hash{NoHash} }, HashUnusable, false},
		{"no group in common", k, k, func(_ *Host, c *Controller) { c.Offer.Groups = []Group{9} }, GroupUnusable, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			h, c := pairOf(x.host, x.controller, Offer{Groups: []Group{NullGroup, FFDHE2048}})
			if x.change != nil {
				x.change(h, c)
			}
			_, host, controller := converse(h, c)
			var e, f *Error
			require.ErrorAs(t, host, &e)
			require.ErrorAs(t, controller, &f)
			assert.Equal(t, []any{x.reason, !x.hostFound}, []any{e.Reason, e.Peer})
			assert.Equal(t, []any{x.reason, x.hostFound}, []any{f.Reason, f.Peer})
			assert.False(t, h.Done() || c.Authenticated())
		})
	}
}

// TestReplay checks that both ends refuse the proofs of an earlier transaction.
func TestReplay(t *testing.T) {
	keys := Keys{NewSecret(SHA256), NewSecret(SHA256)}
	for _, group := range []Group{NullGroup, FFDHE2048} {
		h, c := pairOf(keys, keys, Offer{Groups: []Group{group}})
		messages, host, _ := converse(h, c)
		require.NoError(t, host)

		_, c = pairOf(keys, keys, Offer{})
		c.Take(messages[0])
		c.Give(MaxMessage)
		c.Take(messages[2])
		require.ErrorContains(t, c.Err(), "the host's proof is wrong")
		c.Give(MaxMessage)
		assert.True(t, c.Ended() && !c.Authenticated())

		h, _ = pairOf(keys, keys, Offer{Groups: []Group{group}})
		h.Start()
		h.tid = le.Uint16(messages[0][4:])
		_, err := h.Answer(messages[1])
		require.NoError(t, err, "the host must accept any challenge")
		_, err = h.Answer(messages[3])
		require.ErrorContains(t, err, "the controller's proof is wrong")
		assert.False(t, h.Done())
	}
}

// TestReflection checks that the controller refuses its own challenge as the
// challenge of the host. Otherwise a host without the key could have the controller
// compute the response for it.
func TestReflection(t *testing.T) {
	secret := NewSecret(NoHash)
	keys := Keys{secret, secret} // a reflection works only with equal secrets
	h, c := pairOf(keys, keys, Offer{Groups: []Group{NullGroup}})
	c.Take(h.Start())
	challenged := c.Give(MaxMessage)
	reply, err := h.Answer(challenged)
	require.NoError(t, err)
	copy(reply[bodyAt+c.hash.Size():], challenged[bodyAt:][:c.hash.Size()])
	c.Take(reply)
	require.ErrorContains(t, c.Err(), "challenge is our own")
}

// TestOrder checks that the controller refuses messages in a wrong order, and that
// it gives no message before its turn.
func TestOrder(t *testing.T) {
	keys := Keys{NewSecret(SHA256), NewSecret(SHA256)}
	offer := Offer{Groups: []Group{NullGroup}}
	h, c := pairOf(keys, keys, offer)
	messages, host, _ := converse(h, c)
	require.NoError(t, host)
	for taken := range 3 { // how many valid messages come first
		for i := 0; i < len(messages); i++ {
			h, c := pairOf(keys, keys, offer)
			h.tid = le.Uint16(messages[0][4:])
			next := h.Start()
			for range taken {
				c.Take(next)
				next, _ = h.Answer(c.Give(MaxMessage))
			}
			if i == 2*taken && taken != 1 {
				continue // this message is the next one
			}
			c.Take(messages[i])
			require.Error(t, c.Err(), "message %d after %d", i, taken)
			assert.False(t, c.Authenticated())
			assert.Equal(t, kindFailure1, kind(c.Give(MaxMessage)[1]))
			assert.True(t, c.Ended())
		}
	}
	for taken := range 3 {
		h, c := pairOf(keys, keys, offer)
		next := h.Start()
		for range taken {
			c.Take(next)
			next, _ = h.Answer(c.Give(MaxMessage))
		}
		b := c.Give(MaxMessage)
		assert.Equal(t, []byte{0, 0xf1, reasonCodeFailure, byte(IncorrectMessage)}, []byte{b[0], b[1], b[6], b[7]})
		assert.True(t, c.Ended())
	}
}

// TestNoProof checks that the host refuses a success message without the proof that
// it has asked for.
func TestNoProof(t *testing.T) {
	keys := Keys{NewSecret(SHA256), NewSecret(SHA256)}
	h, c := pairOf(keys, keys, Offer{Groups: []Group{NullGroup}})
	c.Take(h.Start())
	_, err := h.Answer(c.Give(MaxMessage))
	require.NoError(t, err)
	m := success1{hash: h.hash}
	failure, err := h.Answer(m.encode(h.tid))
	require.ErrorContains(t, err, "no proof of itself")
	assert.Equal(t, encodeFailure(kindFailure2, h.tid, IncorrectPayload), failure)
	assert.False(t, h.Done())
}

// TestConcatenation checks that the controller refuses secure channel concatenation
// with the reason code for it.
func TestConcatenation(t *testing.T) {
	c := NewController(Config{Keys: Keys{Host: NewSecret(SHA256)}})
	m := negotiate{concat: 1, offer: Offer{}.Complete()}
	c.Take(m.encode(5))
	assert.Equal(t, encodeFailure(kindFailure1, 5, ConcatMismatch), c.Give(MaxMessage))
}

// TestShortBuffer checks that a host whose buffer is too small for a message gets a
// failure message, or nothing if that does not fit either.
func TestShortBuffer(t *testing.T) {
	keys := Keys{Host: NewSecret(SHA256)}
	for capacity, want := range map[int]bool{79: false, 80: true} {
		h, c := pairOf(keys, keys, Offer{Groups: []Group{NullGroup}})
		c.Take(h.Start())
		assert.Equal(t, want, kind(c.Give(capacity)[0]) == 1, "%d bytes", capacity)
	}
	_, c := pairOf(keys, keys, Offer{})
	assert.Nil(t, c.Give(failureSize-1))
	assert.True(t, c.Ended())
}

// TestPublicValues checks that public values of small order are refused.
func TestPublicValues(t *testing.T) {
	p := FFDHE2048.prime()
	for name, v := range map[string][]byte{
		"0": make([]byte, 256), "1": append(make([]byte, 255), 1), "0, short": make([]byte, 4),
		"p": p.Bytes(), "p-1": p.SetBit(p, 0, 0).Bytes(),
	} {
		_, err := FFDHE2048.shared([]byte{3}, v)
		require.NotNil(t, err, name)
		assert.Equal(t, IncorrectPayload, err.Reason, name)
	}
	got, err := FFDHE2048.shared([]byte{3}, []byte{0, 0, 0, 2})
	require.Nil(t, err)
	assert.Equal(t, append(make([]byte, 255), 8), got, "as long as the prime")
}

// TestPrimes checks that all moduli are safe primes: p and (p-1)/2 are prime.
func TestPrimes(t *testing.T) {
	for g := FFDHE2048; g <= FFDHE8192; g++ {
		p := g.prime()
		assert.Equal(t, g.Size()*8, p.BitLen())
		if g <= FFDHE3072 || !testing.Short() {
			assert.True(t, p.ProbablyPrime(0), g)
			assert.True(t, p.Rsh(p, 1).ProbablyPrime(0), g)
		}
	}
}

// TestProofs compares primes, public values and proofs with those in
// testdata/proofs.txt, which another program has computed.
func TestProofs(t *testing.T) {
	text, err := os.ReadFile("testdata/proofs.txt")
	require.NoError(t, err)
	var host, sub string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch f[0] {
		case "host":
			host = f[1]
		case "subsystem":
			sub = f[1]
		case "prime":
			assert.Equal(t, f[2], digest(Group(number(t, f[1])).prime().Bytes()))
		case "proof":
			checkProof(t, host, sub, f[1:])
		}
	}
}

func digest(b []byte) string {
	d := sha256.Sum256(b)
	return hex.EncodeToString(d[:])
}

func number(t *testing.T, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 32)
	require.NoError(t, err)
	return n
}

// checkProof runs an authentication with the random values of a line of proofs.txt.
func checkProof(t *testing.T, host, sub string, f []string) {
	raw := func(s string) []byte { return unhex(t, strings.Trim(s, "-")) }
	keys := Keys{}
	var err error
	keys.Host, err = ParseSecret(f[2])
	require.NoError(t, err)
	keys.Controller, err = ParseSecret(f[3])
	require.NoError(t, err)
	offer := Offer{[]Hash{Hash(number(t, f[0]))}, []Group{Group(number(t, f[1]))}}
	h, c := NewHost(Config{host, sub, keys, offer}), NewController(Config{host, sub, keys, offer})
	tid := le.AppendUint16(nil, uint16(number(t, f[4])))
	h.random, h.sequence = script(t, tid, raw(f[10]), raw(f[9])), func() uint32 { return uint32(number(t, f[8])) }
	c.random, c.sequence = script(t, raw(f[6]), raw(f[7])), func() uint32 { return uint32(number(t, f[5])) }
	if offer.Groups[0] == NullGroup {
		h.random = script(t, tid, raw(f[9]))
	}
	messages, err, _ := converse(h, c)
	require.NoError(t, err)
	assert.True(t, c.Authenticated())

	var first challenge
	var second reply
	var third success1
	require.Nil(t, first.decode(messages[1]))
	require.Nil(t, second.decode(messages[2], h.hash, h.group))
	require.Nil(t, third.decode(messages[3], h.hash))
	if h.group != NullGroup {
		assert.Equal(t, f[11:13], []string{digest(first.public), digest(second.public)})
	}
	assert.Equal(t, f[13:15], []string{hex.EncodeToString(third.response), hex.EncodeToString(second.response)})
}

// script returns a replacement for session.random. Each call fills in the next of
// values.
func script(t *testing.T, values ...[]byte) func([]byte) {
	return func(b []byte) {
		require.NotEmpty(t, values)
		require.Len(t, b, len(values[0]))
		copy(b, values[0])
		values = values[1:]
	}
}

func BenchmarkExchange(b *testing.B) {
	for g := FFDHE2048; g <= FFDHE8192; g++ {
		b.Run(g.String(), func(b *testing.B) {
			for b.Loop() {
				x, _ := g.newKey(fillRandom)
				_, err := g.shared(x, []byte{0, 0, 0, 2})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestOtherTransaction checks that both ends refuse messages with another transaction
// identifier.
func TestOtherTransaction(t *testing.T) {
	keys := Keys{NewSecret(SHA256), NewSecret(SHA256)}
	for turn := range 4 {
		h, c := pairOf(keys, keys, Offer{Groups: []Group{NullGroup}})
		c.Take(h.Start())
		b := c.Give(MaxMessage)
		var err error
		for i := 0; err == nil && c.Err() == nil; i++ {
			if i == turn {
				b[4] ^= 1
			}
			if i%2 == 0 {
				b, err = h.Answer(b)
			} else {
				if c.Take(b); i == 3 {
					break
				}
				b = c.Give(MaxMessage)
			}
		}
		if turn == 3 { // the controller receives the last message
			err = c.Err()
		} else if err == nil {
			err = c.Err()
		}
		require.ErrorContains(t, err, "transaction", "message %d", turn+1)
		assert.False(t, c.Authenticated())
	}
}

// TestNotOffered checks that the host refuses a hash or a group that it has not
// offered.
func TestNotOffered(t *testing.T) {
	keys := Keys{NewSecret(SHA256), NewSecret(SHA256)}
	for _, choose := range []func(*Controller){
		func(c *Controller) { c.hash = SHA512 },
		func(c *Controller) { c.group = FFDHE2048 },
	} {
		h, c := pairOf(keys, keys, Offer{Hashes: []Hash{SHA256}, Groups: []Group{NullGroup}})
		c.Take(h.Start())
		choose(c)
		_, err := h.Answer(c.Give(MaxMessage))
		require.ErrorContains(t, err, "not offered")
	}
}
