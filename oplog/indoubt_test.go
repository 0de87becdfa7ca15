package oplog

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestInDoubt checks a group whose image reached the media although its commands failed or its
// connection was lost. The log reports the group as in doubt and recovery replays it until
// Supersede has overwritten it.
func TestInDoubt(t *testing.T) {
	ends := map[string]func(*Log){"failed": (*Log).Failed, "lost": (*Log).Lost}
	for name, end := range ends {
		for _, volatile := range []bool{false, true} {
			for fill := range 40 { // groups before: the group in doubt is inside a page or starts one
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

// TestInDoubtUntilDurable checks that on a device with a volatile write cache an ordinary group
// does not supersede a group in doubt: the cache may lose the ordinary group.
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
