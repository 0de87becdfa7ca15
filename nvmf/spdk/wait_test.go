//go:build spdk

package spdk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A slot that has rested, and for which there is no memory ever, ends by the
// command time-out as one that the controller does not answer.
func TestRestingExpires(t *testing.T) {
	const patience = 5 * time.Millisecond
	q := &Queue{dev: &Device{opts: Options{CommandTimeout: patience}}, inflight: make([]flight, 1), resting: []uint32{0}}
	assert.False(t, q.expired(), "the clock starts")
	time.Sleep(2 * patience)
	assert.True(t, q.expired())

	q.pace.came()
	for range 10 { // until it has to rest for long
		assert.True(t, q.inflight[0].retry.Again(time.Hour))
	}
	assert.False(t, q.expired())
	time.Sleep(2 * patience)
	assert.False(t, q.expired(), "it is not due yet")
}
