package tree

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/tree/wire"
)

func TestSpans(t *testing.T) {
	for name, c := range map[string]struct{ add, want spans }{
		"nothing":                {spans{{5, 5}}, nil},
		"one after the other":    {spans{{0, 5}, {5, 9}}, spans{{0, 9}}},
		"behind a gap":           {spans{{0, 5}, {6, 9}}, spans{{0, 5}, {6, 9}}},
		"before":                 {spans{{6, 9}, {0, 5}}, spans{{0, 5}, {6, 9}}},
		"into the gap":           {spans{{0, 5}, {6, 9}, {5, 6}}, spans{{0, 9}}},
		"over all":               {spans{{1, 2}, {4, 5}, {7, 8}, {0, 9}}, spans{{0, 9}}},
		"inside":                 {spans{{0, 9}, {3, 4}}, spans{{0, 9}}},
		"over the end of an old": {spans{{0, 5}, {9, 12}, {3, 7}}, spans{{0, 7}, {9, 12}}},
	} {
		t.Run(name, func(t *testing.T) {
			var s spans
			for _, x := range c.add {
				s.add(x.off, x.end)
			}
			assert.Equal(t, c.want, s)
		})
	}
}

// TestSpansRandom compares spans with an array of bytes.
func TestSpansRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		var s spans
		var model [100]bool
		for range 30 {
			off := r.Int64N(90)
			end := off + r.Int64N(10)
			s.add(off, end)
			for i := off; i < end; i++ {
				model[i] = true
			}
			requireSpans(t, s, model[:])
		}
	}
}

func requireSpans(t *testing.T, s spans, model []bool) {
	var want spans
	var bytes int64
	for i, in := range model {
		if !in {
			continue
		}
		bytes++
		if n := len(want); n > 0 && want[n-1].end == int64(i) {
			want[n-1].end++
		} else {
			want = append(want, span{int64(i), int64(i) + 1})
		}
	}
	require.Equal(t, want, s)
	require.Equal(t, bytes, s.bytes())
	require.Equal(t, want.end(), s.end())
	for off := range int64(len(model)) {
		got, ok := s.from(off)
		i := want.search(off)
		require.Equal(t, i < len(want), ok, off)
		if ok {
			require.Equal(t, want[i], got, off)
			require.Greater(t, got.end, off)
			require.True(t, i == 0 || want[i-1].end <= off, off)
		}
	}
}

func TestLayout(t *testing.T) {
	mapped := func(off, n int64, place uint32) wire.Segment {
		return wire.Segment{Off: off, Len: n, Kind: wire.Mapped, Partition: place, Cut: 7}
	}
	of := func(place uint32) origin { return origin{wire.Mapped, place, 7} }
	var l layout
	assert.Equal(t, piece{span{0, 10}, unknown}, l.at(0, 10))

	l.extend(&wire.File{Segments: []wire.Segment{mapped(0, 4, 1), mapped(4, 2, 2)}, More: true}, 20)
	assert.Equal(t, piece{span{3, 4}, of(1)}, l.at(3, 10))
	assert.Equal(t, piece{span{4, 5}, of(2)}, l.at(4, 5))
	assert.Equal(t, piece{span{6, 10}, unknown}, l.at(6, 10), "there are more")

	l.extend(&wire.File{Segments: []wire.Segment{mapped(6, 1, 3)}}, 20)
	assert.Equal(t, piece{span{6, 7}, of(3)}, l.at(6, 10))
	assert.Equal(t, piece{span{7, 20}, origin{}}, l.at(7, 30), "a hole to where it was asked for")
	assert.Equal(t, piece{span{20, 30}, unknown}, l.at(20, 30))

	l.forget()
	assert.Equal(t, piece{span{0, 10}, unknown}, l.at(0, 10))
}
