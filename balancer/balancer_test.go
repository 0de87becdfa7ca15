package balancer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// checkMapping checks that every rank has one slot on each namespace of its home, and that slots are in order of rank
// without gaps. It returns the loads.
func checkMapping(t *testing.T, m Mapping, targets int) []int {
	t.Helper()
	load := make([]int, targets)
	for rank := range m.Size() {
		home, err := m.Home(rank)
		require.NoError(t, err)
		require.NotEmpty(t, home)
		for _, d := range home {
			require.Equal(t, load[d.Target], d.Slot, "ranks fill a namespace in order")
			require.Equal(t, rank, m.Ranks(d.Target)[d.Slot])
			load[d.Target]++
		}
	}
	for target, n := range load {
		require.Len(t, m.Ranks(target), n)
	}
	for _, rank := range []int{-1, m.Size()} {
		_, err := m.Home(rank)
		require.Error(t, err)
	}
	assert.Empty(t, m.Ranks(-1))
	assert.Empty(t, m.Ranks(targets))
	return load
}

// TestRoundRobin checks that the loads differ by at most one rank, and that the plan which lists all namespaces once
// is the same mapping.
func TestRoundRobin(t *testing.T) {
	list := ""
	for targets := 1; targets <= 9; targets++ {
		list += fmt.Sprint(",", targets-1)
		plan, err := ParsePlan(list[1:])
		require.NoError(t, err)
		for size := 1; size <= 40; size++ {
			m, err := RoundRobin(size, targets)
			require.NoError(t, err)
			load := checkMapping(t, m, targets)
			require.LessOrEqual(t, slices.Max(load)-slices.Min(load), 1)
			again, err := plan.Map(size, targets)
			require.NoError(t, err)
			for target := range targets {
				require.Equal(t, m.Ranks(target), again.Ranks(target))
			}
		}
	}
}

func TestRoundRobinRefuses(t *testing.T) {
	for _, c := range []struct{ size, targets int }{{1, 0}, {0, 1}, {-1, 1}} {
		_, err := RoundRobin(c.size, c.targets)
		assert.Error(t, err, "%+v", c)
		plan, err := ParsePlan("0,0")
		require.NoError(t, err)
		_, err = plan.Map(c.size, c.targets)
		assert.Error(t, err, "%+v", c)
	}
}

// TestSegments checks that segments are equal, aligned, ordered, within bounds and do not overlap, and that less than
// one alignment unit per slot is unused, in addition to the unit at the start.
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
		{0, nvmf.MiB, 0, 4096},                        // no slots
		{0, nvmf.MiB, 1, 0},                           // no alignment
		{0, nvmf.MiB, 1, 3},                           // not a power of two
		{2 * nvmf.MiB, 2 * nvmf.MiB, 1, 4096},         // nothing left
		{4 * nvmf.MiB, 2 * nvmf.MiB, 1, 4096},         // first beyond capacity
		{0, nvmf.MiB, 2, nvmf.MiB},                    // half a unit each
		{^nvmf.Bytes(0) - 1, ^nvmf.Bytes(0), 1, 4096}, // the start wraps
	} {
		_, err := Segments(c.first, c.capacity, c.slots, c.align)
		assert.Error(t, err, "%+v", c)
	}
}
