package tree

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

// succeed kills the index and starts its successor, which adopts data from all partitions.
func (r *rig) succeed() {
	r.stop()
	r.start()
	for place := range r.disks {
		r.index.Adopt(uint32(place))
	}
}

// redial connects processes to the successor.
func (r *rig) redial(list ...*rank) {
	for _, p := range list {
		p.client.Redial = func(time.Time) (io.ReadWriteCloser, error) {
			conn := r.dial()
			p.stream, p.served = conn, conn.served
			return conn, nil
		}
	}
}

// TestSuccessor checks that open files continue after the index was killed, and that no written data is lost.
func TestSuccessor(t *testing.T) {
	r := newRig(t, 2)
	a, b, script := r.join(0), r.join(1), r.join(wire.NoPartition)
	r.redial(a, b, script)
	fa, fb := a.open("/f", unix.O_CREAT|unix.O_RDWR), b.open("/f", unix.O_RDWR)
	log, logged := a.open("/log", unix.O_CREAT|unix.O_WRONLY), b.open("/log", unix.O_WRONLY)
	own := script.open("/own", unix.O_CREAT|unix.O_RDWR)
	put(t, own, 0, "from")
	put(t, fa, 0, "aaaa")
	put(t, fb, 2, "bbbb")
	add := func(f vfs.File, text string) {
		_, _, err := f.AppendBelow([][]byte{[]byte(text)}, posixshim.NoLimit)
		require.NoError(t, err)
	}
	add(log, "one ")
	for range 2 {
		r.succeed()
		add(logged, "two ") // behind unpublished data of the other process
		require.NoError(t, fb.Sync())
		put(t, own, 4, "here")
		require.NoError(t, a.Mkdir(root, "/d", 0o755))
		require.NoError(t, b.Rmdir(root, "/d"))
	}
	require.NoError(t, fa.Sync())
	assert.Equal(t, "aaaabb", get(t, fa), "the later publication wins")
	for _, f := range []vfs.File{fa, fb, log, logged, own} {
		require.NoError(t, f.Close())
	}
	for _, p := range []*rank{a, b, script} {
		assert.Equal(t, "aaaabb", p.read("/f"))
		assert.Equal(t, "one two two ", p.read("/log"))
		assert.Equal(t, "fromhere", p.read("/own"))
	}
	for _, path := range []string{"/f", "/log", "/own"} {
		at, err := b.Stat(root, path, true)
		require.NoError(t, err)
		assert.True(t, at.Closed, "%s: all have closed it", path)
	}
	a.kill()
	assert.Equal(t, "aaaabb", b.read("/f"))
}

// TestAppendThroughAKill kills an index that has reserved space for a process which has not written there yet, or
// just has. Another process appends through the successor. The file has the data of both, once. A process without a
// rank has written when it gets the answer of the index.
func TestAppendThroughAKill(t *testing.T) {
	const oursLast, theirsLast = "first theirs ours ", "first ours theirs "
	heard := func(c *countedConn, kill func()) { c.heard = kill }
	looked := func(c *countedConn, kill func()) { c.looked = kill }
	asked := func(c *countedConn, kill func()) { // after the lease the client checks the index again
		c.heard = func() { time.Sleep(Lease); c.asks = kill }
	}
	for _, tt := range []struct {
		name, want string
		place      uint32
		flags      int
		behind     bool
		when       func(c *countedConn, kill func()) // nil: after the append
	}{
		{"before the write", oursLast, 0, 0, false, heard},
		{"before a synchronous write", oursLast, 0, unix.O_DSYNC, false, heard},
		{"before a write behind", oursLast, 0, 0, true, heard},
		{"behind the write", theirsLast, 0, 0, false, asked},
		{"behind a synchronous write", theirsLast, 0, unix.O_DSYNC, false, asked},
		{"behind all", theirsLast, 0, 0, false, nil},
		{"behind all, a write behind", theirsLast, 0, 0, true, nil},
		{"without a rank, before all", oursLast, wire.NoPartition, 0, false, looked},
		{"without a rank, behind the write", theirsLast, wire.NoPartition, 0, false, heard},
		{"without a rank, behind a synchronous write", theirsLast, wire.NoPartition, unix.O_DSYNC, false, heard},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 2)
			r.lease, r.behind = Lease, tt.behind
			a, b := r.join(tt.place), r.join(1)
			r.redial(a, b)
			fa, fb := a.open("/log", unix.O_CREAT|unix.O_WRONLY|tt.flags), b.open("/log", unix.O_WRONLY)
			add := func(f vfs.File, text string) {
				_, _, err := f.AppendBelow([][]byte{[]byte(text)}, posixshim.NoLimit)
				require.NoError(t, err)
			}
			add(fa, "first ")
			killed := false
			kill := func() {
				killed = true
				r.succeed()
				add(fb, "theirs ")
				require.NoError(t, fb.Sync())
			}
			if tt.when != nil {
				tt.when(a.counted, kill)
			}
			add(fa, "ours ")
			if tt.when == nil {
				kill()
			}
			require.True(t, killed)
			require.NoError(t, fa.Close())
			require.NoError(t, fb.Close())
			assert.Equal(t, tt.want, b.read("/log"))
		})
	}
}

// TestAppendedZerosThroughAKill appends zeros, which the successor does not adopt from a shard: they are in the file,
// and later data is behind them.
func TestAppendedZerosThroughAKill(t *testing.T) {
	for _, before := range []string{"", "text "} {
		r := newRig(t, 2)
		a, b := r.join(0), r.join(1)
		r.redial(a, b)
		fa, fb := a.open("/log", unix.O_CREAT|unix.O_WRONLY), b.open("/log", unix.O_WRONLY)
		add := func(f vfs.File, text string) {
			_, _, err := f.AppendBelow([][]byte{[]byte(text)}, posixshim.NoLimit)
			require.NoError(t, err)
		}
		if before != "" {
			add(fb, before)
			require.NoError(t, fb.Sync())
		}
		zeros := text(0, 10)
		add(fa, zeros)
		r.succeed()
		add(fb, "theirs")
		require.NoError(t, fb.Close())
		require.NoError(t, fa.Close())
		assert.Equal(t, before+zeros+"theirs", b.read("/log"))
	}
}

// TestLargeAppendWithoutARank checks that an append of several requests is contiguous, whatever others append
// meanwhile.
func TestLargeAppendWithoutARank(t *testing.T) {
	r := newRig(t, 1)
	a, none := r.join(0), r.join(wire.NoPartition)
	fn, fa := none.open("/log", unix.O_CREAT|unix.O_WRONLY), a.open("/log", unix.O_WRONLY)
	add := func(f vfs.File, texts ...string) {
		var bufs [][]byte
		for _, text := range texts {
			bufs = append(bufs, []byte(text))
		}
		n, end, err := f.AppendBelow(bufs, posixshim.NoLimit)
		require.NoError(t, err)
		assert.EqualValues(t, total(bufs), n)
		assert.EqualValues(t, n, end)
	}
	x, y := text('x', wire.MaxData+10), text('y', wire.MaxData)
	none.counted.heard = func() {
		_, end, err := fa.AppendBelow([][]byte{[]byte("a")}, posixshim.NoLimit)
		require.NoError(t, err)
		require.EqualValues(t, len(x)+len(y)+1, end)
	}
	add(fn, x, y)
	require.NoError(t, fn.Close())
	require.NoError(t, fa.Close())
	assert.True(t, a.read("/log") == x+y+"a")
}

// TestCompleteByTheSuccessor checks that a file which was fully synced before the kill is complete when it is closed,
// and that an unwritten file stays complete.
func TestCompleteByTheSuccessor(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	r.redial(p)
	p.write("/old", "text")
	f, old := p.open("/f", unix.O_CREAT|unix.O_RDWR), p.open("/old", unix.O_RDWR)
	put(t, f, 0, "hello")
	require.NoError(t, f.Sync())
	r.succeed()
	for path, f := range map[string]vfs.File{"/f": f, "/old": old} {
		require.NoError(t, f.Close())
		a, err := p.Stat(root, path, true)
		require.NoError(t, err)
		assert.True(t, a.Closed, path)
	}
}

// TestSuccessorAndTheDead checks that the successor adopts data of processes that died with the index, and that other
// processes wait for that.
func TestSuccessorAndTheDead(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	r.redial(b)
	fa, fb := a.open("/f", unix.O_CREAT|unix.O_RDWR), b.open("/f", unix.O_RDWR)
	put(t, fa, 0, "dead ")
	put(t, fb, 5, "alive")
	r.hangUp()
	a.kill()
	r.succeed()
	require.NoError(t, fb.Close())
	assert.Equal(t, "dead alive", b.read("/f"))
	at, err := b.Stat(root, "/f", true)
	require.NoError(t, err)
	assert.False(t, at.Closed, "one has died")
	b.write("/f", "anew")
	at, err = b.Stat(root, "/f", true)
	require.NoError(t, err)
	assert.True(t, at.Closed)
}

// TestLostToTheSuccessor checks that an unlinked file is lost with the index, and that a lock which another process
// has taken is lost.
func TestLostToTheSuccessor(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	r.redial(a, b)
	var said []string
	a.FS.opts.Logf = func(format string, args ...any) { said = append(said, format) }
	nameless, locked, kept := a.open("/gone", unix.O_CREAT|unix.O_RDWR), a.open("/locked", unix.O_CREAT|unix.O_RDWR), a.open("/kept", unix.O_CREAT|unix.O_RDWR)
	require.NoError(t, a.Unlink(root, "/gone"))
	for _, f := range []vfs.File{locked, kept} {
		put(t, f, 0, "x")
		require.NoError(t, f.(vfs.Locker).Lock(false, 0, 10, []vfs.Held{{Start: 0, End: 10, Write: true}}))
	}
	r.succeed()
	fb := b.open("/locked", unix.O_RDWR)
	require.NoError(t, fb.(vfs.Locker).Lock(false, 9, 12, []vfs.Held{{Start: 9, End: 12, Write: true}}))
	require.NoError(t, a.Mkdir(root, "/d", 0o755))
	require.ErrorIs(t, b.open("/kept", unix.O_RDWR).(vfs.Locker).Lock(false, 0, 1, []vfs.Held{{Start: 0, End: 1}}), syscall.EAGAIN)
	put(t, locked, 0, "y")
	for _, f := range []vfs.File{nameless, locked} {
		for range 2 {
			assert.ErrorIs(t, f.Sync(), syscall.EIO)
		}
		assert.ErrorIs(t, f.Close(), syscall.EIO)
	}
	require.NoError(t, kept.Close())
	assert.Len(t, said, 2)
	assert.Equal(t, "y", a.read("/locked"), "it can be opened anew")
}

// TestNoSuccessor checks that without a successor only the first call waits.
func TestNoSuccessor(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	asked := 0
	p.client.Redial = func(time.Time) (io.ReadWriteCloser, error) { asked++; return nil, syscall.ECONNREFUSED }
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	put(t, f, 0, "hello")
	require.NoError(t, p.counted.Conn.(*net.UnixConn).CloseWrite())
	for range 2 {
		err := f.Sync()
		assert.ErrorIs(t, err, wire.ErrGone)
	}
	assert.Equal(t, 1, asked)
	assert.Equal(t, "hello", get(t, f))
}

// TestWhoWasReplaced checks that a process does not take its partition back from the process that replaced it.
func TestWhoWasReplaced(t *testing.T) {
	for _, killed := range []bool{false, true} {
		r := newRig(t, 1)
		a := r.join(0)
		r.redial(a)
		if killed {
			r.succeed()
		}
		before := a.served
		b := r.join(0)
		r.redial(b)
		if !killed {
			<-before
		}
		assert.ErrorIs(t, a.Mkdir(root, "/d", 0o755), syscall.EIO)
		assert.NoError(t, b.Mkdir(root, "/d", 0o755))
	}
}
