package balancer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlans(t *testing.T) {
	for _, c := range []struct {
		text          string
		size, targets int
		ranks         [][]int // on each target
	}{
		{"", 3, 2, [][]int{{0, 2}, {1}}},
		{"round-robin", 3, 2, [][]int{{0, 2}, {1}}},
		{"0*2,1*2", 6, 2, [][]int{{0, 1, 4, 5}, {2, 3}}},
		{"1*2,0*2", 4, 3, [][]int{{2, 3}, {0, 1}, nil}},
		{"2,0*100", 4, 3, [][]int{{1, 2, 3}, nil, {0}}},
		{"0,1,0", 5, 2, [][]int{{0, 2, 3}, {1, 4}}},
		{"0+1,1+2,2+0", 4, 3, [][]int{{0, 2, 3}, {0, 1, 3}, {1, 2}}},
		{"1", 1, 2, [][]int{{0}, nil}},
	} {
		plan, err := ParsePlan(c.text)
		require.NoError(t, err, c.text)
		m, err := plan.Map(c.size, c.targets)
		require.NoError(t, err, c.text)
		checkMapping(t, m, c.targets)
		for target, want := range c.ranks {
			assert.Equal(t, want, m.Ranks(target), "%s: target %d", c.text, target)
		}
		again, err := ParsePlan(plan.String())
		require.NoError(t, err)
		assert.Equal(t, plan, again)
	}
}

// The own device comes first, whatever its number.
func TestHomeWithCopies(t *testing.T) {
	plan, err := ParsePlan("2+0")
	require.NoError(t, err)
	m, err := plan.Map(4, 3)
	require.NoError(t, err)
	home, err := m.Home(3)
	require.NoError(t, err)
	assert.Equal(t, Home{{Target: 2, Slot: 3}, {Target: 0, Slot: 3}}, home)
}

func TestPlansRefused(t *testing.T) {
	for _, c := range []struct {
		text, says    string
		size, targets int
	}{
		{"0,", "number of a target", 2, 2},
		{"-1", "number of a target", 2, 2},
		{"hosts", "round-robin", 2, 2},
		{"0*", "number of ranks", 2, 2},
		{"0*0", "number of ranks", 2, 2},
		{"0*x", "number of ranks", 2, 2},
		{"0*2147483648,1", "more than", 2, 2},
		{"1+1", "twice", 2, 2},
		{"0,2", "0 to 1", 2, 2},
		{"1", "first one is used", 2, 2},
		{"1*2,0", "first one is used", 2, 2},
	} {
		plan, err := ParsePlan(c.text)
		if err == nil {
			_, err = plan.Map(c.size, c.targets)
		}
		assert.ErrorContains(t, err, c.says, c.text)
	}
}
