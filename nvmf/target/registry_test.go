package target

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/nvme"
)

// FuzzRegistry plays arbitrary reservation commands of a few hosts, six bytes
// each, and checks what must hold after every one of them.
func FuzzRegistry(f *testing.F) {
	f.Add([]byte{})
	// Two hosts register. One of them reserves, and the other one preempts it. The
	// first one registers again, ignoring its key (IEKEY), and clears all registrations.
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 1, 1, 1, 2, 2, 1, 1, 0, 0, 10, 0, 3, 0, 2, 0, 1, 3, 0, 0})
	// All registrants hold; the last one unregisters.
	f.Add([]byte{0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 5, 0, 0, 1, 1, 0, 0})
	// One host preempts an All Registrants reservation, releases it, and reserves for
	// registrants only.
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 6, 1, 1, 1, 2, 0, 2, 2, 1, 0, 2, 0, 2, 1, 1, 0, 2, 0, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r registry
		b = b[:min(len(b), 1200)] // longer lists find nothing more
		for ; len(b) >= 6; b = b[6:] {
			host := hostID{1 + b[1]%8}
			c := nvme.ReservationCommand{Action: b[2] & 7, IgnoreKey: b[2]&8 != 0, Type: nvme.ReservationType(b[5] % 9), Persist: b[2] >> 6}
			var keys nvme.ReservationKeys
			keys.Set(uint64(b[3]%6), uint64(b[4]%6))
			before := r
			before.keys = maps.Clone(r.keys)
			guarded := r.guard()
			var status nvme.Status
			var preempted []hostID
			switch b[0] % 3 {
			case 0:
				status = r.register(host, c, &keys)
			case 1:
				preempted, status = r.acquire(host, c, &keys)
			default:
				status = r.release(host, c, (*nvme.ReservationKey)(keys[:8]))
			}
			check(t, &r)
			if status != 0 {
				require.Equal(t, before, r, "a command that failed")
				require.Empty(t, preempted)
			}
			for _, h := range preempted {
				assert.NotEqual(t, host, h)
				assert.NotContains(t, r.keys, h)
				assert.Contains(t, before.keys, h)
			}
			// Only commands that succeed change who may write. A single holder
			// loses the reservation only by a Preempt or a Clear.
			if g := r.guard(); status != 0 {
				assert.True(t, g.same(guarded))
			}
		}
	})
}

// check checks the invariants of a registry.
func check(t *testing.T, r *registry) {
	require.LessOrEqual(t, len(r.keys), maxRegistrants)
	for _, k := range r.keys {
		require.NotZero(t, k)
	}
	g := r.guard()
	writers, readers := 0, 0
	for i := range byte(10) {
		h := hostID{i}
		if g.writes(h) {
			writers++
			require.True(t, g.reads(h), "who may write may read")
		}
		if g.reads(h) {
			readers++
		}
		if r.kind != 0 && g.writes(h) {
			require.Contains(t, r.keys, h, "who may write is registered")
		}
	}
	switch {
	case r.kind == 0:
		require.Zero(t, r.holder)
		require.Nil(t, g)
		return
	case r.kind.AllRegistrants():
		require.NotEmpty(t, r.keys)
		require.Equal(t, len(r.keys), writers)
	case r.kind.RegistrantsOnly():
		require.Contains(t, r.keys, r.holder)
		require.Equal(t, len(r.keys), writers)
	default:
		require.Contains(t, r.keys, r.holder)
		require.Equal(t, 1, writers)
	}
	if !r.kind.ExclusiveAccess() {
		require.Equal(t, 10, readers)
	} else {
		require.Equal(t, writers, readers)
	}
	s := r.report()
	require.Equal(t, r.kind, s.Type)
	require.Len(t, s.Registrants, len(r.keys))
}
