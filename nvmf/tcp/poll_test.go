package tcp

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// spin polls in vain n times, or until pace says to block.
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
	for range 2 * reviewEvery {
		p.review()
	}
	assert.Equal(t, maxSpins, p.limit, "then it is tried again")
}
