package drain

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A policyCounter source counts the reads by threads of each policy.
type policyCounter struct {
	Source
	idle, others atomic.Int64
}

func (w *policyCounter) Open(rank int, path string) (Reader, error) {
	r, err := w.Source.Open(rank, path)
	return watchedReader{r, w}, err
}

type watchedReader struct {
	Reader
	w *policyCounter
}

func (r watchedReader) ReadAt(p []byte, off int64) (int, error) {
	switch a, err := unix.SchedGetAttr(0, 0); {
	case err != nil:
		return 0, err
	case a.Policy == unix.SCHED_IDLE:
		r.w.idle.Add(1)
	default:
		r.w.others.Add(1)
	}
	return r.Reader.ReadAt(p, off)
}

func TestBackground(t *testing.T) {
	for _, background := range []bool{false, true} {
		s, m := checkpointOf("400", map[string][]byte{"/melt.400.0": random(t, 3*blockSize)})
		src := &policyCounter{Source: m}
		l := open(t, t.TempDir())
		_, err := l.Put(t.Context(), s, src, Options{Background: background})
		require.NoError(t, err)
		idle, others := src.idle.Load(), src.others.Load()
		if background {
			idle, others = others, idle
		}
		assert.Zero(t, idle)
		assert.NotZero(t, others)
	}
}
