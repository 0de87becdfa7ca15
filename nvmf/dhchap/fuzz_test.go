package dhchap

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
)

// FuzzController sends edited messages of a host to the controller.
func FuzzController(f *testing.F) {
	f.Add([]byte(nil), uint16(MaxMessage), false)
	f.Add([]byte{0, 0, 0, 0, 1, 0, 255, 0}, uint16(100), true)
	f.Add([]byte{1, 0, 0, 0, 6, 0, 255, 0, 1, 1, 0, 0, 10, 0, 4, 0}, uint16(80), true)
	f.Fuzz(func(t *testing.T, script []byte, capacity uint16, group bool) {
		conversation(t, group, func(h *Host, c *Controller) {
			edited := false
			next := h.Start()
			for next != nil && !c.Ended() && !c.Authenticated() {
				was := bytes.Clone(next)
				hostile.Apply(script, 16, [][]byte{next[:min(16, len(next))], next})
				edited = edited || !bytes.Equal(was, next)
				c.Take(next)
				if c.Authenticated() {
					break
				}
				b := c.Give(int(capacity))
				require.LessOrEqual(t, len(b), int(capacity))
				next, _ = h.Answer(b)
			}
			if !edited && capacity >= MaxMessage {
				require.True(t, c.Authenticated() && h.Done())
			}
			require.Equal(t, c.Ended(), c.Err() != nil)
		})
	})
}

// FuzzHost sends edited messages of a controller to the host. The host must not
// complete the authentication without the controller's proof.
func FuzzHost(f *testing.F) {
	f.Add([]byte(nil), uint16(0), false)
	f.Add([]byte{0, 0, 0, 0, 8, 0, 255, 0}, uint16(17), true)
	f.Add([]byte{1, 0, 0, 0, 20, 0, 255, 0}, uint16(40), true)
	f.Fuzz(func(t *testing.T, script []byte, cut uint16, group bool) {
		conversation(t, group, func(h *Host, c *Controller) {
			next := h.Start()
			for next != nil && !h.Done() && !c.Ended() {
				c.Take(next)
				b := c.Give(MaxMessage)
				proof := c.proof
				hostile.Apply(script, 16, [][]byte{b[:min(16, len(b))], b})
				b = b[:len(b)-min(int(cut), len(b))]
				next, _ = h.Answer(b)
				if h.Done() {
					require.NotNil(t, proof)
					require.True(t, bytes.Contains(b, proof), "done without the controller's proof")
				}
			}
		})
	})
}

// memory limits the allocations of both ends. An edited message may ask for the
// largest group. Each end then computes two powers, which leave 2 MiB of garbage each.
const memory = 1<<20 + 4*(2<<20)

// conversation calls f with both ends, and limits its memory and time.
func conversation(t *testing.T, group bool, f func(*Host, *Controller)) {
	keys := Keys{NewSecret(SHA256), NewSecret(SHA384)}
	offer := Offer{Groups: []Group{NullGroup}}
	if group {
		offer.Groups = []Group{FFDHE2048}
	}
	for g := FFDHE2048; g <= FFDHE8192; g++ {
		moduli[g]() // computed before the limits apply, since an edited message may ask for any group
	}
	h, c := pairOf(keys, keys, offer)
	hostile.Bounded(t, memory, 10*time.Second, func() { f(h, c) })
}

// FuzzMessages checks that encoding and decoding a decoded message gives the same
// message.
func FuzzMessages(f *testing.F) {
	var keys Keys
	keys.Host, keys.Controller = NewSecret(SHA256), NewSecret(SHA256)
	for _, g := range []Group{NullGroup, FFDHE2048} {
		h, c := pairOf(keys, keys, Offer{Groups: []Group{g}})
		messages, _, _ := converse(h, c)
		for _, m := range messages {
			f.Add(m, uint8(h.hash), uint8(g))
		}
	}
	f.Add(encodeFailure(kindFailure1, 3, Failed), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, hash, group uint8) {
		hostile.Bounded(t, 1<<20+4*uint64(len(b)), 10*time.Second, func() {
			k, tid, err := headerOf(b)
			if err != nil {
				require.Less(t, len(b), headerSize)
				return
			}
			var n negotiate
			if n.decode(b) == nil {
				var again negotiate
				require.Nil(t, again.decode(n.encode(tid)))
				require.Equal(t, n, again)
			}
			var c challenge
			if c.decode(b) == nil {
				var again challenge
				require.Nil(t, again.decode(c.encode(tid)))
				require.Equal(t, c, again)
			}
			var r reply
			if r.decode(b, Hash(hash), Group(group)) == nil {
				var again reply
				require.Nil(t, again.decode(r.encode(tid), Hash(hash), Group(group)))
				require.Equal(t, r, again)
			}
			var s success1
			if s.decode(b, Hash(hash)) == nil && Hash(hash).Size() > 0 {
				var again success1
				require.Nil(t, again.decode(s.encode(tid), Hash(hash)))
				require.Equal(t, s, again)
			}
			_, _ = decodeFailure(k, b).Error(), k.String()
		})
	})
}

// FuzzSecret checks that Reveal returns the text of an accepted secret, and that
// String does not show it.
func FuzzSecret(f *testing.F) {
	for h := NoHash; h <= SHA512; h++ {
		f.Add(NewSecret(h).Reveal())
	}
	f.Add("DHHC-1:00:AAAA:")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err == nil {
			require.Equal(t, text, s.Reveal())
			require.NotContains(t, s.String(), text[10:14])
		}
	})
}
