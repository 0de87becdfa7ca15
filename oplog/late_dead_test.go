package oplog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLatePageOfTheDead: a writer dies with the first image of a page in
// flight. It lands after another one, which no fence separates from it, has
// gone on: what that one wrote counts.
func TestLatePageOfTheDead(t *testing.T) {
	for refused := range 3 { // images of the dead writer that were refused before
		g := testGeometry
		g.Pages = 32
		r := newRing(g)
		dead, _ := r.recover(t, g, Prior{})
		r.seal(t, dead)
		r.group(t, dead, small(10))
		for range refused {
			_, err := dead.Begin(100)
			require.NoError(t, err)
			dead.Commit()
			dead.Failed()
		}
		late := inFlight(r.startPage(t, dead))

		l, _ := r.recover(t, g, Prior{})
		l.Suspect()
		r.seal(t, l)
		r.group(t, l, small(20))
		r.group(t, l, pageful(1))
		_, want := r.recover(t, g, Prior{})
		require.Len(t, want, 3)
		r.apply(late)
		_, got := r.recover(t, g, Prior{})
		require.Equal(t, want, got)
	}
}

// TestLateCopyAndMirror: the connection is lost with the copy of a page in
// flight, and the operation is not repeated. A Mirror must not go to the slot
// where the copy may still land: what follows would name an image that is gone.
func TestLateCopyAndMirror(t *testing.T) {
	for _, volatile := range []bool{false, true} {
		g := testGeometry
		g.Volatile = volatile
		r := newRing(g)
		l, _ := r.recover(t, g, Prior{})
		r.seal(t, l)
		r.group(t, l, small(10))
		r.group(t, l, small(11))
		late := inFlight(r.startPage(t, l))
		require.GreaterOrEqual(t, len(late), 2)
		l.Lost()
		l.Flushed()
		again := l.Mirror()
		if volatile {
			again = l.Mark()
		}
		if len(again) > 0 {
			r.apply(again)
			l.Settled()
		}
		r.group(t, l, small(20))
		_, want := r.recover(t, g, Prior{})
		require.Len(t, want, 3)
		r.apply(late[1:2])
		_, got := r.recover(t, g, Prior{})
		require.Equal(t, want, got)
	}
}

// TestFinishOnAPageOfItsOwn: an operation of several groups ends with an image
// that has no records. The next operation of several groups does not put that
// in doubt.
func TestFinishOnAPageOfItsOwn(t *testing.T) {
	g := testGeometry
	r := newRing(g)
	l, _ := r.recover(t, g, Prior{})
	r.seal(t, l)
	more := func(ino uint64) {
		rec := Record{Type: Create, Ino: ino, Parent: 1, Name: []byte("n")}
		prep, err := l.Begin(rec.Len())
		require.NoError(t, err)
		r.apply(prep)
		l.More()
		require.NoError(t, l.Append(&rec, false))
		r.apply(l.Commit())
		l.Settled()
	}
	more(10)
	_, err := l.Begin(0) // its second group, which is lost
	require.NoError(t, err)
	l.Commit()
	l.Lost()
	require.Empty(t, l.Finish())
	prep, err := l.Begin(0)
	require.NoError(t, err)
	r.apply(prep)
	r.apply(l.Commit())
	l.Settled()
	require.False(t, l.Open())
	_, got := r.recover(t, g, Prior{})
	require.Len(t, got, 1)
	more(20)
	_, got = r.recover(t, g, Prior{})
	require.Len(t, got, 1, "the operation that had ended")
	require.EqualValues(t, 10, got[0].Ino)
}

// TestLateCopyOfTheDead: a writer dies with a page's first image on the media
// and the copy of the page before in flight. It lands when the ring has
// wrapped.
func TestLateCopyOfTheDead(t *testing.T) {
	g := testGeometry
	g.Pages = 16
	r := newRing(g)
	dead, _ := r.recover(t, g, Prior{})
	r.seal(t, dead)
	r.group(t, dead, small(10))
	r.group(t, dead, small(11))
	cmds := r.startPage(t, dead)
	r.apply(cmds[:1])
	late := inFlight(cmds[1:])

	l, _ := r.recover(t, g, Prior{})
	l.Suspect()
	r.seal(t, l)
	var prior Prior
	for i := 1; l.nextPage <= g.Pages; i++ {
		r.group(t, l, pageful(i))
		prior = l.Prior()
		l.Release(prior)
	}
	r.group(t, l, small(500))
	r.group(t, l, small(501))
	_, want := r.recover(t, g, prior)
	require.Len(t, want, 2)
	r.apply(late)
	_, got := r.recover(t, g, prior)
	require.Equal(t, want, got)
}
