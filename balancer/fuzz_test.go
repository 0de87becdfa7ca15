package balancer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
	"nvmecr/nvmf"
)

// FuzzSegments: whatever a target says of its size, segments lie inside it, in
// order, or there are none.
func FuzzSegments(f *testing.F) {
	f.Add(uint64(2<<20), uint64(1<<30), 4, uint8(20))
	f.Add(^uint64(0), ^uint64(0), 1, uint8(63))
	f.Add(uint64(0), ^uint64(0), 1<<14, uint8(0))
	f.Fuzz(func(t *testing.T, first, capacity uint64, slots int, shift uint8) {
		slots %= 1 << 15 // the partition table has no more
		var segs []Segment
		var err error
		hostile.Bounded(t, 2<<20, 10*time.Second, func() {
			segs, err = Segments(nvmf.Bytes(first), nvmf.Bytes(capacity), slots, 1<<(shift%64))
		})
		if err != nil {
			return
		}
		require.Len(t, segs, slots)
		at := nvmf.Bytes(first)
		for _, s := range segs {
			inside := s.Length > 0 && s.Start >= at && s.Start <= nvmf.Bytes(capacity) && s.Length <= nvmf.Bytes(capacity)-s.Start
			if !inside || (s.Start|s.Length)%(1<<(shift%64)) != 0 {
				t.Fatalf("segment %+v behind %d", s, at)
			}
			at = s.Start + s.Length
		}
	})
}

// FuzzRoundRobin: a rank has one home, and the home that rank.
func FuzzRoundRobin(f *testing.F) {
	f.Add(0, 1, 1)
	f.Add(1<<31-2, 1<<31-1, 3)
	f.Add(5, 1<<31-1, 1<<31-1)
	f.Add(-1, -1, -1)
	f.Fuzz(func(t *testing.T, rank, size, targets int) {
		if max(rank, size, targets) > 1<<31 { // as far as the environment goes
			return
		}
		m, err := RoundRobin(size, targets)
		if err != nil {
			return
		}
		home, err := m.Home(rank)
		if err != nil {
			require.True(t, rank < 0 || rank >= size)
			return
		}
		require.Equal(t, rank, m.RankAt(home.Target, home.Slot))
		require.True(t, home.Target >= 0 && home.Target < targets && home.Slot >= 0 && home.Slot < home.Slots, "%+v", home)
		require.Equal(t, home.Slots, m.Ranks(home.Target))
	})
}
