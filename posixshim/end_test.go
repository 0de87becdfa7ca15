package posixshim

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
)

// TestEndIsTold checks that a process prints a message if its end waits for the target, and prints nothing otherwise.
func TestEndIsTold(t *testing.T) {
	told := make(chan string, 10)
	// ends returns how long a process takes to end. Its target calls wait first.
	ends := func(t *testing.T, wait func()) time.Duration {
		part := newPartition(t)
		p := New(func(write bool) (*vfs.Mount, error) {
			m, err := part.open(write)
			if err == nil {
				end := m.Close
				m.Close = func() error { wait(); return end() }
			}
			return m, err
		}, func(format string, args ...any) { told <- fmt.Sprintf(format, args...) })
		file(t, p, "f", create)
		begin := time.Now()
		require.NoError(t, p.Finish())
		return time.Since(begin)
	}
	t.Run("at once", func(t *testing.T) {
		for ends(t, func() {}) >= quietTime { // repeated, since a busy machine may be slow
			for len(told) > 0 {
				<-told
			}
		}
		assert.Empty(t, told)
	})
	t.Run("slowly", func(t *testing.T) {
		var first string
		ends(t, func() { first = <-told })
		assert.Equal(t, fmt.Sprintf("process %d ends, and waits until the target has taken the data that is still buffered", os.Getpid()), first)
		assert.Empty(t, told, "once")
	})
}
