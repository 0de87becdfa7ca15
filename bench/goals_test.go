package bench

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/bench/stats"
)

// TestLeastAggregate checks that the least bandwidth is that of ranks which use all cores. One rank
// on a machine of 16 cores has the least of all, and says nothing about more ranks than cores.
func TestLeastAggregate(t *testing.T) {
	rates := make(map[int]stats.Sample)
	for n, rate := range map[int]float64{1: 10, 2: 20, 4: 40, 8: 70, 16: 100, 32: 90} {
		rates[n] = stats.Sample{rate, rate}
	}
	goal := leastAggregate(rates, 16)
	require.NotNil(t, goal)
	assert.InDelta(t, 0.9, goal.Measured.Value, 1e-9)
	assert.Contains(t, goal.What, "of 16 to 32 ranks (32)")
	assert.InDelta(t, 0.2, leastAggregate(rates, 2).Measured.Value, 1e-9)
	assert.InDelta(t, 0.9, leastAggregate(rates, 64).Measured.Value, 1e-9, "no measured number gives each core a rank: the largest")
	delete(rates, 16)
	delete(rates, 32)
	assert.Nil(t, leastAggregate(rates, 16), "the memory was short")
}
