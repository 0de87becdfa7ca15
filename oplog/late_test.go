package oplog

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// pageful returns a record that takes most of a page.
func pageful(i int) Record {
	return Record{Type: Create, Ino: uint64(1000 + i), Parent: 1, Name: []byte("n"), NewName: make([]byte, 3900)}
}

// small returns a record so small that a page holds many.
func small(ino uint64) Record {
	return Record{Type: Create, Ino: ino, Parent: 1, Name: []byte("n")}
}

// startPage starts a page with a group that fills it. It returns the commands of the group, which
// have not been executed.
func (r *ring) startPage(t *testing.T, l *Log) []*nvmf.Command {
	b := pageful(0)
	prep, err := l.Begin(b.Len())
	require.NoError(t, err)
	r.apply(prep)
	require.NoError(t, l.Append(&b, false))
	return l.Commit()
}

// TestLateCopy checks recovery when the connection was lost with the first image of a page and the
// copy of the page before in flight, and the target executes both only after the ring has wrapped.
// Recovery must still find all records that have settled since.
func TestLateCopy(t *testing.T) {
	g := testGeometry
	r := newRing(g)
	l, _ := r.recover(t, g, Prior{})
	r.seal(t, l)
	r.group(t, l, small(10))
	r.group(t, l, small(11))

	late := inFlight(r.startPage(t, l))
	require.GreaterOrEqual(t, len(late), 2)
	l.Lost()

	var prior Prior
	for i := 1; l.nextPage <= g.Pages; i++ {
		r.group(t, l, pageful(i))
		prior = l.Prior()
		l.Release(prior)
	}
	r.group(t, l, small(500))
	r.group(t, l, small(501)) // in slot 1, as the late copy, which overwrites it if both are on one position
	_, want := r.recover(t, g, prior)
	require.NotEmpty(t, want)
	r.apply(late)
	_, got := r.recover(t, g, prior)
	require.Equal(t, want, got)
}

// inFlight returns copies of commands, with their data: the log reuses the memory of both.
func inFlight(cmds []*nvmf.Command) (late []*nvmf.Command) {
	for _, c := range cmds {
		d := *c
		d.Data = [][]byte{append([]byte(nil), c.Data[0]...)}
		late = append(late, &d)
	}
	return late
}

// TestUnstableEnds loses the connection so often that Begin fails with ErrUnstable. It checks that
// the log accepts groups again when all losses are longer ago than Quarantine.
func TestUnstableEnds(t *testing.T) {
	tests := []struct {
		losses int
		pages  uint64
	}{
		{losses: 5, pages: 8},   // more than half of a small ring is retired
		{losses: 17, pages: 64}, // more pages in a row than recovery searches (skipWindow)
	}
	for _, tc := range tests {
		t.Run(fmt.Sprintf("%d losses, %d pages", tc.losses, tc.pages), func(t *testing.T) {
			g := testGeometry
			g.Pages = tc.pages
			r := newRing(g)
			l, _ := r.recover(t, g, Prior{})
			r.seal(t, l)
			for range tc.losses {
				if prep, err := l.Begin(100); err == nil {
					r.apply(prep)
					l.Commit()
					l.Lost()
				}
			}
			_, err := l.Begin(100)
			require.ErrorIs(t, err, ErrUnstable)
			for page := range l.retired {
				l.retired[page] = time.Now().Add(-2 * Quarantine)
			}
			rec := pageful(0)
			r.group(t, l, rec)
			_, got := r.recover(t, g, Prior{})
			require.Len(t, got, 1)
			require.Equal(t, rec.Ino, got[0].Ino)
		})
	}
}

// TestBlankedAgain loses the connection while the blanking of a page is in flight, so that the page
// holds a part of an earlier image. After Quarantine the log goes back to the pages it had skipped.
// The test checks that the torn page is blanked again before its first image is written.
func TestBlankedAgain(t *testing.T) {
	g := testGeometry
	g.Pages = 32
	r := newRing(g)
	l, _ := r.recover(t, g, Prior{})
	r.seal(t, l)
	r.group(t, l, pageful(0))
	begin := func() {
		prep, err := l.Begin(pageful0)
		require.NoError(t, err)
		r.apply(prep)
	}
	begin()
	l.Commit()
	torn := l.blanking
	require.NotZero(t, torn)
	l.Lost()
	at := int(g.lba(torn, 1)) * 4096
	copy(r.data[at:at+PageSize], "half of an earlier image")
	begin()
	r.apply(l.Commit()[1:]) // the device refuses the image, and executes the blanking of the next page
	l.Failed()
	for pos := range l.retired {
		l.retired[pos] = time.Now().Add(-2 * Quarantine)
	}
	r.group(t, l, pageful(1))
	require.LessOrEqual(t, l.nextPage, torn)
	require.Equal(t, -1, bytes.IndexByte(r.data[at:at+PageSize], 'h'), "not blank")
}

// pageful0 is an upper bound of the bytes that a group with one pageful record needs.
const pageful0 = 3980
