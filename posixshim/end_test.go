package posixshim

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process whose target does not answer says what its end waits for; others end in silence.
func TestEndIsTold(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration
		want  []string
	}{
		{"at once", 0, nil},
		{"slowly", patience + time.Second/2, []string{
			fmt.Sprintf("process %d is ending, and waits for its target to take what there is left", os.Getpid())}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			part := newPartition(t)
			told := make(chan string, 10)
			p := New(func(write bool) (*Mount, error) {
				m, err := part.open(write)
				if err == nil {
					end := m.Close
					m.Close = func() error { time.Sleep(c.takes); return end() }
				}
				return m, err
			}, func(format string, args ...any) { told <- fmt.Sprintf(format, args...) })
			file(t, p, "f", create)
			require.NoError(t, p.Finish())
			var got []string
			for len(told) > 0 {
				got = append(got, <-told)
			}
			assert.Equal(t, c.want, got)
		})
	}
}
