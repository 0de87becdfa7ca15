package balancer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// Every rank has one slot to itself, slots have no gaps, and no namespace has
// more than one rank more than another.
func TestRoundRobin(t *testing.T) {
	for targets := 1; targets <= 9; targets++ {
		for size := 1; size <= 40; size++ {
			load := make([]int, targets)
			m, err := RoundRobin(size, targets)
			require.NoError(t, err)
			for rank := 0; rank < size; rank++ {
				p, err := m.Home(rank)
				require.NoError(t, err)
				require.Equal(t, load[p.Target], p.Slot, "ranks fill a namespace in order")
				require.Equal(t, m.Ranks(p.Target), p.Slots)
				require.Equal(t, rank, m.RankAt(p.Target, p.Slot))
				load[p.Target]++
			}
			low, high, sum := size, 0, 0
			for target, n := range load {
				require.Equal(t, m.Ranks(target), n)
				low, high, sum = min(low, n), max(high, n), sum+n
			}
			require.LessOrEqual(t, high-low, 1)
			require.Equal(t, size, sum)
		}
	}
}

func TestRoundRobinRefuses(t *testing.T) {
	for _, c := range []struct{ rank, size, targets int }{
		{0, 1, 0}, {0, 0, 1}, {1, 1, 1}, {-1, 1, 1}, {0, -1, 1},
	} {
		m, err := RoundRobin(c.size, c.targets)
		if err == nil {
			_, err = m.Home(c.rank)
		}
		assert.Error(t, err, "%+v", c)
	}
}

// Segments are equal, aligned, in order, do not overlap, stay inside, and leave
// less than one alignment unit a slot unused, beside the one at the start.
func TestSegments(t *testing.T) {
	for _, first := range []nvmf.Bytes{0, 2 * nvmf.MiB, 2*nvmf.MiB + 1} {
		for _, align := range []nvmf.Bytes{4 * nvmf.KiB, nvmf.MiB, 4 * nvmf.MiB} {
			for _, capacity := range []nvmf.Bytes{512 * nvmf.MiB, 1000000007, 3 * nvmf.TiB} {
				for _, slots := range []int{1, 2, 3, 7, 64} {
					segs, err := Segments(first, capacity, slots, align)
					require.NoError(t, err)
					require.Len(t, segs, slots)
					end := first
					for _, s := range segs {
						require.GreaterOrEqual(t, s.Start, end)
						require.Zero(t, s.Start%align)
						require.Zero(t, s.Length%align)
						require.NotZero(t, s.Length)
						require.Equal(t, segs[0].Length, s.Length)
						end = s.Start + s.Length
					}
					require.LessOrEqual(t, end, capacity)
					require.Less(t, capacity-end, align*nvmf.Bytes(slots+1))
				}
			}
		}
	}
}

func TestSegmentsRefuse(t *testing.T) {
	for _, c := range []struct {
		first, capacity nvmf.Bytes
		slots           int
		align           nvmf.Bytes
	}{
		{0, nvmf.MiB, 0, 4096},                        // nobody
		{0, nvmf.MiB, 1, 0},                           // no alignment
		{0, nvmf.MiB, 1, 3},                           // not a power of two
		{2 * nvmf.MiB, 2 * nvmf.MiB, 1, 4096},         // nothing left
		{4 * nvmf.MiB, 2 * nvmf.MiB, 1, 4096},         // less than nothing
		{0, nvmf.MiB, 2, nvmf.MiB},                    // half a unit each
		{^nvmf.Bytes(0) - 1, ^nvmf.Bytes(0), 1, 4096}, // the start wraps
	} {
		_, err := Segments(c.first, c.capacity, c.slots, c.align)
		assert.Error(t, err, "%+v", c)
	}
}
