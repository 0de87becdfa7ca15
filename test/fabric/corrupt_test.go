package fabric

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/wiretest"
)

// damage changes one byte of every period-th PDU of a direction, from the first-th on. at values below 80 are offsets from the start,
// modulo the length; the next ten are spread over the PDU, and those from 90 on are at its end.
func damage(to wiretest.Direction, first, period, at int, struck *atomic.Int32) wiretest.Script {
	return func(p *wiretest.PDU) wiretest.Action {
		if p.To != to || p.N < first || (p.N-first)%period != 0 {
			return wiretest.Pass
		}
		struck.Add(1)
		return wiretest.Corrupt(placeOf(at, len(p.Bytes)), 1<<(uint(p.N+at)%8))
	}
}

// placeOf returns the offset of a place in n bytes.
func placeOf(at, n int) int {
	switch {
	case at >= 90:
		return n - 1 - (at - 90)
	case at >= 80:
		return n * (at - 80) / 10
	}
	return at % n
}

const places = 98 // of damage

// TestCorruptWithDigests damages any byte of any PDU with both digests: the command is sent again, or the connection is lost and
// restored.
func TestCorruptWithDigests(t *testing.T) {
	const period = 45
	for _, s := range []shape{
		{name: "R2T", lba: 4096, capsule: 4096, header: true, data: true, logPages: 256},
		{name: "in capsule, volatile cache", lba: 512, capsule: 256 << 10, cache: true, header: true, data: true, logPages: 256},
	} {
		if testing.Short() && s.cache {
			continue
		}
		for _, to := range []wiretest.Direction{wiretest.ToTarget, wiretest.ToHost} {
			t.Run(fmt.Sprintf("%s, %s", s.name, to), func(t *testing.T) {
				step, damaged := 1, 0
				if !*all {
					step = period * places / some(10)
				}
				for i := int(to); i < period*places; i += step {
					damaged += corruptOften(t, s, to, 1+i%period, period, i/period)
				}
				t.Logf("%d PDUs damaged", damaged)
				require.Positive(t, damaged)
			})
		}
	}
}

func corruptOften(t *testing.T, s shape, to wiretest.Direction, first, period, at int) int {
	r := newRig(t, s, fmt.Sprintf("byte %d of PDU %d and every %dth after it, %s", at, first, period, to))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	var struck atomic.Int32
	r.wire.Script(damage(to, first, period, at, &struck))
	w := newWork(r.fs)
	w.run(t, r.what, workload())
	r.wire.Script(nil)
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return int(struck.Load())
}

// TestCorruptInitialisation damages the PDUs that open new connections after a loss, which have no digests. The effect may be any
// disagreement, so the host has to try again.
func TestCorruptInitialisation(t *testing.T) {
	s := shape{name: "digests", lba: 4096, capsule: 8192, header: true, data: true}
	for _, kind := range []pdu.Type{pdu.TypeICReq, pdu.TypeICResp} {
		for _, at := range []int{0, 1, 2, 3, 4, 8, 10, 11, 12, 13, 14, 15, 100} {
			if testing.Short() && at != 11 {
				continue
			}
			for _, bit := range []byte{1, 2, 0x20} {
				if !*all && int(bit)%3 != at%3 && at != 11 {
					continue
				}
				r := newRig(t, s, fmt.Sprintf("bits %#x of byte %d of %s", bit, at, kind))
				require.NoError(t, r.mount(), r.what)
				struck := 0
				r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
					switch {
					case p.To == wiretest.ToTarget && p.N == 9:
						return wiretest.CutAll
					case p.Type == kind && struck < 2: // that of the admin queue, and another one
						struck++
						return wiretest.Corrupt(at, bit)
					}
					return wiretest.Pass
				})
				w := newWork(r.fs)
				w.run(t, r.what, workload()[:8])
				r.wire.Script(nil)
				require.Equal(t, 2, struck)
				w.match(t, r.fs, r.what)
				r.close()
			}
		}
	}
}
