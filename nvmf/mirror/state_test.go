package mirror

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

var update = flag.Bool("update", false, "write the golden file")

// TestGolden compares encoded states with a stored file, to notice a change of the format.
func TestGolden(t *testing.T) {
	var got []byte
	for side, st := range []*state{
		{alone, 7, uuid.UUID{1, 2, 3, 15: 16}, 8 * nvmf.MiB},
		{stale, 6, uuid.UUID{1, 2, 3, 15: 16}, 8 * nvmf.MiB},
	} {
		got = append(got, st.encode(side)...)
	}
	const golden = "testdata/state.golden"
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
		require.NoError(t, os.WriteFile(golden, got, 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got), "the format has changed")
	st, err := decode(append(make([]byte, slotSize), want[:slotSize]...), 0)
	require.NoError(t, err)
	assert.Equal(t, &state{alone, 7, uuid.UUID{1, 2, 3, 15: 16}, 8 * nvmf.MiB}, st)
}

// TestDecode checks that decode returns the state of the newer intact slot, and refuses later versions of the format.
func TestDecode(t *testing.T) {
	older, newer := &state{both, 4, uuid.UUID{1}, nvmf.MiB}, &state{alone, 5, uuid.UUID{1}, nvmf.MiB}
	slots := func() []byte { return append(older.encode(0), newer.encode(0)...) }
	for _, test := range []struct {
		name   string
		change func(b []byte)
		want   *state
		err    error
	}{
		{"whole", func([]byte) {}, newer, nil},
		{"torn", func(b []byte) { clear(b[slotSize+64 : 2*slotSize]) }, older, nil},
		{"both torn", func(b []byte) { b[50]++; b[slotSize+50]++ }, nil, nil},
		{"second slot moved to the first place", func(b []byte) { copy(b, b[slotSize:]); clear(b[slotSize:]) }, nil, nil},
		{"later version", func(b []byte) { b[offVersion] = 2 }, nil, ErrVersion},
	} {
		b := slots()
		test.change(b)
		got, err := decode(b, 0)
		assert.ErrorIs(t, err, test.err, test.name)
		assert.Equal(t, test.want, got, test.name)
	}
	got, err := decode(slots(), 1)
	require.NoError(t, err)
	assert.Nil(t, got, "the state of the other side")
}

func FuzzDecode(f *testing.F) {
	s := &state{both, 4, uuid.UUID{1}, nvmf.MiB}
	f.Add(append(s.encode(0), s.encode(0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != int(stateSize) {
			b = append(b, make([]byte, stateSize)...)[:stateSize]
		}
		if st, err := decode(b, 0); err == nil && st != nil {
			require.NotZero(t, st.length)
		}
	})
}

// TestChoose checks which sides of a mirror are used, for all combinations of recorded states.
func TestChoose(t *testing.T) {
	id := uuid.UUID{9}
	st := func(m mode, g uint64) probe { return probe{state: &state{m, g, id, nvmf.MiB}} }
	gone, blank := probe{err: nvmf.ErrUnreachable}, probe{}
	foreign := probe{state: &state{both, 1, uuid.UUID{8}, nvmf.MiB}}
	for _, test := range []struct {
		name string
		a, b probe
		only int
		err  error
	}{
		{"both", st(both, 3), st(both, 3), none, nil},
		{"new", blank, blank, none, nil},
		{"one alone, the other one behind", st(alone, 4), st(both, 3), 0, nil},
		{"one alone, the other one gone", st(alone, 4), gone, 0, nil},
		{"one alone, the other one replaced", st(alone, 4), blank, 0, nil},
		{"one alone, the other one being copied to", st(alone, 4), st(stale, 4), 0, nil},
		{"one alone, the other one just copied to", st(alone, 4), st(both, 5), 0, nil},
		{"one both, the other one gone", st(both, 3), gone, none, ErrAway},
		{"one both, the other one replaced", st(both, 3), blank, 0, nil},
		{"one both, the other one both but older", st(both, 5), st(both, 3), 0, nil},
		{"one both, the other one stale but older", st(both, 5), st(stale, 3), 0, nil},
		{"one both, the other one stale but newer", st(both, 3), st(stale, 4), none, ErrStale},
		{"one stale, the other one gone", st(stale, 4), gone, none, ErrStale},
		{"one stale, the other one replaced", st(stale, 4), blank, none, ErrStale},
		{"both alone", st(alone, 4), st(alone, 4), none, ErrSplit},
		{"sides of two mirrors", st(both, 3), foreign, none, ErrOther},
		{"both gone", gone, gone, none, nvmf.ErrUnreachable},
		{"one blank, the other one gone", blank, gone, none, nvmf.ErrUnreachable},
	} {
		for _, swap := range []bool{false, true} {
			found, want := [2]probe{test.a, test.b}, test.only
			if swap {
				found[0], found[1] = found[1], found[0]
				if want != none {
					want = 1 - want
				}
			}
			only, _, err := choose(&found)
			assert.ErrorIs(t, err, test.err, test.name)
			assert.Equal(t, want, only, test.name)
		}
	}
}
