package balancer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
	"nvmecr/nvmf"
)

// FuzzSegments checks for any size of a target that segments are in order and within bounds, or refused.
func FuzzSegments(f *testing.F) {
	f.Add(uint64(2<<20), uint64(1<<30), 4, uint8(20))
	f.Add(^uint64(0), ^uint64(0), 1, uint8(63))
	f.Add(uint64(0), ^uint64(0), 1<<14, uint8(0))
	f.Fuzz(func(t *testing.T, first, capacity uint64, slots int, shift uint8) {
		slots %= 1 << 15 // the limit of the partition table
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

// FuzzRoundRobin checks that each rank has one home, and that the home's namespace lists the rank.
func FuzzRoundRobin(f *testing.F) {
	f.Add(0, 1, 1)
	f.Add(1<<31-2, 1<<31-1, 3)
	f.Add(5, 1<<31-1, 1<<31-1)
	f.Add(-1, -1, -1)
	f.Fuzz(func(t *testing.T, rank, size, targets int) {
		if max(rank, size, targets) > 1<<31 { // the limit of the variables of launchers
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
		require.Len(t, home, 1)
		d := home[0]
		require.True(t, d.Target >= 0 && d.Target < targets && d.Slot >= 0, "%+v", d)
		if size/targets < 1<<16 {
			require.Equal(t, rank, m.Ranks(d.Target)[d.Slot])
		}
	})
}

// FuzzPlan checks that any text is refused, or gives every rank a home on an existing namespace.
func FuzzPlan(f *testing.F) {
	for _, text := range []string{"", "round-robin", "0", "0*28,1*28", "1,0+1*2", "0,,1", "0*0", "0*2147483648,1", "0+0"} {
		f.Add(text, 5, 2, 3)
	}
	f.Fuzz(func(t *testing.T, text string, size, targets, rank int) {
		if max(size, targets) > 1<<31 {
			return
		}
		var m Mapping
		hostile.Bounded(t, 2<<20+uint64(len(text))*1000, 10*time.Second, func() {
			plan, err := ParsePlan(text)
			if err != nil {
				return
			}
			again, err := ParsePlan(plan.String())
			require.NoError(t, err)
			require.Equal(t, plan, again)
			m, _ = plan.Map(size, targets)
		})
		if m == nil {
			return
		}
		require.Equal(t, size, m.Size())
		home, err := m.Home(rank)
		require.Equal(t, rank < 0 || rank >= size, err != nil)
		for _, d := range home {
			require.True(t, d.Target >= 0 && d.Target < targets && d.Slot >= 0, "%+v", d)
			if size < 1<<16 {
				require.Equal(t, rank, m.Ranks(d.Target)[d.Slot])
			}
		}
	})
}
