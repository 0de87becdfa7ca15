package target

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
)

// TestLimitAllocatesNothing, whether there is one or not.
func TestLimitAllocatesNothing(t *testing.T) {
	for _, rate := range []nvmf.Bytes{0, 1 << 50, MinRate} {
		n := &namespace{}
		n.limit.Store(newLimit(rate))
		c, m := &conn{}, &command{at: &attachment{namespace: n}}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			c.charge(m, 1)
			c.paused()
		}))
		c.charge(m, maxTransfer)
		assert.Equal(t, rate == MinRate, c.paused())
	}
}

// TestDebtOfOneCommand: the largest command at the lowest rate is paid for in
// a second.
func TestDebtOfOneCommand(t *testing.T) {
	l := newLimit(MinRate)
	before := l.take(maxTransfer)
	assert.LessOrEqual(t, l.take(maxTransfer)-before, int64(time.Second))
}

// TestDebtOfMany: however many connections share a small limit, each is served
// before its host takes it for lost; a few get what the limit says.
func TestDebtOfMany(t *testing.T) {
	for _, connections := range []int{4, 128, 1024} {
		l := newLimit(MinRate)
		start := now()
		last := int64(0)
		for range connections {
			until := l.take(maxTransfer)
			assert.GreaterOrEqual(t, until, last, "in the order of their coming")
			last = until
		}
		waits := time.Duration(last - start)
		assert.LessOrEqual(t, waits, limitDebt+time.Duration(now()-start))
		assert.GreaterOrEqual(t, waits, min(time.Duration(connections)*time.Second, limitDebt)-limitBurst)
	}
}
