// Package busy has a clock for tests that slows down with the load of the machine: an
// upper bound on a duration then also holds on a busy machine, and is as tight as before
// on an idle one.
package busy

import (
	"sync/atomic"
	"testing"
	"time"
)

// tick is the sleeping time of the thread that counts its wake-ups.
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

// Now returns the time since the start, which is never more than the real time.
func (c *Clock) Now() time.Duration { return time.Duration(c.ticks.Load()) * tick }
