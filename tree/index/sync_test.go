package index

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/tree/wire"
)

// newVolatileRig is newRig on a device with a volatile write cache, which counts flushes.
func newVolatileRig(t *testing.T) (*rig, *blocktest.Faulty) {
	r := newRig(t)
	r.stop()
	r.cache = true
	r.start()
	return r, r.host
}

// TestSyncs checks that a publishing close is durable before its answer, by one flush.
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

// TestReleasesSync checks that releases cost a sync if they free much space, if there are many, or if the rank
// requests the free space. Otherwise they wait for the sync of another call.
func TestReleasesSync(t *testing.T) {
	r, dev := newVolatileRig(t)
	a, b := r.connect(0), r.connect(1)
	unlink := func(names ...string) func() {
		return func() {
			for _, name := range names {
				b.ok(wire.OpUnlink, &wire.Unlink{Name: at(name)}, nil)
			}
			b.ok(wire.OpStat, &wire.Stat{Name: at("")}, &wire.AttrAnswer{})
			a.ok(wire.OpStat, &wire.Stat{Name: at("")}, &wire.AttrAnswer{})
		}
	}
	create := func(name string, size int64) wire.Attr {
		f := a.open(name, unix.O_RDWR|unix.O_CREAT)
		put := publication(f, wire.Range{Len: size})
		a.ok(wire.OpClose, &wire.Close{Writer: true, Publication: put}, nil)
		return f
	}
	var small, large []wire.Shard
	for _, name := range []string{"1", "2", "3", "4", "7"} {
		small = append(small, shardOf(create(name, 4096))...)
	}
	for _, name := range []string{"5", "6"} {
		large = append(large, shardOf(create(name, promptRelease/2))...)
	}
	for _, c := range []struct {
		what     string
		do       func()
		flushes  int
		released []wire.Shard
	}{
		{"small files are removed", unlink("1", "2"), 0, nil},
		{"another one syncs", func() { b.ok(wire.OpSync, nil, nil); unlink()() }, 1, small[:2]},
		{"a small and a large one", unlink("3", "5"), 0, nil},
		{"one more", unlink("6"), 1, append(small[2:3:3], large...)},
		{"a small one", unlink("4"), 0, nil},
		{"the rank asks for space", func() { a.ok(wire.OpStatFS, nil, &wire.StatFS{}) }, 1, small[3:4]},
		{"a small one", unlink("7"), 0, nil},
		{"the rank takes leave", func() { a.ok(wire.OpGoodbye, nil, nil) }, 1, small[4:]},
	} {
		before := dev.Count(nvmf.Flush)
		c.do()
		assert.Equal(t, c.flushes, dev.Count(nvmf.Flush)-before, c.what)
		assert.Equal(t, c.released, a.removed, c.what)
		a.removed = nil
	}
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
