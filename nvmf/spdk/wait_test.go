//go:build spdk

package spdk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestRestingExpires checks a command that waits for its retry, and for which there is
// no memory. It must end after the command time-out, like a command without an answer.
func TestRestingExpires(t *testing.T) {
	const patience = 5 * time.Millisecond
	q := &Queue{dev: &Device{opts: Options{CommandTimeout: patience}}, inflight: make([]flight, 1), resting: []uint32{0}}
	assert.False(t, q.expired(), "the time-out starts")
	time.Sleep(2 * patience)
	assert.True(t, q.expired())

	q.pace.came()
	for range 10 { // each retry doubles the pause
		assert.True(t, q.inflight[0].retry.Again(time.Hour))
	}
	assert.False(t, q.expired())
	time.Sleep(2 * patience)
	assert.False(t, q.expired(), "it is not due yet")
}
