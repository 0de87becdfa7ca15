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

// TestHomeWithCopies checks that the rank's own device comes first, whatever its number.
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

func TestPlansByHosts(t *testing.T) {
	for _, c := range []struct {
		text  string
		hosts []string // of each rank
		at    string
		order string // for ranks that fill the hosts
	}{
		{"cn[1-2]=0*2;cn3=1*2", []string{"cn1", "cn1", "cn2", "cn2", "cn3", "cn3"}, "0*4,1*2", "0*4,1*2"},
		{"cn[1-2]=0*2;cn3=1*2", []string{"cn3", "cn1", "cn2", "cn3", "cn1", "cn2"}, "1,0*2,1,0*2", "0*4,1*2"},
		{"cn1=0,1", []string{"cn1", "cn1", "cn1"}, "0,1,0", "0,1"},
		{"a.site.org=0;b=1", []string{"b.site.org", "a"}, "1,0", "0,1"},
		{"cn1=0+1*2;cn2=1+0", []string{"cn2", "cn1"}, "1+0,0+1", "0+1*2,1+0"},
	} {
		plan, err := ParsePlan(c.text)
		require.NoError(t, err, c.text)
		assert.True(t, plan.ByHosts())
		assert.Equal(t, c.text, plan.String())
		var numbers []int
		for _, h := range c.hosts {
			n, err := plan.Host(h)
			require.NoError(t, err)
			numbers = append(numbers, n)
		}
		at := plan.At(numbers)
		assert.False(t, at.ByHosts())
		assert.Equal(t, c.at, at.String())
		assert.Equal(t, c.order, Plan{terms: plan.terms}.String())
	}
	plan, err := ParsePlan("cn1=0")
	require.NoError(t, err)
	_, err = plan.Host("cn2")
	assert.ErrorContains(t, err, "this is host cn2")
	plan, err = ParsePlan("a.x=0;a.y=1")
	require.NoError(t, err)
	n, err := plan.Host("a.y")
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	_, err = plan.Host("a.z")
	assert.Error(t, err)
	for text, says := range map[string]string{
		"cn1=0;": "HOSTS=TARGETS", "cn1=0;cn1=1": "twice", "cn[1=0": "bracket", "cn1=x": "number of a target", "cn[1-3]=0*2147483647": "more than",
	} {
		_, err := ParsePlan(text)
		assert.ErrorContains(t, err, says, text)
	}
}
