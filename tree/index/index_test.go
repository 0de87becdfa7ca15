package index

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

func TestHello(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		change func(*wire.Hello)
		errno  syscall.Errno
	}{
		"good":             {func(*wire.Hello) {}, 0},
		"another run":      {func(h *wire.Hello) { h.Run = uuid.New() }, syscall.ESTALE},
		"another version":  {func(h *wire.Hello) { h.Format = 3 }, syscall.EPROTO},
		"with a partition": {func(h *wire.Hello) { h.Partition = 3 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			u := r.dial(wire.NoPartition)
			h := u.hello()
			c.change(h)
			var w wire.Welcome
			err := u.conn.Call(wire.OpHello, h, &w)
			if c.errno == 0 {
				require.NoError(t, err)
				assert.Equal(t, r.opts.Timeout, w.Timeout)
			} else {
				require.ErrorIs(t, err, c.errno)
				assert.ErrorIs(t, u.conn.Call(wire.OpSync, nil, nil), wire.ErrGone, "whoever was refused")
			}
			u.kill()
		})
	}
	u := r.dial(wire.NoPartition)
	assert.ErrorIs(t, u.conn.Call(wire.OpSync, nil, nil), wire.ErrGone, "before Hello")
	u = r.connect(wire.NoPartition)
	assert.ErrorIs(t, u.conn.Call(wire.OpHello, u.hello(), &wire.Welcome{}), wire.ErrGone, "twice")
}

func TestUnknownOperation(t *testing.T) {
	u := newRig(t).connect(wire.NoPartition)
	for _, op := range []wire.Op{0, 34, 65535} {
		assert.ErrorIs(t, u.conn.Call(op, nil, nil), syscall.EOPNOTSUPP)
	}
	u.ok(wire.OpSync, nil, nil)
}

// TestNames checks that clients see changes of names by others in their next call.
func TestNames(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(wire.NoPartition)
	a.ok(wire.OpMkdir, &wire.Mkdir{Name: at("d"), Mode: 0o755}, nil)
	assert.EqualValues(t, 0o040755, b.stat("d").Mode)
	assert.Equal(t, syscall.EEXIST, b.conn.Call(wire.OpMkdir, &wire.Mkdir{Name: at("d")}, nil))
	f := a.create("d/f", "bytes")
	a.ok(wire.OpLink, &wire.Link{From: at("d/f"), To: at("hard")}, nil)
	assert.EqualValues(t, 2, b.stat("hard").Nlink)
	b.ok(wire.OpSymlink, &wire.Symlink{Target: "d/f", Name: at("soft")}, nil)
	var text wire.Text
	a.ok(wire.OpReadlink, &wire.Readlink{Name: at("soft")}, &text)
	assert.Equal(t, "d/f", text.Text)
	a.ok(wire.OpPath, &wire.Path{Name: at("soft")}, &text)
	assert.Equal(t, "/d/f", text.Text)
	b.ok(wire.OpRename, &wire.Rename{From: at("d"), To: at("e")}, nil)
	a.ok(wire.OpPath, &wire.Path{Name: wire.Name{Dir: a.stat("e").Ino}}, &text)
	assert.Equal(t, "/e", text.Text)
	assert.Equal(t, f.Ino, a.stat("e/f").Ino)
	assert.Equal(t, "bytes", b.read("e/f"))
	a.ok(wire.OpUnlink, &wire.Unlink{Name: at("hard")}, nil)
	assert.Equal(t, syscall.ENOTEMPTY, a.conn.Call(wire.OpUnlink, &wire.Unlink{Name: at("e"), Directory: true}, nil))
	assert.Equal(t, syscall.ENOENT, b.conn.Call(wire.OpStat, &wire.Stat{Name: at("hard")}, &wire.AttrAnswer{}))
	mode := uint32(0o600)
	var attr wire.AttrAnswer
	a.ok(wire.OpSetAttr, &wire.SetAttr{Name: at("e/f"), What: microfs.SetAttr{Mode: &mode}}, &attr)
	assert.Equal(t, attr.Attr, b.stat("e/f"))
	a.ok(wire.OpSetAttr, &wire.SetAttr{Name: wire.Name{Dir: f.Ino}, What: microfs.SetAttr{Mode: ptr(uint32(0o640))}}, &attr)
	b.ok(wire.OpStat, &wire.Stat{Name: wire.Name{Dir: f.Ino}}, &attr)
	assert.EqualValues(t, 0o100640, attr.Attr.Mode)
	assert.Equal(t, &microfs.EscapeError{Path: "/etc"}, a.conn.Call(wire.OpStat, &wire.Stat{Name: at("../etc")}, &attr))
	var fs wire.StatFS
	a.ok(wire.OpStatFS, nil, &fs)
	assert.True(t, fs.Ranges)
	assert.EqualValues(t, 4, fs.Files)
}

func ptr[T any](v T) *T { return &v }

func TestDirectoriesAreListed(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	a.ok(wire.OpMkdir, &wire.Mkdir{Name: at("d"), Mode: 0o755}, nil)
	for _, name := range []string{"x", "y", "z"} {
		a.create("d/"+name, "")
	}
	d := b.open("d", unix.O_RDONLY|unix.O_DIRECTORY)
	var all []string
	for after := ""; ; after = all[len(all)-1] {
		var e wire.Entries
		b.ok(wire.OpReadDir, &wire.ReadDir{Ino: d.Ino, After: after, N: 2}, &e)
		if len(e.List) == 0 {
			break
		}
		for _, n := range e.List {
			all = append(all, n.Name)
		}
	}
	assert.Equal(t, []string{"x", "y", "z"}, all)
	assert.Equal(t, syscall.EBADF, a.conn.Call(wire.OpReadDir, &wire.ReadDir{Ino: d.Ino}, &wire.Entries{}), "who has not opened it")
}

func TestCredentialsAreTheClients(t *testing.T) {
	r := newRig(t)
	root, user := r.connect(0), r.connect(1)
	root.ok(wire.OpMkdir, &wire.Mkdir{Name: at("private"), Mode: 0o700}, nil)
	root.ok(wire.OpMkdir, &wire.Mkdir{Name: at("public"), Mode: 0o777}, nil)
	root.ok(wire.OpSetAttr, &wire.SetAttr{Name: wire.Name{Dir: microfs.RootIno}, What: microfs.SetAttr{Mode: ptr(uint32(0o755))}}, &wire.AttrAnswer{})
	user.ok(wire.OpSetCred, &wire.Cred{Cred: microfs.Cred{UID: 1000, GID: 100}}, nil)
	for range 2 {
		root.ok(wire.OpSync, nil, nil)
		assert.Equal(t, syscall.EACCES, user.conn.Call(wire.OpOpen, &wire.Open{Name: at("private/f"), Flags: unix.O_CREAT}, &wire.File{}))
		assert.EqualValues(t, 0, root.stat("private").UID)
	}
	assert.EqualValues(t, 1000, user.create("public/f", "").UID)
	assert.EqualValues(t, 0, root.create("public/g", "").UID)
	assert.Equal(t, syscall.EACCES, root.conn.Call(wire.OpAccess,
		&wire.Access{Name: at("private"), Mode: 4, Who: microfs.Cred{UID: 5}}, nil))
}

func TestExclusiveAmongAll(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	excl := &wire.Open{Name: at("f"), Flags: unix.O_CREAT | unix.O_EXCL | unix.O_RDWR, Mode: 0o600}
	a.ok(wire.OpOpen, excl, &wire.File{})
	assert.Equal(t, syscall.EEXIST, b.conn.Call(wire.OpOpen, excl, &wire.File{}))
}

// TestFilesWithoutAName checks that an unlinked file exists while a client has it open.
func TestFilesWithoutAName(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.create("f", "bytes")
	b.open("f", unix.O_RDONLY)
	b.open("f", unix.O_RDONLY)
	a.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
	assert.Equal(t, "bytes", b.content(f.Ino))
	var again wire.File
	a.ok(wire.OpOpenIno, &wire.OpenIno{Ino: f.Ino, Flags: unix.O_RDWR}, &again)
	assert.EqualValues(t, 0, again.Attr.Nlink)
	b.close(f, false)
	assert.Empty(t, a.collect())
	b.kill()
	a.put(f, 5, " more")
	assert.Equal(t, "bytes more", a.content(f.Ino))
	assert.Empty(t, a.collect())
	a.close(f, true)
	assert.Equal(t, []wire.Shard{{Ino: f.Ino, Birth: f.Birth, Cut: f.Cut}}, a.collect())
	assert.Equal(t, syscall.ESTALE, a.conn.Call(wire.OpOpenIno, &wire.OpenIno{Ino: f.Ino}, &again))
}

// TestKeep checks that an unlinked file of Keep stays until another client has opened it, and is removed by the last
// close then.
func TestKeep(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	f := a.create("f", "bytes")
	assert.Equal(t, syscall.EBADF, a.conn.Call(wire.OpKeep, &wire.Keep{Ino: f.Ino}, nil), "it is not open")
	a.open("f", unix.O_RDWR)
	a.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
	a.ok(wire.OpKeep, &wire.Keep{Ino: f.Ino}, nil)
	a.ok(wire.OpKeep, &wire.Keep{Ino: f.Ino}, nil)
	a.close(f, true)
	b := r.connect(1)
	var again wire.File
	b.ok(wire.OpOpenIno, &wire.OpenIno{Ino: f.Ino, Flags: unix.O_RDWR}, &again)
	assert.Equal(t, "bytes", b.content(f.Ino))
	b.close(f, true)
	assert.Equal(t, syscall.ESTALE, b.conn.Call(wire.OpOpenIno, &wire.OpenIno{Ino: f.Ino}, &again))

	g := a.create("g", "left")
	a.open("g", unix.O_RDWR)
	a.ok(wire.OpUnlink, &wire.Unlink{Name: at("g")}, nil)
	a.ok(wire.OpKeep, &wire.Keep{Ino: g.Ino}, nil)
	a.close(g, true) // no client opens it: it is removed with the index
}

func TestWhoMayWhat(t *testing.T) {
	r := newRig(t)
	a, b, none := r.connect(0), r.connect(1), r.connect(wire.NoPartition)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	b.open("f", unix.O_RDONLY)
	none.open("f", unix.O_WRONLY)
	good := publication(f, wire.Range{Off: 0, Len: 10})
	change := func(f func(*wire.Publication)) *wire.Publication {
		p := good
		p.Ranges = []wire.Range{{Off: 0, Len: 10}}
		f(&p)
		return &p
	}
	for _, c := range []struct {
		name  string
		u     *user
		p     *wire.Publication
		errno syscall.Errno
	}{
		{"reader", b, change(func(*wire.Publication) {}), syscall.EBADF},
		{"no rank", none, change(func(*wire.Publication) {}), syscall.EINVAL},
		{"another file", a, change(func(p *wire.Publication) { p.Ino++ }), syscall.EBADF},
		{"another birth", a, change(func(p *wire.Publication) { p.Birth++ }), syscall.ESTALE},
		{"later cut", a, change(func(p *wire.Publication) { p.Cut++ }), syscall.EINVAL},
		{"behind the size", a, change(func(p *wire.Publication) { p.Size-- }), syscall.EINVAL},
		{"negative offset", a, change(func(p *wire.Publication) { p.Ranges[0].Off = -1 }), syscall.EINVAL},
		{"no length", a, change(func(p *wire.Publication) { p.Ranges[0].Len = 0 }), syscall.EINVAL},
		{"overflow", a, change(func(p *wire.Publication) { p.Ranges[0].Off = 1<<63 - 5; p.Size = 1<<63 - 1 }), syscall.EINVAL},
		{"good", a, change(func(*wire.Publication) {}), 0},
	} {
		err := c.u.conn.Call(wire.OpPublish, c.p, &wire.AttrAnswer{})
		if c.errno == 0 {
			assert.NoError(t, err, c.name)
		} else {
			assert.ErrorIs(t, err, c.errno, c.name)
		}
	}
	_, segments := a.segments(f.Ino)
	assert.Equal(t, []wire.Segment{{Len: 10, Kind: wire.Mapped, Partition: 0, Cut: f.Cut}}, segments)
	assert.Equal(t, syscall.EBADF, b.conn.Call(wire.OpClose, &wire.Close{Writer: true, Publication: wire.Publication{Ino: f.Ino}}, nil))
	assert.Equal(t, syscall.EBADF, a.conn.Call(wire.OpClose, &wire.Close{Publication: wire.Publication{Ino: f.Ino}}, nil))
	assert.Equal(t, syscall.EBADF, b.conn.Call(wire.OpAppend, &wire.Append{Ino: f.Ino, Len: 1, Limit: 100}, &wire.Space{}))
	assert.Equal(t, syscall.EINVAL, b.conn.Call(wire.OpTruncate, &wire.Truncate{Name: wire.Name{Dir: f.Ino}}, &wire.AttrAnswer{}))
}

func TestGrow(t *testing.T) {
	r := newRig(t)
	u := r.connect(0)
	assert.ErrorIs(t, u.conn.Call(wire.OpGrow, &wire.Grow{Partitions: 3}, &wire.Grow{}), syscall.EOPNOTSUPP)
	u.goodbye()
	have, asked := uint32(2), 0
	r.x.opts.Grow = func(n uint32) (uint32, error) {
		asked++
		have = max(have, n)
		return have, nil
	}
	u = r.connect(0)
	var g wire.Grow
	u.ok(wire.OpGrow, &wire.Grow{Partitions: 5}, &g)
	assert.EqualValues(t, 5, g.Partitions)
	assert.ErrorIs(t, u.conn.Call(wire.OpGrow, &wire.Grow{}, &g), syscall.EINVAL)
	var w wire.Welcome
	v := r.dial(1)
	require.NoError(t, v.conn.Call(wire.OpHello, v.hello(), &w))
	assert.EqualValues(t, 5, w.Partitions)
	assert.Equal(t, 2, asked, "the store is asked once, and once to grow")
	last, behind := r.dial(4), r.dial(5)
	require.NoError(t, last.conn.Call(wire.OpHello, last.hello(), &w))
	assert.ErrorIs(t, behind.conn.Call(wire.OpHello, behind.hello(), &w), syscall.EINVAL, "a partition that is not there")
}

func TestFilesAreLimited(t *testing.T) {
	u := newRig(t).connect(wire.NoPartition)
	f := u.open("f", unix.O_RDWR|unix.O_CREAT)
	c := u.r.theClient()
	for i := range maxFiles - 1 {
		c.files[microfs.Ino(1<<40+i)] = nil
	}
	u.open("f", unix.O_RDONLY)
	err := u.conn.Call(wire.OpOpen, &wire.Open{Name: at("g"), Flags: unix.O_CREAT}, &wire.File{})
	assert.Equal(t, syscall.EMFILE, err)
	for i := range maxFiles - 1 {
		delete(c.files, microfs.Ino(1<<40+i))
	}
	u.close(f, true)
}

// theClient returns the only client.
func (r *rig) theClient() *client {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	for c := range r.x.clients {
		return c
	}
	return nil
}

// TestEndedClient checks that a call of a client that has ended meanwhile ends the connection without an error for the log.
func TestEndedClient(t *testing.T) {
	r := newRig(t)
	u := r.connect(0)
	c := r.theClient()
	r.x.mu.Lock()
	c.forget()
	r.x.mu.Unlock()
	assert.ErrorIs(t, u.conn.Call(wire.OpSync, nil, nil), wire.ErrGone)
	assert.NoError(t, <-u.served)
	r.stop()
}

func TestClose(t *testing.T) {
	r := newRig(t)
	u := r.connect(0)
	f := u.open("f", unix.O_RDWR|unix.O_CREAT)
	u.put(f, 0, "bytes")
	r.stop()
	assert.ErrorIs(t, u.conn.Call(wire.OpSync, nil, nil), wire.ErrGone)
	near := r.dial(0)
	assert.ErrorIs(t, <-near.served, errClosed)
	r.start()
	u = r.connect(1)
	assert.Equal(t, "bytes", u.read("f"))
	assert.False(t, u.stat("f").Closed, "its writer has not closed it")
}

func TestErrorsHaveTheirText(t *testing.T) {
	u := newRig(t).connect(0)
	err := u.conn.Call(wire.OpMkdir, &wire.Mkdir{Name: at(strings.Repeat("x", 300))}, nil)
	assert.Equal(t, syscall.ENAMETOOLONG, err)
	require.NoError(t, u.r.fs.Unmount())
	err = u.conn.Call(wire.OpMkdir, &wire.Mkdir{Name: at("d")}, nil)
	require.ErrorIs(t, err, syscall.EIO)
	assert.Contains(t, err.Error(), "out of service")
	u.r.fs = mount(t, u.r.dev)
}

// TestLeave checks that a file which was read is closed without an answer, and that a file which is not open is only reported.
func TestLeave(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	a.create("f", "abc")
	f := b.open("f", unix.O_RDONLY)
	a.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
	require.NoError(t, b.conn.Tell(wire.OpLeave, &wire.Leave{Ino: f.Ino}))
	assert.Equal(t, syscall.EBADF, b.conn.Call(wire.OpMap, &wire.Map{Ino: f.Ino, Len: 1}, new(wire.File)))
	assert.NotEmpty(t, a.collect(), "its data is released")
	g := b.open("g", unix.O_WRONLY|unix.O_CREAT)
	for range 2 {
		require.NoError(t, b.conn.Tell(wire.OpLeave, &wire.Leave{Ino: g.Ino}))
	}
	b.close(g, true)
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.Len(t, r.lines, 2)
}
