package index

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// hold makes the client lock exactly these ranges of [start, end).
func (u *user) hold(ino microfs.Ino, kind wire.LockKind, start, end int64, hold ...wire.Locked) error {
	return u.conn.Call(wire.OpLock, &wire.Lock{Ino: ino, Kind: kind, Start: start, End: end, Hold: hold}, &wire.Conflict{})
}

// conflict returns the lock that conflicts with a wanted one.
func (u *user) conflict(ino microfs.Ino, kind wire.LockKind, want wire.Locked) (c wire.Conflict) {
	u.r.t.Helper()
	u.ok(wire.OpLock, &wire.Lock{Ino: ino, Kind: kind, Start: want.Start, End: want.End, Hold: []wire.Locked{want}, Test: true}, &c)
	return c
}

func reading(start, end int64) wire.Locked { return wire.Locked{Start: start, End: end} }

func writing(start, end int64) wire.Locked { return wire.Locked{Start: start, End: end, Write: true} }

// TestLocks checks conflicts of locks by the rules of fcntl(2).
func TestLocks(t *testing.T) {
	const whole = math.MaxInt64
	for _, tc := range []struct {
		name string
		held []wire.Locked // of one client
		then []wire.Lock   // later calls of the same client
		want wire.Locked   // wanted by the other client
		by   wire.Locked   // conflicting lock; empty: none
	}{
		{"a read lock of what is written", []wire.Locked{writing(10, 20)}, nil, reading(19, 30), writing(10, 20)},
		{"a write lock of what is read", []wire.Locked{reading(10, 20)}, nil, writing(0, 11), reading(10, 20)},
		{"two that read", []wire.Locked{reading(10, 20)}, nil, reading(0, whole), wire.Locked{}},
		{"right before", []wire.Locked{writing(10, 20)}, nil, writing(0, 10), wire.Locked{}},
		{"right behind", []wire.Locked{writing(10, 20)}, nil, writing(20, whole), wire.Locked{}},
		{"the second range", []wire.Locked{reading(10, 20), writing(30, whole)}, nil, reading(0, 31), writing(30, whole)},
		{"a part was given up", []wire.Locked{writing(10, 20)}, []wire.Lock{{Start: 12, End: 18}}, writing(12, 18), wire.Locked{}},
		{"the part before it", []wire.Locked{writing(10, 20)}, []wire.Lock{{Start: 12, End: 18}}, writing(11, 18), writing(10, 12)},
		{"the part behind it", []wire.Locked{writing(10, 20)}, []wire.Lock{{Start: 12, End: 18}}, writing(12, 19), writing(18, 20)},
		{"a part is for reading now", []wire.Locked{writing(10, 20)}, []wire.Lock{{Start: 12, End: 18, Hold: []wire.Locked{reading(12, 18)}}},
			reading(12, 18), wire.Locked{}},
		{"parts that touch are one", []wire.Locked{writing(10, 20)}, []wire.Lock{{Start: 20, End: 30, Hold: []wire.Locked{writing(20, 30)}}},
			reading(25, 26), writing(10, 30)},
		{"all was given up", []wire.Locked{reading(0, 5), writing(10, 20)}, []wire.Lock{{End: whole}}, writing(0, whole), wire.Locked{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, kind := range []wire.LockKind{wire.RecordLock, wire.FileLock} {
				r := newRig(t)
				a, b := r.connect(0), r.connect(wire.NoPartition)
				f := a.open("f", unix.O_RDWR|unix.O_CREAT)
				b.open("f", unix.O_RDONLY)
				require.NoError(t, a.hold(f.Ino, kind, 0, whole, tc.held...))
				for _, l := range tc.then {
					require.NoError(t, a.hold(f.Ino, kind, l.Start, l.End, l.Hold...))
				}
				want := wire.Conflict{There: tc.by.End > 0, Locked: tc.by}
				if want.There {
					want.PID = a.hello().PID
				}
				assert.Equal(t, want, b.conflict(f.Ino, kind, tc.want))
				assert.False(t, b.conflict(f.Ino, 1-kind, tc.want).There, "the other kind")
				err := b.hold(f.Ino, kind, tc.want.Start, tc.want.End, tc.want)
				if want.There {
					assert.Equal(t, syscall.EAGAIN, err)
				} else {
					assert.NoError(t, err)
				}
				assert.NoError(t, a.hold(f.Ino, kind, 0, 0), "its own locks are in nobody's way")
			}
		})
	}
}

// TestEndOfLocks checks that locks end with the last close of their client, and with the client.
func TestEndOfLocks(t *testing.T) {
	for name, end := range map[string]func(*user, wire.Attr){
		"close": func(u *user, f wire.Attr) {
			u.close(f, false)
			u.close(f, true)
		},
		"goodbye": func(u *user, _ wire.Attr) { u.goodbye() },
		"kill":    func(u *user, _ wire.Attr) { u.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.connect(0), r.connect(1)
			f := a.open("f", unix.O_RDWR|unix.O_CREAT)
			a.open("f", unix.O_RDONLY)
			b.open("f", unix.O_RDWR)
			require.NoError(t, a.hold(f.Ino, wire.FileLock, 0, 5, writing(0, 5)))
			assert.Equal(t, syscall.EAGAIN, b.hold(f.Ino, wire.FileLock, 0, 9, reading(0, 9)))
			end(a, f)
			assert.NoError(t, b.hold(f.Ino, wire.FileLock, 0, 9, reading(0, 9)))
		})
	}
}

// TestLocksThatCannotBe checks invalid requests, and more locks than the index stores.
func TestLocksThatCannotBe(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	for _, l := range []wire.Lock{
		{Ino: f.Ino, Kind: 2, End: 1},
		{Ino: f.Ino, Start: -1, End: 1},
		{Ino: f.Ino, Start: 2, End: 1},
		{Ino: f.Ino, End: 9, Hold: []wire.Locked{reading(8, 10)}},
		{Ino: f.Ino, Start: 3, End: 9, Hold: []wire.Locked{reading(2, 4)}},
		{Ino: f.Ino, End: 9, Hold: []wire.Locked{reading(4, 4)}},
		{Ino: f.Ino, End: 9, Hold: []wire.Locked{reading(4, 6), reading(5, 7)}},
	} {
		assert.Equal(t, syscall.EINVAL, a.conn.Call(wire.OpLock, &l, nil), "%+v", l)
	}
	assert.Equal(t, syscall.EBADF, a.hold(f.Ino+1, wire.RecordLock, 0, 1))

	var many []wire.Locked
	for i := range int64(wire.MaxLocks) {
		many = append(many, writing(2*i, 2*i+1))
	}
	const apart = 2 * wire.MaxLocks
	for at := int64(0); at < maxLocks/wire.MaxLocks*apart; at += apart {
		require.NoError(t, a.hold(f.Ino, wire.RecordLock, at, at+apart, many...))
		for i := range many {
			many[i].Start, many[i].End = many[i].Start+apart, many[i].End+apart
		}
	}
	assert.Equal(t, syscall.ENOLCK, a.hold(f.Ino, wire.FileLock, 0, 1, writing(0, 1)))
	assert.NoError(t, a.hold(f.Ino, wire.RecordLock, 0, 1))
	assert.NoError(t, a.hold(f.Ino, wire.FileLock, 0, 1, writing(0, 1)))
	a.close(f, true)
	a.open("f", unix.O_RDWR)
	assert.NoError(t, a.hold(f.Ino, wire.RecordLock, 0, 1<<40, many...), "what is closed counts no more")
}

// TestRandomLocks compares the locks of three clients with a model of each byte.
func TestRandomLocks(t *testing.T) {
	const clients, size, calls = 3, 24, 4000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t)
	var users []*user
	var f wire.Attr
	for i := range uint32(clients) {
		users = append(users, r.connect(i))
		f = users[i].open("f", unix.O_RDWR|unix.O_CREAT)
	}
	var model [2][clients][size]byte // 0 not locked, 1 for reading, 2 for writing
	free := func(kind, who int, l wire.Locked) bool {
		for other := range model[kind] {
			for _, has := range model[kind][other][l.Start:l.End] {
				if other != who && (has == 2 || has == 1 && l.Write) {
					return false
				}
			}
		}
		return true
	}
	for range calls {
		kind, who := rng.IntN(2), rng.IntN(clients)
		start := rng.Int64N(size)
		end := start + 1 + rng.Int64N(size-start)
		var hold []wire.Locked
		ok, now := true, make([]byte, end-start)
		for at := start; at < end && rng.IntN(3) > 0; {
			from := at + rng.Int64N(end-at)
			l := wire.Locked{Start: from, End: from + 1 + rng.Int64N(end-from), Write: rng.IntN(2) == 0}
			hold, at, ok = append(hold, l), l.End, ok && free(kind, who, l)
			for i := l.Start; i < l.End; i++ {
				now[i-start] = 1
				if l.Write {
					now[i-start] = 2
				}
			}
		}
		what := fmt.Sprintf("seed %d: client %d, kind %d, %d to %d: %+v", seed, who, kind, start, end, hold)
		if rng.IntN(4) == 0 {
			var c wire.Conflict
			users[who].ok(wire.OpLock, &wire.Lock{Ino: f.Ino, Kind: wire.LockKind(kind), Start: start, End: end, Hold: hold, Test: true}, &c)
			require.Equal(t, !ok, c.There, what)
			continue
		}
		err := users[who].hold(f.Ino, wire.LockKind(kind), start, end, hold...)
		if !ok {
			require.Equal(t, syscall.EAGAIN, err, what)
			continue
		}
		require.NoError(t, err, what)
		copy(model[kind][who][start:], now)
	}
}

// TestPublicationWaitsForLock checks that bytes which another client has locked for writing are published when that lock ends, so that
// they replace what that client has read before and writes back.
func TestPublicationWaitsForLock(t *testing.T) {
	r := newRig(t)
	holder, other := r.connect(0), r.connect(1)
	f := holder.open("f", unix.O_RDWR|unix.O_CREAT)
	other.open("f", unix.O_RDWR)
	for _, closes := range []bool{false, true} {
		require.NoError(t, holder.hold(f.Ino, wire.RecordLock, 0, 10, writing(0, 10)))
		other.write(f, 4, "new")
		p := publication(f, wire.Range{Off: 4, Len: 3})
		done := make(chan error, 1)
		go func() {
			if closes {
				done <- other.conn.Call(wire.OpClose, &wire.Close{Writer: true, Publication: p}, nil)
			} else {
				done <- other.conn.Call(wire.OpPublish, &p, &wire.AttrAnswer{})
			}
		}()
		w := r.waitsForLock(f.Ino, done)
		holder.put(f, 0, "..........")
		require.NoError(t, holder.hold(f.Ino, wire.RecordLock, 0, 10))
		require.NoError(t, <-done)
		select {
		case <-w.over():
		default:
			assert.Fail(t, "the publication has waited until it was impatient")
		}
		assert.Equal(t, "....new...", holder.content(f.Ino), "by close: %v", closes)
	}
}

// waitsForLock returns the wait of a publication for a lock of a file, when there is one. done has the end of the publication.
func (r *rig) waitsForLock(ino microfs.Ino, done <-chan error) (w *lockWait) {
	r.t.Helper()
	for w == nil {
		select {
		case err := <-done:
			require.Fail(r.t, "the publication has not waited", "%v", err)
		case <-time.After(time.Millisecond):
		}
		r.x.mu.Lock()
		for s := range r.x.files[ino].sessions {
			w = cmp.Or(w, s.lockWait)
		}
		r.x.mu.Unlock()
	}
	return w
}

// TestPublicationDoesNotWait checks for which locks a publication does not wait.
func TestPublicationDoesNotWait(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind wire.LockKind
		held wire.Locked
	}{
		{"a lock for reading", wire.RecordLock, reading(0, 10)},
		{"a lock of other bytes", wire.RecordLock, writing(7, 10)},
		{"flock", wire.FileLock, writing(0, math.MaxInt64)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			holder, other := r.connect(0), r.connect(1)
			f := holder.open("f", unix.O_RDWR|unix.O_CREAT)
			other.open("f", unix.O_RDWR)
			require.NoError(t, holder.hold(f.Ino, tc.kind, tc.held.Start, tc.held.End, tc.held))
			other.put(f, 4, "new")
			r.x.mu.Lock()
			defer r.x.mu.Unlock()
			for s := range r.x.files[f.Ino].sessions {
				assert.False(t, s.lockHeld, "it has waited")
			}
		})
	}
}

// TestLongLock checks that publications wait once for a lock that is held for long, and again for the next lock; and that the death
// of the holder ends the wait.
func TestLongLock(t *testing.T) {
	r := newRig(t)
	holder, other := r.connect(0), r.connect(1)
	f := holder.open("f", unix.O_RDWR|unix.O_CREAT)
	other.open("f", unix.O_RDWR)
	held := func() bool {
		r.x.mu.Lock()
		defer r.x.mu.Unlock()
		return r.x.places[0].files[f.Ino].lockHeld
	}
	for range 2 {
		require.NoError(t, holder.hold(f.Ino, wire.RecordLock, 0, 10, writing(0, 10)))
		assert.False(t, held())
		other.put(f, 4, "new")
		assert.True(t, held(), "the publication has waited")
		other.put(f, 4, "new")
		other.put(f, 4, "new")
		require.NoError(t, holder.hold(f.Ino, wire.RecordLock, 0, 10))
	}
	require.NoError(t, holder.hold(f.Ino, wire.RecordLock, 0, 10, writing(0, 10)))
	p := publication(f, wire.Range{Off: 4, Len: 3})
	done := make(chan error, 1)
	go func() { done <- other.conn.Call(wire.OpPublish, &p, &wire.AttrAnswer{}) }()
	r.waitsForLock(f.Ino, done)
	holder.kill()
	require.NoError(t, <-done)
}

// TestLimitOfLockWait checks that a lock which was just taken is not ended by the time that a publication has waited for others, and that a
// client does not wait longer than half of its time-out.
func TestLimitOfLockWait(t *testing.T) {
	x := newRig(t).x
	begun := time.Now().Add(-testTimeout / 2)
	w := &lockWait{until: time.Now().Add(time.Hour)}
	d, limited := w.limit(x, begun)
	assert.True(t, limited)
	assert.Positive(t, d)
	assert.LessOrEqual(t, d, x.opts.Timeout/2-testTimeout/2)
	x.opts.Timeout = 0
	d, limited = w.limit(x, begun)
	assert.True(t, limited)
	assert.Greater(t, d, testTimeout)
}
