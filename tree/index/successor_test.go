package index

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/tree/wire"
)

// reconnect reconnects a client whose index was killed.
func (r *rig) reconnect(place uint32) *user {
	u := r.dial(place)
	h := u.hello()
	h.Before = uuid.New()
	u.ok(wire.OpHello, h, &wire.Welcome{})
	u.partition = r.place(place)
	return u
}

func reopen(a wire.Attr) *wire.Reopen {
	return &wire.Reopen{Ino: a.Ino, Birth: a.Birth, Opens: 1, Writers: 1}
}

// TestSuccessorsWait checks that calls which depend on unpublished data of others wait until its adoption, and other
// calls do not.
func TestSuccessorsWait(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	b.open("f", unix.O_RDWR)
	a.write(f, 0, "aaaa")
	r.x.Close()
	r.start()
	letGo := adopting(r)
	r.x.Adopt(0)
	b = r.reconnect(1)
	b.ok(wire.OpReopen, reopen(f), nil)
	b.put(f, 8, "b")
	answers := make(chan wire.Space)
	go func() {
		var s wire.Space
		assert.NoError(t, b.conn.Call(wire.OpAppend, &wire.Append{Ino: f.Ino, Len: 1, Limit: 100}, &s))
		answers <- s
	}()
	waits := func() {
		select {
		case <-answers:
			t.Fatal("it has not waited")
		case <-time.After(20 * time.Millisecond): // a call that returns later passes, too
		}
	}
	waits()
	letGo(nil)
	assert.Equal(t, wire.Space{Off: 9, Len: 1}, <-answers)
	assert.Equal(t, "aaaa\x00\x00\x00\x00b", b.content(f.Ino))

	r.x.Adopt(0)
	go func() {
		b.close(f, true)
		answers <- wire.Space{}
	}()
	waits()
	letGo(nil)
	<-answers
	assert.False(t, b.stat("f").Closed, "the other one has not come back")
	a = r.reconnect(0)
	a.ok(wire.OpReopen, reopen(f), nil)
	a.close(f, true)
	assert.True(t, a.stat("f").Closed)
}

// TestNobodyKeepsAFileOpen checks that a file which is closed before the adoptions have ended is closed in any case,
// and incomplete.
func TestNobodyKeepsAFileOpen(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, b *user, f wire.Attr){
		"close": func(t *testing.T, b *user, f wire.Attr) {
			p := publication(f, wire.Range{Off: 4, Len: 4})
			b.write(f, 4, "bbbb")
			assert.ErrorIs(t, b.conn.Call(wire.OpClose, &wire.Close{Writer: true, Publication: p}, nil), syscall.EIO)
			b.r.x.mu.Lock()
			assert.Empty(t, b.r.x.files)
			b.r.x.mu.Unlock()
		},
		"goodbye": func(t *testing.T, b *user, f wire.Attr) {
			b.put(f, 4, "bbbb")
			assert.ErrorIs(t, b.conn.Call(wire.OpGoodbye, nil, nil), syscall.EIO)
			b.kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.connect(0), r.connect(1)
			f := a.open("f", unix.O_RDWR|unix.O_CREAT)
			b.open("f", unix.O_RDWR)
			a.write(f, 0, "aaaa")
			r.x.Close()
			r.start()
			letGo := adopting(r)
			r.x.opts.Timeout = 20 * time.Millisecond
			r.x.Adopt(0)
			b = r.reconnect(1)
			b.ok(wire.OpReopen, reopen(f), nil)
			leave(t, b, f)
			letGo(nil)
			r.x.opts.Timeout = 0
			c := r.connect(2)
			assert.False(t, c.stat("f").Closed, "one has died")
			assert.Equal(t, "aaaabbbb", c.read("f"))
		})
	}
}

// TestBlindSuccessor checks that, if the adoptions fail, files that were open are neither complete nor appended to.
// Other files are not affected.
func TestBlindSuccessor(t *testing.T) {
	r := newRig(t)
	f := r.connect(1).open("f", unix.O_RDWR|unix.O_CREAT)
	r.x.Close()
	r.start()
	letGo := adopting(r)
	r.x.Adopt(0)
	letGo(errors.New("the target does not answer"))
	b := r.reconnect(1)
	b.ok(wire.OpReopen, reopen(f), nil)
	b.put(f, 0, "bbbb")
	for op, request := range map[wire.Op]wire.Body{
		wire.OpAppend: &wire.Append{Ino: f.Ino, Len: 1, Limit: 100}, wire.OpWrite: &wire.Write{Ino: f.Ino, Off: wire.AtEnd, Limit: 100, Data: []byte("x")},
	} {
		err := b.conn.Call(op, request, nil)
		assert.ErrorIs(t, err, syscall.EIO)
		assert.ErrorContains(t, err, "the end of the file is unknown")
	}
	b.close(f, true)
	assert.False(t, b.stat("f").Closed)
	b.open("f", unix.O_RDWR)
	assert.EqualValues(t, 4, b.space(f, 1))
	b.close(f, true)
	assert.True(t, b.stat("f").Closed)
}

func TestReopen(t *testing.T) {
	r := newRig(t)
	a := r.reconnect(0)
	f := a.create("f", "text")
	for name, c := range map[string]struct {
		change func(*wire.Reopen)
		want   error
	}{
		"another birth":          {func(r *wire.Reopen) { r.Birth++ }, syscall.ESTALE},
		"no file":                {func(r *wire.Reopen) { r.Ino = 1000 }, syscall.ESTALE},
		"not open":               {func(r *wire.Reopen) { r.Opens, r.Writers = 0, 0 }, syscall.EINVAL},
		"more writers than open": {func(r *wire.Reopen) { r.Writers = 2 }, syscall.EINVAL},
		"too often":              {func(r *wire.Reopen) { r.Opens = 1 << 31 }, syscall.EINVAL},
		"so it is":               {func(*wire.Reopen) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			request := reopen(f)
			c.change(request)
			err := a.conn.Call(wire.OpReopen, request, nil)
			if c.want == nil {
				require.NoError(t, err)
				assert.ErrorIs(t, a.conn.Call(wire.OpReopen, request, nil), syscall.EINVAL, "twice")
				a.close(f, true)
				return
			}
			assert.ErrorIs(t, err, c.want)
		})
	}
	assert.ErrorIs(t, a.conn.Call(wire.OpClose, &wire.Close{Publication: wire.Publication{Ino: f.Ino}}, nil), syscall.EBADF)
}

// TestWhoMayComeBack checks that a client which reconnects has lost its partition if another client has it, or if
// this index had closed its connection.
func TestWhoMayComeBack(t *testing.T) {
	r := newRig(t)
	var welcome wire.Welcome
	first := r.dial(0)
	first.ok(wire.OpHello, first.hello(), &welcome)
	for _, before := range []uuid.UUID{uuid.New(), welcome.Index} {
		u := r.dial(0)
		h := u.hello()
		h.Before = before
		err := u.conn.Call(wire.OpHello, h, &wire.Welcome{})
		assert.ErrorIs(t, err, syscall.ESTALE)
		assert.ErrorContains(t, err, "process 7 is no longer that of partition 0")
		u.kill()
	}
	first.ok(wire.OpSync, nil, nil)
	first.goodbye()
	u := r.dial(0)
	h := u.hello()
	h.Before = welcome.Index
	assert.ErrorIs(t, u.conn.Call(wire.OpHello, h, &wire.Welcome{}), syscall.ESTALE)
	u.kill()
	r.reconnect(0)
}
