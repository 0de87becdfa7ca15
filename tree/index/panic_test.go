package index

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// TestPanic checks that a call that panics returns EIO, as do all later calls, and that one message names the call.
func TestPanic(t *testing.T) {
	r := newRig(t)
	u, other := r.connect(0), r.connect(1)
	r.x.opts.Grow = func(uint32) (uint32, error) { panic("deliberate") }
	for range 2 {
		assert.ErrorIs(t, u.conn.Call(wire.OpGrow, &wire.Grow{Partitions: 3}, &wire.Grow{}), syscall.EIO)
	}
	assert.ErrorIs(t, other.conn.Call(wire.OpMkdir, &wire.Mkdir{Name: at("d"), Mode: 0o755}, nil), syscall.EIO)
	require.Len(t, r.lines, 1)
	assert.Contains(t, r.lines[0], "internal error during Grow, please report it: deliberate, at nvmecr/tree/index.TestPanic")
}

// TestAdoptionPanics checks that a panic in the adoption of damaged data loses that data only.
func TestAdoptionPanics(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.put(f, 0, "told")
	a.write(f, 4, "not")
	r.x.opts.Adopt = func(context.Context, uint32) (*microfs.FS, func(), error) { panic("deliberate") }
	a.kill()
	assert.Equal(t, "told", b.read("f"))
	b.open("g", unix.O_RDWR|unix.O_CREAT)
	assert.Contains(t, strings.Join(r.lines, "\n"), "deliberate")
}
