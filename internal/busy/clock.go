// Package busy measures time for tests as a busy machine lets them have it: an upper bound
// holds there, too, and is as tight as ever where nobody else wants the processors.
package busy

import (
	"sync/atomic"
	"testing"
	"time"
)

// tick is what a thread sleeps that counts how often it is woken.
const tick = 5 * time.Millisecond

// A Clock goes like any other on an idle machine, and slower the longer its thread has to
// wait for a processor.
type Clock struct{ ticks atomic.Int64 }

// Start returns a clock that goes until the test ends.
func Start(tb testing.TB) *Clock {
	c := new(Clock)
	stop, stopped := make(chan struct{}), make(chan struct{})
	tb.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				time.Sleep(tick)
				c.ticks.Add(1)
			}
		}
	}()
	return c
}

// Now returns the time since the start, never more than the wall clock's.
func (c *Clock) Now() time.Duration { return time.Duration(c.ticks.Load()) * tick }
