package index

import (
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/tree/wire"
)

// TestLaterPublicationsWin checks that each byte is that of the latest publication, whatever the order of writes.
func TestLaterPublicationsWin(t *testing.T) {
	r := newRig(t)
	a, b, none := r.connect(0), r.connect(1), r.connect(wire.NoPartition)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	b.open("f", unix.O_RDWR)
	none.open("f", unix.O_RDWR)
	a.put(f, 0, "aaaaaaaaaa")
	b.put(f, 3, "bbb")
	var w wire.Written
	none.ok(wire.OpWrite, &wire.Write{Ino: f.Ino, Off: 5, Limit: math.MaxInt64, Data: []byte("nn")}, &w)
	assert.EqualValues(t, 10, w.Attr.Size)
	a.put(f, 12, "A")
	for _, u := range []*user{a, b, none} {
		assert.Equal(t, "aaabbnnaaa\x00\x00A", u.content(f.Ino))
	}
	a.put(f, 4, "A")
	_, segments := b.segments(f.Ino)
	assert.Equal(t, []wire.Segment{
		{Off: 0, Len: 3, Kind: wire.Mapped, Partition: 0}, {Off: 3, Len: 1, Kind: wire.Mapped, Partition: 1}, {Off: 4, Len: 1, Kind: wire.Mapped, Partition: 0},
		{Off: 5, Len: 2, Kind: wire.Own}, {Off: 7, Len: 3, Kind: wire.Mapped, Partition: 0}, {Off: 10, Len: 2}, {Off: 12, Len: 1, Kind: wire.Mapped, Partition: 0},
	}, segments)
}

func TestTheIndexReadsOnlyItsOwn(t *testing.T) {
	r := newRig(t)
	a, none := r.connect(0), r.connect(wire.NoPartition)
	f := none.open("f", unix.O_RDWR|unix.O_CREAT)
	none.ok(wire.OpWrite, &wire.Write{Ino: f.Ino, Limit: math.MaxInt64, Data: []byte("own")}, &wire.Written{})
	a.open("f", unix.O_RDWR)
	read := &wire.Read{Ino: f.Ino, Off: 1, Len: 100}
	var d wire.Data
	a.ok(wire.OpRead, read, &d)
	assert.Equal(t, "wn", string(d.Bytes))
	a.put(f, 2, "A")
	assert.Equal(t, syscall.EAGAIN, a.conn.Call(wire.OpRead, read, &d))
	read.Len = wire.MaxData + 1
	assert.Equal(t, syscall.EINVAL, a.conn.Call(wire.OpRead, read, &d))
	read.Off, read.Len = -1, 1
	assert.Error(t, a.conn.Call(wire.OpRead, read, &d))
}

func TestCloseWithAPublication(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.write(f, 0, "bytes")
	a.ok(wire.OpClose, &wire.Close{Writer: true, Publication: publication(f, wire.Range{Len: 5})}, nil)
	assert.Equal(t, "bytes", b.read("f"))
	assert.True(t, b.stat("f").Closed)
	assert.EqualValues(t, 1, b.stat("f").Mtime.Unix())

	a.open("f", unix.O_RDWR)
	bad := publication(f, wire.Range{Len: 5})
	bad.Birth++
	assert.Equal(t, syscall.ESTALE, a.conn.Call(wire.OpClose, &wire.Close{Writer: true, Publication: bad}, nil))
	assert.Equal(t, syscall.EBADF, a.conn.Call(wire.OpMap, &wire.Map{Ino: f.Ino}, &wire.File{}), "it is closed nevertheless")
}

func TestLongMaps(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	var p wire.Publication
	for i := range int64(wire.MaxSegments) {
		p.Ranges = append(p.Ranges, wire.Range{Off: 2*i + 1, Len: 1})
	}
	p = publication(f, p.Ranges...)
	a.ok(wire.OpPublish, &p, &wire.AttrAnswer{})
	var o wire.File
	a.ok(wire.OpOpen, &wire.Open{Name: at("f")}, &o)
	assert.True(t, o.More)
	assert.Len(t, o.Segments, wire.FirstMap)
	for o.More {
		last := o.Segments[len(o.Segments)-1]
		off := last.Off + last.Len
		a.ok(wire.OpMap, &wire.Map{Ino: f.Ino, Off: off, Len: 1 << 60}, &o)
		require.Equal(t, off, o.Segments[0].Off)
	}
	last := o.Segments[len(o.Segments)-1]
	assert.Equal(t, o.Attr.Size, last.Off+last.Len)
}

func TestTruncation(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.create("f", "0123456789")
	var attr wire.AttrAnswer
	b.ok(wire.OpTruncate, &wire.Truncate{Name: at("f"), Size: 4}, &attr)
	assert.Greater(t, attr.Attr.Cut, f.Cut)
	assert.Equal(t, "0123", a.read("f"))
	b.ok(wire.OpTruncate, &wire.Truncate{Name: at("f"), Size: 6}, &attr)
	assert.Equal(t, "0123\x00\x00", a.read("f"))
	g := a.open("f", unix.O_RDWR|unix.O_TRUNC)
	assert.EqualValues(t, 0, g.Size)
	assert.Greater(t, g.Cut, attr.Attr.Cut)
	a.put(g, 0, "new")
	assert.Equal(t, "new", b.read("f"))
	a.ok(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: f.Ino}, Size: 1}, &attr)
	assert.Equal(t, "n", b.read("f"))
	assert.Equal(t, syscall.EINVAL, a.conn.Call(wire.OpTruncate, &wire.Truncate{Name: at("f"), Size: -1}, &attr))
	assert.Equal(t, syscall.EISDIR, a.conn.Call(wire.OpTruncate, &wire.Truncate{Name: at("/")}, &attr))
}

// TestPublicationOfAnEarlierCut checks that data written before another session's truncation, but published after it,
// is in the file.
func TestPublicationOfAnEarlierCut(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.write(f, 2, "old")
	b.open("f", unix.O_RDWR|unix.O_TRUNC)
	g := b.open("f", unix.O_RDWR)
	b.put(g, 0, "b")
	a.put(f, 2, "old")
	assert.Equal(t, "b\x00old", b.content(f.Ino))
}

func TestAllocate(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.put(f, 0, "0123456789")
	for _, c := range []struct {
		mode     wire.Mode
		off, len int64
		errno    syscall.Errno
		want     string
	}{
		{wire.Extend, 0, 5, 0, "0123456789"},
		{wire.Extend, 8, 4, 0, "0123456789\x00\x00"},
		{wire.Punch, 2, 2, 0, "01\x00\x00456789\x00\x00"},
		{wire.Punch, 100, 2, 0, "01\x00\x00456789\x00\x00"},
		{wire.ZeroKeepSize, 11, 10, 0, "01\x00\x00456789\x00\x00"},
		{wire.Zero, 9, 5, 0, "01\x00\x0045678" + strings.Repeat("\x00", 5)},
		{wire.Punch, -1, 5, syscall.EINVAL, ""},
		{wire.Punch, 0, 0, syscall.EINVAL, ""},
		{9, 0, 1, syscall.EINVAL, ""},
		{wire.Extend, math.MaxInt64, 1, syscall.EFBIG, ""},
	} {
		err := a.conn.Call(wire.OpAllocate, &wire.Allocate{Ino: f.Ino, Mode: c.mode, Off: c.off, Len: c.len}, &wire.AttrAnswer{})
		if c.errno != 0 {
			assert.ErrorIs(t, err, c.errno, "%+v", c)
			continue
		}
		require.NoError(t, err, "%+v", c)
		assert.Equal(t, c.want, a.content(f.Ino), "%+v", c)
	}
}

func (u *user) space(f wire.Attr, n int64) (off int64) {
	u.r.t.Helper()
	var s wire.Space
	u.ok(wire.OpAppend, &wire.Append{Ino: f.Ino, Len: n, Limit: math.MaxInt64}, &s)
	require.Equal(u.r.t, n, s.Len)
	return s.Off
}

// TestAppends checks that no append is lost, in whatever order they are published.
func TestAppends(t *testing.T) {
	r := newRig(t)
	a, b, none := r.connect(0), r.connect(1), r.connect(wire.NoPartition)
	f := a.open("log", unix.O_WRONLY|unix.O_CREAT)
	b.open("log", unix.O_WRONLY)
	none.open("log", unix.O_WRONLY)
	a0, b0, a1 := a.space(f, 2), b.space(f, 3), a.space(f, 2)
	var w wire.Written
	none.ok(wire.OpWrite, &wire.Write{Ino: f.Ino, Off: wire.AtEnd, Limit: math.MaxInt64, Data: []byte("n!")}, &w)
	assert.EqualValues(t, 7, w.Off)
	b.put(f, b0, "bbb")
	a.put(f, a1, "a1")
	a.put(f, a0, "a0")
	assert.Equal(t, "a0bbba1n!", none.content(f.Ino))
	var s wire.Space
	a.ok(wire.OpAppend, &wire.Append{Ino: f.Ino, Len: 10, Limit: 12}, &s)
	assert.Equal(t, wire.Space{Off: 9, Len: 3}, s)
	a.ok(wire.OpAppend, &wire.Append{Ino: f.Ino, Len: 10, Limit: 12}, &s)
	assert.Equal(t, wire.Space{Off: 12}, s)
	assert.Equal(t, syscall.EINVAL, a.conn.Call(wire.OpAppend, &wire.Append{Ino: f.Ino, Len: -1}, &s))
}

// TestAppendInParts checks that an append through the index in several requests reserves space first, and is
// contiguous whatever others append meanwhile.
func TestAppendInParts(t *testing.T) {
	r := newRig(t)
	a, none := r.connect(0), r.connect(wire.NoPartition)
	f := none.open("log", unix.O_WRONLY|unix.O_CREAT)
	a.open("log", unix.O_WRONLY)
	add := func(text string) wire.Written {
		var w wire.Written
		none.ok(wire.OpWrite, &wire.Write{Ino: f.Ino, Off: wire.AtEnd, Limit: math.MaxInt64, Data: []byte(text)}, &w)
		return wire.Written{Off: w.Off, N: w.N}
	}
	none.space(f, 5)
	assert.Equal(t, wire.Written{Off: 0, N: 3}, add("one"))
	a.put(f, a.space(f, 2), "A ")
	assert.Equal(t, wire.Written{Off: 3, N: 2}, add("two"), "no more than fits")
	assert.Equal(t, wire.Written{Off: 7, N: 5}, add("three"), "at the end")
	assert.Equal(t, "onetwA three", none.content(f.Ino))
}

// TestSpaceOfAppendersThatAreGone checks that unwritten reserved space is reserved again if it is at the end, and
// otherwise reads as zeros.
func TestSpaceOfAppendersThatAreGone(t *testing.T) {
	for name, c := range map[string]struct {
		go1  func(a *user, f wire.Attr)
		last bool // the client that ends is the last one to have appended
		want string
	}{
		"killed at the end":        {func(a *user, f wire.Attr) { a.kill() }, true, "bbCC"},
		"killed in the middle":     {func(a *user, f wire.Attr) { a.kill() }, false, "\x00\x00\x00bbCC"},
		"closed at the end":        {func(a *user, f wire.Attr) { a.close(f, true) }, true, "bbCC"},
		"closed in the middle":     {func(a *user, f wire.Attr) { a.close(f, true) }, false, "\x00\x00\x00bbCC"},
		"said goodbye at the end":  {func(a *user, f wire.Attr) { a.goodbye() }, true, "bbCC"},
		"still there at the end":   {func(a *user, f wire.Attr) {}, true, "bb\x00\x00\x00CC"},
		"published half at an end": {func(a *user, f wire.Attr) { a.put(f, 2, "A"); a.kill() }, true, "bbACC"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b, c3 := r.connect(0), r.connect(1), r.connect(2)
			f := a.open("log", unix.O_WRONLY|unix.O_CREAT)
			b.open("log", unix.O_WRONLY)
			c3.open("log", unix.O_WRONLY)
			if !c.last {
				a.space(f, 3)
			}
			b.put(f, b.space(f, 2), "bb")
			if c.last {
				a.space(f, 3)
			}
			c.go1(a, f)
			c3.put(f, c3.space(f, 2), "CC")
			assert.Equal(t, c.want, b.content(f.Ino))
		})
	}
}

// TestAppendsBesideACut checks that an append after a truncation does not overwrite data that another client
// publishes later.
func TestAppendsBesideACut(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("log", unix.O_WRONLY|unix.O_CREAT)
	b.open("log", unix.O_WRONLY)
	a0 := a.space(f, 3)
	b.space(f, 2)
	var attr wire.AttrAnswer
	b.ok(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: f.Ino}}, &attr)
	b0 := b.space(f, 2)
	assert.EqualValues(t, 3, b0, "behind the space of a, and in the place of its own that it has cut")
	b.put(attr.Attr, b0, "bb")
	a.put(f, a0, "aaa")
	assert.Equal(t, "aaabb", a.content(f.Ino))
	a.ok(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: f.Ino}}, &attr)
	assert.EqualValues(t, 0, b.space(f, 1), "all was published")
}

func TestDurable(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.write(f, 0, "bytes")
	p := publication(f, wire.Range{Len: 5})
	p.Durable = true
	a.ok(wire.OpPublish, &p, &wire.AttrAnswer{})
	r.x.Close() // without Unmount, as if killed
	r.start()
	assert.Equal(t, "bytes", r.connect(1).read("f"))
}
