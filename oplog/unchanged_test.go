package oplog

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUnchanged checks that Unchanged is true until a writer changes the log, and false after each
// kind of change.
func TestUnchanged(t *testing.T) {
	r := newRing(testGeometry)
	w, _ := r.recover(t, testGeometry, Prior{})
	prior := Prior{}
	step := func(what string, change func()) {
		t.Helper()
		var none []Record
		reader, _ := r.recover(t, testGeometry, prior)
		for range 2 {
			same, err := reader.Unchanged(r.media(&none))
			require.NoError(t, err)
			require.True(t, same, "before %s", what)
		}
		change()
		same, err := reader.Unchanged(r.media(&none))
		require.NoError(t, err)
		require.False(t, same, what)
	}
	step("the seal", func() { r.seal(t, w) })
	for i := range 20 * int(testGeometry.Pages) { // several turns of the ring, 17 records a page
		step("a group", func() { r.group(t, w, grown(i)) })
		if i%50 == 20 {
			step("the mirror", func() { r.apply(w.Mirror()); w.Settled() })
		}
		if w.Free() < 3 {
			step("the group behind a state checkpoint", func() {
				p := w.Prior()
				w.Release(p)
				prior = p
				r.group(t, w, grown(0))
			})
		}
	}
}

// grown returns a record that the log cannot merge into an earlier record.
func grown(i int) Record {
	rec := samples[1]
	rec.Ino = uint64(i + 10)
	return rec
}

// TestChangedBetweenCandidates checks a recovery that starts over with its next candidate after a
// writer has overwritten the whole ring. It must fail with ErrDamaged instead of finding an empty log.
func TestChangedBetweenCandidates(t *testing.T) {
	r := newRing(testGeometry)
	w, _ := r.recover(t, testGeometry, Prior{})
	r.seal(t, w)
	r.group(t, w, samples[1])
	r.group(t, w, samples[0])
	var recs []Record
	m := r.media(&recs)
	m.Verify = func(*Record, int, int) (bool, error) { return false, nil }
	m.Reset = func() error {
		for i := 0; w.tail.page <= testGeometry.Pages+skipWindow; i++ {
			if w.Free() < 3 {
				w.Release(w.Prior())
			}
			r.group(t, w, grown(i))
		}
		return nil
	}
	_, err := Recover(testGeometry, Prior{}, m)
	require.ErrorIs(t, err, ErrDamaged)
}

// TestUnchangedNotKnown checks that Unchanged is false if recovery left out a group whose data did
// not verify. That data may arrive later without any change of the log, and the group would count then.
func TestUnchangedNotKnown(t *testing.T) {
	r := newRing(testGeometry)
	w, _ := r.recover(t, testGeometry, Prior{})
	r.seal(t, w)
	r.group(t, w, samples[1])
	r.group(t, w, samples[0])
	var recs []Record
	m := r.media(&recs)
	m.Verify = func(*Record, int, int) (bool, error) { return false, nil }
	reader, err := Recover(testGeometry, Prior{}, m)
	require.NoError(t, err)
	require.Len(t, recs, 1, "the second group is left out")
	same, err := reader.Unchanged(m)
	require.NoError(t, err)
	assert.False(t, same)
}
