package target

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nvmecr/nvmf"
)

// TestLimitAllocatesNothing checks that commands allocate nothing, with a limit and
// without.
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

// TestDebtOfOneCommand checks that the largest command delays the next one by at most
// a second at the lowest rate.
func TestDebtOfOneCommand(t *testing.T) {
	l := newLimit(MinRate)
	before := l.take(maxTransfer)
	assert.LessOrEqual(t, l.take(maxTransfer)-before, int64(time.Second))
}

// TestDebtOfMany checks that no connection waits for longer than limitDebt, however
// many connections share a low limit. A few connections wait as the limit says.
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
