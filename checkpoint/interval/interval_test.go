package interval

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBest checks that nearby intervals do not lose less.
func TestBest(t *testing.T) {
	for _, l := range []Level{
		{Cost: time.Second, MTBF: time.Hour},
		{Cost: 5 * time.Minute, Restart: 10 * time.Minute, MTBF: 24 * time.Hour},
		{Cost: 10 * time.Minute, MTBF: time.Hour},
		{Cost: time.Millisecond, MTBF: 1000 * time.Hour},
	} {
		best := l.Best()
		least := l.Lost(best)
		assert.Less(t, least, l.Lost(best*3/2))
		assert.Less(t, least, l.Lost(best*2/3))
		for _, near := range []float64{0.9, 1.1} { // the equation is an approximation
			assert.Less(t, least, l.Lost(time.Duration(near*float64(best)))*1.001)
		}
	}
}

func TestYoung(t *testing.T) {
	l := Level{Cost: 2 * time.Second, MTBF: time.Hour}
	assert.Equal(t, 2*time.Minute, l.Young())
	assert.InDelta(t, l.Young().Seconds(), l.Best().Seconds(), 3)
}

func TestBounds(t *testing.T) {
	l := Level{Cost: 3 * time.Hour, MTBF: time.Hour}
	assert.Equal(t, time.Hour, l.Best())
	assert.Equal(t, 1.0, l.Lost(l.Best()), "there is no time to work")
	assert.Equal(t, 1, Every(l, l))
	assert.Equal(t, 10, Every(Level{Cost: time.Second, MTBF: time.Hour}, Level{Cost: time.Second, MTBF: 100 * time.Hour}))
}

// TestSimulated compares Lost with a simulation of random failures.
func TestSimulated(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	l := Level{Cost: time.Minute, Restart: 2 * time.Minute, MTBF: time.Hour}
	for _, every := range []time.Duration{5 * time.Minute, 12 * time.Minute, 40 * time.Minute} {
		work, wall := 0.0, 0.0
		next := r.ExpFloat64() * l.MTBF.Seconds()
		for range 100_000 { // number of completed intervals
			for need := every.Seconds(); ; {
				if next >= need {
					wall, next = wall+need, next-need
					break
				}
				wall += next
				next = r.ExpFloat64() * l.MTBF.Seconds()
				need = every.Seconds() + l.Restart.Seconds()
			}
			work += (every - l.Cost).Seconds()
		}
		require.InEpsilon(t, 1-work/wall, l.Lost(every), 0.02, every)
	}
}
