package oplog

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// A group whose image is on the media although its writer was told that it had
// failed, or lost the connection, is found by a recovery until it is superseded.
func TestInDoubt(t *testing.T) {
	ends := map[string]func(*Log){"failed": (*Log).Failed, "lost": (*Log).Lost}
	for name, end := range ends {
		for _, volatile := range []bool{false, true} {
			for fill := range 40 { // in a page, and at the start of one
				g := testGeometry
				g.Volatile = volatile
				r := newRing(g)
				l, _ := r.recover(t, g, Prior{})
				r.seal(t, l)
				for range fill {
					r.group(t, l, samples[1])
				}
				prep, err := l.Begin(samples[3].Len())
				require.NoError(t, err)
				r.apply(prep)
				require.NoError(t, l.Append(&samples[3], false))
				require.False(t, l.InDoubt())
				r.apply(l.Commit())
				end(l)
				require.True(t, l.InDoubt(), name)
				last := func() Type {
					media := ring{slices.Clone(r.data)}
					_, recs := media.recover(t, g, Prior{})
					return recs[len(recs)-1].Type
				}
				if fill > 0 {
					assert.Equal(t, Unlink, last(), "%s after %d", name, fill)
				}
				prep, err = l.Begin(0)
				require.NoError(t, err)
				r.apply(prep)
				cmds := l.Supersede()
				assert.True(t, cmds[0].FUA)
				r.apply(cmds)
				l.Settled()
				assert.False(t, l.InDoubt())
				if fill > 0 {
					assert.Equal(t, Create, last(), "%s after %d", name, fill)
				}
			}
		}
	}
}

// What a volatile cache may lose supersedes nothing.
func TestInDoubtUntilDurable(t *testing.T) {
	for _, volatile := range []bool{false, true} {
		g := testGeometry
		g.Volatile = volatile
		r := newRing(g)
		l, _ := r.recover(t, g, Prior{})
		r.seal(t, l)
		begin := func() []*nvmf.Command {
			prep, err := l.Begin(samples[1].Len())
			require.NoError(t, err)
			r.apply(prep)
			require.NoError(t, l.Append(&samples[1], false))
			return l.Commit()
		}
		r.apply(begin())
		l.Failed()
		r.apply(begin())
		l.Settled()
		assert.Equal(t, volatile, l.InDoubt())
	}
}
