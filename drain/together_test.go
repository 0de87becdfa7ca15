package drain

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shared returns files of several segments, small ones, and an empty one.
func shared(t *testing.T) map[string][]byte {
	data := map[string][]byte{"/melt.400.0": append(random(t, SegmentSize), 1, 2, 3), "/melt.400.empty": nil}
	for i := 1; i < 8; i++ {
		data[fmt.Sprintf("/melt.400.%d", i)] = random(t, i*1000)
	}
	return data
}

// TestTogether checks that processes which put a set together read each byte once, and read it back once.
func TestTogether(t *testing.T) {
	for _, compress := range []Compression{Plain, LZ4} {
		t.Run(string(compress), func(t *testing.T) {
			data := shared(t)
			s, m := checkpointOf("400", data)
			s.Compress = compress
			dir := t.TempDir()
			var verified atomic.Int64
			var wholes []*Set
			var all sync.WaitGroup
			for number := range 3 {
				l := open(t, dir)
				all.Go(func() {
					o := Options{Share: Share{number, 3}, Progress: func(_, v int64) { verified.Add(v) }}
					set, err := l.Put(t.Context(), s, m, o)
					assert.NoError(t, err)
					if number == 0 {
						wholes = append(wholes, set)
					} else {
						assert.Nil(t, set)
					}
				})
			}
			all.Wait()
			require.Len(t, wholes, 1)
			assert.Equal(t, s.Size(), m.read)
			assert.GreaterOrEqual(t, verified.Load(), s.Size())
			require.NoError(t, open(t, dir).Verify(t.Context(), wholes[0], Options{}))
			if compress == Plain {
				requireSet(t, open(t, dir), s, data)
			}
		})
	}
}

// TestTogetherCutShort checks that a set with a share that is missing, or was not read back, is incomplete, and that
// the next Put continues.
func TestTogetherCutShort(t *testing.T) {
	for _, lines := range []int{0, 1, 2} { // entries in the journal of the killed process: none, one or both of its files, none of them verified
		data := map[string][]byte{"/melt.400.0": random(t, 10), "/melt.400.1": random(t, 20), "/melt.400.2": random(t, 30), "/melt.400.3": random(t, 40)}
		s, m := checkpointOf("400", data)
		l := open(t, t.TempDir())
		n := 0
		_, err := l.Put(t.Context(), s, m, Options{Workers: 1, Share: Share{1, 2}, step: func(what string) error {
			if what == "journal" {
				n++
			}
			if n > lines {
				return errDead
			}
			return nil
		}})
		require.ErrorIs(t, err, errDead)

		p, err := l.begin(s, &Options{Share: Share{0, 2}})
		require.NoError(t, err)
		require.NoError(t, p.copy(t.Context(), m))
		require.ErrorIs(t, p.meetOthers(t.Context(), 0), errOthers, "%d lines", lines)
		p.close()
		sets, err := l.Sets()
		require.NoError(t, err)
		require.Empty(t, sets)

		_, err = l.Put(t.Context(), s, m, Options{})
		require.NoError(t, err)
		requireSet(t, l, s, data)
	}
}

// TestTogetherLate checks that a share that was read back before the first process began is not waited for, but
// verified again.
func TestTogetherLate(t *testing.T) {
	data := map[string][]byte{"/melt.400.0": random(t, 10), "/melt.400.1": random(t, 20)}
	s, m := checkpointOf("400", data)
	l := open(t, t.TempDir())
	_, err := l.Put(t.Context(), s, m, Options{Share: Share{1, 2}})
	require.NoError(t, err)
	p, err := l.begin(s, &Options{Share: Share{0, 2}})
	require.NoError(t, err)
	defer p.close()
	require.NoError(t, p.copy(t.Context(), m))
	require.NoError(t, p.meetOthers(t.Context(), 0))
	assert.Equal(t, []place{{file: 1}}, p.unverified())
}
