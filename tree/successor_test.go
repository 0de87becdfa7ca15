package tree

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/posixshim"
	"nvmecr/tree/wire"
)

// succeed kills the index and starts its successor, which adopts what all partitions have.
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

// TestSuccessor: what processes have open goes on when the index is killed, and nothing of what they have written gets lost.
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
	add := func(f posixshim.File, text string) {
		_, _, err := f.AppendBelow([][]byte{[]byte(text)}, posixshim.NoLimit)
		require.NoError(t, err)
	}
	add(log, "one ")
	for range 2 {
		r.succeed()
		add(logged, "two ") // behind what the other one has not told
		require.NoError(t, fb.Sync())
		put(t, own, 4, "here")
		require.NoError(t, a.Mkdir(root, "/d", 0o755))
		require.NoError(t, b.Rmdir(root, "/d"))
	}
	require.NoError(t, fa.Sync())
	assert.Equal(t, "aaaabb", get(t, fa), "the later publication wins")
	for _, f := range []posixshim.File{fa, fb, log, logged, own} {
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

// TestAppendThroughAKill: an index is killed when it has given room to a process that has not written there yet, or just has, and another
// process appends at the successor: both have their bytes, once.
func TestAppendThroughAKill(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		written    bool
		flags      int
	}{
		{"before the write", "first theirs ours ", false, 0},
		{"before a synchronous write", "first theirs ours ", false, unix.O_DSYNC},
		{"behind the write", "first ours theirs ", true, 0},
		{"behind a synchronous write", "first ours theirs ", true, unix.O_DSYNC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 2)
			a, b := r.join(0), r.join(1)
			r.redial(a, b)
			fa, fb := a.open("/log", unix.O_CREAT|unix.O_WRONLY|tt.flags), b.open("/log", unix.O_WRONLY)
			add := func(f posixshim.File, text string) {
				_, _, err := f.AppendBelow([][]byte{[]byte(text)}, posixshim.NoLimit)
				require.NoError(t, err)
			}
			add(fa, "first ")
			kill := func() {
				r.succeed()
				add(fb, "theirs ")
				require.NoError(t, fb.Sync())
			}
			hook := &a.counted.heard
			if tt.written {
				hook = &a.counted.looked
			}
			*hook = kill
			add(fa, "ours ")
			require.Nil(t, *hook)
			require.NoError(t, fa.Close())
			require.NoError(t, fb.Close())
			assert.Equal(t, tt.want, b.read("/log"))
		})
	}
}

// TestCompleteByTheSuccessor: a file of which all was synced before is complete when it is closed, and one that nobody wrote to stays so.
func TestCompleteByTheSuccessor(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	r.redial(p)
	p.write("/old", "text")
	f, old := p.open("/f", unix.O_CREAT|unix.O_RDWR), p.open("/old", unix.O_RDWR)
	put(t, f, 0, "hello")
	require.NoError(t, f.Sync())
	r.succeed()
	for path, f := range map[string]posixshim.File{"/f": f, "/old": old} {
		require.NoError(t, f.Close())
		a, err := p.Stat(root, path, true)
		require.NoError(t, err)
		assert.True(t, a.Closed, path)
	}
}

// TestSuccessorAndTheDead: of who died with the index the successor has what was written, and who lives waits for that.
func TestSuccessorAndTheDead(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	r.redial(b)
	fa, fb := a.open("/f", unix.O_CREAT|unix.O_RDWR), b.open("/f", unix.O_RDWR)
	put(t, fa, 0, "dead ")
	put(t, fb, 5, "alive")
	r.index.Close()
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

// TestLostToTheSuccessor: a file without a name went with the index, and a lock that another process has taken is lost.
func TestLostToTheSuccessor(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	r.redial(a, b)
	var said []string
	a.FS.opts.Logf = func(format string, args ...any) { said = append(said, format) }
	nameless, locked, kept := a.open("/gone", unix.O_CREAT|unix.O_RDWR), a.open("/locked", unix.O_CREAT|unix.O_RDWR), a.open("/kept", unix.O_CREAT|unix.O_RDWR)
	require.NoError(t, a.Unlink(root, "/gone"))
	for _, f := range []posixshim.File{locked, kept} {
		put(t, f, 0, "x")
		require.NoError(t, f.(posixshim.Locker).Lock(false, 0, 10, []posixshim.Held{{Start: 0, End: 10, Write: true}}))
	}
	r.succeed()
	fb := b.open("/locked", unix.O_RDWR)
	require.NoError(t, fb.(posixshim.Locker).Lock(false, 9, 12, []posixshim.Held{{Start: 9, End: 12, Write: true}}))
	require.NoError(t, a.Mkdir(root, "/d", 0o755))
	require.ErrorIs(t, b.open("/kept", unix.O_RDWR).(posixshim.Locker).Lock(false, 0, 1, []posixshim.Held{{Start: 0, End: 1}}), syscall.EAGAIN)
	put(t, locked, 0, "y")
	for _, f := range []posixshim.File{nameless, locked} {
		for range 2 {
			assert.ErrorIs(t, f.Sync(), syscall.EIO)
		}
		assert.ErrorIs(t, f.Close(), syscall.EIO)
	}
	require.NoError(t, kept.Close())
	assert.Len(t, said, 2)
	assert.Equal(t, "y", a.read("/locked"), "it can be opened anew")
}

// TestNoSuccessor: where none comes, the first call waits for it, and no other one.
func TestNoSuccessor(t *testing.T) {
	r := newRig(t, 1)
	p := r.join(0)
	asked := 0
	p.client.Redial = func(time.Time) (io.ReadWriteCloser, error) { asked++; return nil, syscall.ECONNREFUSED }
	f := p.open("/f", unix.O_CREAT|unix.O_RDWR)
	put(t, f, 0, "hello")
	_ = p.stream.Close()
	for range 2 {
		err := f.Sync()
		assert.ErrorIs(t, err, wire.ErrGone)
	}
	assert.Equal(t, 1, asked)
	assert.Equal(t, "hello", get(t, f))
}

// TestWhoWasReplaced: who has lost its partition to another process does not take it back.
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
