package tcp

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf/initiator"
)

// spin polls n times without finding data, or until pace says to block.
func (p *pace) spin(n int) (polls int, block bool) {
	for polls < n && !block {
		polls++
		block = p.polled()
	}
	return polls, block
}

func TestPace(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("polling is never tried on one core")
	}
	var p pace
	p.init()
	p.oversubscribed = func() bool { return false }
	n, block := p.spin(maxSpins)
	assert.True(t, block)
	assert.Equal(t, maxSpins, n, "full at first")
	for range 20 {
		n, _ = p.spin(maxSpins)
	}
	assert.Equal(t, minSpins, n, "little where it does not help")

	full := 0
	for range 10 * firstProbe {
		if n, _ = p.spin(maxSpins); n == maxSpins {
			full++
		}
	}
	assert.True(t, full >= 2 && full <= 5, "%d probes, fewer and fewer", full)

	p.limit = 100
	p.spin(50)
	p.began = time.Now().Add(time.Hour) // as if this goroutine had run on the core without interruption
	p.came()
	assert.Equal(t, 200, p.limit, "more where it helps")
	p.spin(50)
	p.began = time.Now().Add(-time.Second)
	p.came()
	assert.Equal(t, 100, p.limit, "but not where the core was elsewhere")

	p.rest = 2
	p.limit = minSpins
	p.spin(minSpins - 1)
	p.came()
	assert.Equal(t, minSpins, p.limit, "nor while it rests")
}

// TestPaceRests checks that polling rests on an oversubscribed machine, each time
// twice as long, and that a short preemption on an idle machine causes no rest.
func TestPaceRests(t *testing.T) {
	var crowded bool
	p := pace{limit: maxSpins, oversubscribed: func() bool { return crowded }}
	p.adapt(true)
	assert.Zero(t, p.rest, "preempted for a moment only")
	crowded = true
	for _, rest := range []int{firstRest, 2 * firstRest, 4 * firstRest} {
		p.adapt(true)
		assert.Equal(t, rest, p.rest)
		assert.Equal(t, minSpins, p.limit)
		for range rest {
			p.adapt(false)
		}
		assert.Zero(t, p.rest)
		assert.Equal(t, maxSpins, p.limit, "then it is tried again")
	}
	p.adapt(true)
	crowded = false
	p.adapt(true)
	assert.Zero(t, p.rest, "or sooner")
}

func TestCrowdedDoesNotAllocate(t *testing.T) {
	if !raceEnabled { // the race detector makes the buffer of a system call escape
		assert.Zero(t, testing.AllocsPerRun(10, func() { initiator.Oversubscribed() }))
	}
}
