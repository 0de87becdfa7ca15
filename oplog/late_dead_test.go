package oplog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLatePageOfTheDead checks recovery when a writer has died with the first image of a page in
// flight, and the target executes that write late. A second writer, which could not fence off the
// first one, has added records by then. Recovery must find the records of the second writer.
func TestLatePageOfTheDead(t *testing.T) {
	for refused := range 3 { // number of images of the dead writer that the device refused before
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

// TestLateCopyAndMirror checks that Mirror and Mark do not write to a slot for which a command was
// in flight when the connection was lost. The target may still execute that command, and would
// overwrite an image that the next page names. The lost operation is not repeated here.
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

// TestFinishOnAPageOfItsOwn checks an operation of several groups that ends with an image without
// records. If the next operation of several groups stays unfinished, recovery must still replay the
// operation that had ended.
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
	_, err := l.Begin(0) // the second group of the operation, which is lost
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

// TestLateCopyOfTheDead checks recovery when a writer has died with the first image of a page on the
// media and the copy of the page before in flight. The target executes that copy only after the next
// writer has gone once around the ring. Recovery must find what the next writer wrote.
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
