package index

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"nvmecr/tree/wire"
)

func shardOf(a wire.Attr) []wire.Shard { return []wire.Shard{{Ino: a.Ino, Birth: a.Birth, Cut: a.Cut}} }

// TestReleases makes calls on a file with data of client a: each releases the shard of a, at once or at the last
// close.
func TestReleases(t *testing.T) {
	truncate := func(u *user, size int64) {
		u.ok(wire.OpTruncate, &wire.Truncate{Name: at("f"), Size: size}, &wire.AttrAnswer{})
	}
	for name, c := range map[string]struct {
		do   func(a, b *user, f wire.Attr)
		free bool
	}{
		"nothing":          {func(a, b *user, f wire.Attr) {}, false},
		"unlink":           {func(a, b *user, f wire.Attr) { b.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil) }, true},
		"unlink by itself": {func(a, b *user, f wire.Attr) { a.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil) }, true},
		"renamed":          {func(a, b *user, f wire.Attr) { b.ok(wire.OpRename, &wire.Rename{From: at("f"), To: at("g")}, nil) }, false},
		"unlink, other name": {func(a, b *user, f wire.Attr) {
			b.ok(wire.OpLink, &wire.Link{From: at("f"), To: at("g")}, nil)
			b.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
		}, false},
		"renamed over": {func(a, b *user, f wire.Attr) {
			b.create("g", "")
			b.ok(wire.OpRename, &wire.Rename{From: at("g"), To: at("f")}, nil)
		}, true},
		"exchanged": {func(a, b *user, f wire.Attr) {
			b.create("g", "")
			b.ok(wire.OpRename, &wire.Rename{From: at("g"), To: at("f"), Flags: unix.RENAME_EXCHANGE}, nil)
		}, false},
		"truncated to nothing":      {func(a, b *user, f wire.Attr) { truncate(b, 0) }, true},
		"truncated to a part":       {func(a, b *user, f wire.Attr) { truncate(b, 2) }, false},
		"truncated to a part, then": {func(a, b *user, f wire.Attr) { truncate(b, 2); truncate(b, 0) }, true},
		"made longer":               {func(a, b *user, f wire.Attr) { truncate(b, 200) }, false},
		"O_TRUNC": {func(a, b *user, f wire.Attr) {
			g := b.open("f", unix.O_RDWR|unix.O_TRUNC)
			assert.Empty(t, a.collect(), "open")
			b.close(g, true)
		}, true},
		"truncated while a has it open": {func(a, b *user, f wire.Attr) {
			a.open("f", unix.O_RDONLY)
			truncate(b, 0)
			assert.Empty(t, a.collect(), "open")
			a.close(f, false)
		}, true},
		"truncated while open, and mapped again": {func(a, b *user, f wire.Attr) {
			a.open("f", unix.O_RDWR)
			truncate(b, 0)
			a.put(f, 0, "old")
			a.close(f, true)
		}, false},
		"punched": {func(a, b *user, f wire.Attr) {
			b.open("f", unix.O_RDWR)
			b.ok(wire.OpAllocate, &wire.Allocate{Ino: f.Ino, Mode: wire.Punch, Len: 100}, &wire.AttrAnswer{})
			b.close(f, true)
		}, true},
		"overwritten": {func(a, b *user, f wire.Attr) {
			b.open("f", unix.O_RDWR)
			b.put(f, 0, "BYTES")
			b.close(f, true)
		}, false},
		"overwritten, unlinked later": {func(a, b *user, f wire.Attr) {
			b.open("f", unix.O_RDWR)
			b.put(f, 0, "BYTES")
			b.close(f, true)
			b.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
		}, true},
		"overwritten, cut later": {func(a, b *user, f wire.Attr) {
			b.open("f", unix.O_RDWR)
			b.ok(wire.OpWrite, &wire.Write{Ino: f.Ino, Limit: math.MaxInt64, Data: []byte("BYTES")}, &wire.Written{})
			b.close(f, true)
			truncate(b, 1)
		}, true},
		"unlinked while b has it open, b killed": {func(a, b *user, f wire.Attr) {
			b.open("f", unix.O_RDONLY)
			a.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
			assert.Empty(t, a.collect(), "open")
			b.kill()
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.connect(0), r.connect(1)
			f := a.create("f", "bytes")
			c.do(a, b, f)
			var want []wire.Shard
			if c.free {
				want = shardOf(f)
			}
			assert.Equal(t, want, a.collect())
		})
	}
}

// TestShards checks that the answers to Shards have releases for which there was no client before.
func TestShards(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	gone, kept, cut := a.create("gone", "bytes"), a.create("kept", "bytes"), a.create("cut", "bytes")
	over, open := a.create("over", "bytes"), a.create("open", "bytes")
	a.goodbye()
	b.ok(wire.OpUnlink, &wire.Unlink{Name: at("gone")}, nil)
	b.ok(wire.OpTruncate, &wire.Truncate{Name: at("cut")}, &wire.AttrAnswer{})
	b.open("over", unix.O_RDWR)
	b.put(over, 0, "BYTES")
	b.close(over, true)
	b.open("open", unix.O_RDWR)
	b.ok(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: open.Ino}}, &wire.AttrAnswer{})
	var list []wire.Shard
	for _, f := range []wire.Attr{gone, kept, cut, over, open} {
		list = append(list, shardOf(f)...)
	}
	otherBirth := shardOf(kept)[0]
	otherBirth.Birth++
	laterCut := shardOf(kept)[0] // the truncation was lost with the power
	laterCut.Cut++
	list = append(list, otherBirth, laterCut)

	a = r.connect(0)
	a.ok(wire.OpShards, &wire.Shards{List: list}, nil)
	assert.ElementsMatch(t, []wire.Shard{list[0], list[2], otherBirth, laterCut}, a.collect())
	assert.Equal(t, "bytes", a.read("kept"))
	b.close(open, true)
	assert.Equal(t, shardOf(open), a.collect())
	b.ok(wire.OpUnlink, &wire.Unlink{Name: at("over")}, nil)
	assert.Equal(t, shardOf(over), a.collect())
	none := r.connect(wire.NoPartition)
	assert.Error(t, none.conn.Call(wire.OpShards, &wire.Shards{}, nil))
}

func TestManyReleases(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	list := make([]wire.Shard, 2*wire.MaxReleases+10)
	for i := range list {
		list[i] = wire.Shard{Ino: 1 << 40, Cut: uint32(i)}
	}
	a.ok(wire.OpShards, &wire.Shards{List: list}, nil)
	assert.Len(t, a.removed, wire.MaxReleases)
	assert.ElementsMatch(t, list, a.collect())
}
