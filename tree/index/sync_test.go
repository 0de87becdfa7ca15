package index

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/tree/wire"
)

// newVolatileRig is newRig on a device with a volatile write cache, which counts flushes.
func newVolatileRig(t *testing.T) (*rig, *blocktest.Faulty) {
	r := newRig(t)
	r.stop()
	dev, err := blocktest.NewFaulty(r.dev)
	require.NoError(t, err)
	dev.UseVolatileCache()
	r.dev = dev
	r.start()
	return r, dev
}

// A close that publishes is durable before it is answered, after one flush.
func TestSyncs(t *testing.T) {
	r, dev := newVolatileRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	put := publication(f, wire.Range{Len: 7})
	put.Durable = true
	for _, c := range []struct {
		what    string
		do      func()
		flushes int
	}{
		{"a publication", func() { a.ok(wire.OpPublish, &put, &wire.AttrAnswer{}) }, 1},
		{"an open", func() { a.open("f", unix.O_RDWR) }, 0},
		{"a close that is not the last one", func() { a.ok(wire.OpClose, &wire.Close{Writer: true, Publication: put}, nil) }, 1},
		{"the last close", func() { a.ok(wire.OpClose, &wire.Close{Writer: true, Publication: put}, nil) }, 1},
		{"an open of the complete file", func() { a.open("f", unix.O_RDWR) }, 0},
		{"a publication before a close", func() { a.ok(wire.OpPublish, &put, &wire.AttrAnswer{}) }, 1},
		{"a close behind it", func() { a.close(f, true) }, 1},
		{"a sync without anything new", func() { a.ok(wire.OpSync, nil, nil) }, 0},
	} {
		before := dev.Count(nvmf.Flush)
		c.do()
		assert.Equal(t, c.flushes, dev.Count(nvmf.Flush)-before, c.what)
	}
	assert.True(t, a.stat("f").Closed)
}

func TestSyncFails(t *testing.T) {
	r, dev := newVolatileRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	put := publication(f, wire.Range{Len: 7})
	put.Durable = true
	for _, op := range []wire.Op{wire.OpPublish, wire.OpClose} {
		dev.FailAt(nvmf.Flush, 1, &nvmf.StatusError{Opcode: nvmf.Flush, SC: 6})
		var request wire.Body = &put
		if op == wire.OpClose {
			request = &wire.Close{Writer: true, Publication: put}
		}
		assert.ErrorIs(t, a.conn.Call(op, request, nil), syscall.EIO, "%v", op)
	}
}
