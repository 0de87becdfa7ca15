package serve

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestShortenSlices checks the time slices of existing threads and of threads that these start.
func TestShortenSlices(t *testing.T) {
	first, err := unix.SchedGetAttr(0, 0)
	require.NoError(t, err)
	if first.Policy != unix.SCHED_NORMAL || first.Runtime == 0 {
		t.Skip("the kernel gives no slices to threads that ask for them: Linux 6.12 does")
	}
	require.NoError(t, shortenSlices())
	slices := make(chan uint64)
	for range 20 {
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			a, err := unix.SchedGetAttr(0, 0)
			assert.NoError(t, err)
			slices <- a.Runtime
		}()
	}
	for range 20 {
		assert.EqualValues(t, shortSlice, <-slices)
	}
}
