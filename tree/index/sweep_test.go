package index

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/tree/wire"
)

// TestSweep checks that unused shards of a former rank are removed: those of removed files, and of earlier cuts
// without references.
func TestSweep(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	for _, name := range []string{"kept", "gone", "cut", "named", "open", "replaced"} {
		f := a.create(name, "bytes")
		if name == "kept" {
			a.write(f, 10, "not published")
		}
	}
	a.goodbye()
	open := b.open("open", unix.O_RDONLY)
	for _, name := range []string{"gone", "open", "replaced"} {
		b.ok(wire.OpUnlink, &wire.Unlink{Name: at(name)}, nil)
	}
	b.create("replaced", "by another one")
	b.ok(wire.OpTruncate, &wire.Truncate{Name: at("cut")}, &wire.AttrAnswer{})
	b.ok(wire.OpTruncate, &wire.Truncate{Name: at("named"), Size: 2}, &wire.AttrAnswer{})

	left := func() int {
		require.NoError(t, r.x.Sweep(0, r.place(0)))
		shards, err := shardsIn(r.place(0))
		require.NoError(t, err)
		return len(shards)
	}
	assert.Equal(t, 3, left(), "kept, named, open")
	assert.Equal(t, "by", b.read("named")[:2])
	b.close(open, false)
	assert.Equal(t, 2, left())
	assert.Equal(t, 2, left(), "again")
}
