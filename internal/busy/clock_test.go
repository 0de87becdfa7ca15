package busy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestClock(t *testing.T) {
	begin := time.Now()
	c := Start(t)
	for c.Now() < 10*tick {
		time.Sleep(tick)
	}
	assert.LessOrEqual(t, c.Now(), time.Since(begin))
}
