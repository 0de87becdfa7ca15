package index

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// TestAdoption checks that unpublished data of a killed rank is in the file, except where others have written.
func TestAdoption(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.put(f, 0, "aaaa")
	b.open("f", unix.O_RDWR)
	b.put(f, 2, "bb")
	a.write(f, 3, "XXXX") // b's data is kept
	a.open("read", unix.O_RDWR|unix.O_CREAT)
	gone := a.open("gone", unix.O_RDWR|unix.O_CREAT)
	a.write(gone, 0, "gone")
	a.ok(wire.OpUnlink, &wire.Unlink{Name: at("gone")}, nil)
	a.kill()
	assert.Equal(t, "aabbXXX", b.read("f"))
	assert.EqualValues(t, 0, b.stat("read").Size)
	b.close(f, true)
	assert.False(t, b.stat("f").Closed, "a writer has died")
	b.open("f", unix.O_RDWR)
	b.close(f, true)
	assert.True(t, b.stat("f").Closed)
}

func TestWhatIsNotAdopted(t *testing.T) {
	for name, c := range map[string]func(a, b *user, f wire.Attr){
		"goodbye": func(a, b *user, f wire.Attr) { a.goodbye() },
		"earlier cut": func(a, b *user, f wire.Attr) {
			b.ok(wire.OpTruncate, &wire.Truncate{Name: at("f")}, &wire.AttrAnswer{})
			a.kill()
		},
		"punched": func(a, b *user, f wire.Attr) {
			b.ok(wire.OpAllocate, &wire.Allocate{Ino: f.Ino, Mode: wire.Punch, Len: 1}, &wire.AttrAnswer{})
			a.kill()
		},
		"closed": func(a, b *user, f wire.Attr) { a.close(f, true); a.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.connect(0), r.connect(1)
			f := a.open("f", unix.O_RDWR|unix.O_CREAT)
			b.open("f", unix.O_RDWR)
			b.put(f, 0, "bb")
			a.write(f, 2, "unpublished")
			c(a, b, f)
			assert.NotContains(t, b.read("f"), "unpublished")
		})
	}
}

// adopting makes adoptions of a rig wait until the returned function is called.
func adopting(r *rig) (letGo func(error)) {
	ready := make(chan error)
	r.x.opts.Adopt = func(ctx context.Context, place uint32) (*microfs.FS, func(), error) {
		select {
		case err := <-ready:
			return r.place(place), func() {}, err
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return func(err error) { ready <- err }
}

func TestCallsWaitForAdoptions(t *testing.T) {
	r := newRig(t)
	letGo := adopting(r)
	a, b, c := r.connect(0), r.connect(1), r.connect(2)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	b.open("f", unix.O_RDWR)
	a.write(f, 0, "bytes")
	a.kill()
	other := c.create("other", "meanwhile")
	assert.Equal(t, "meanwhile", c.read("other"))
	assert.EqualValues(t, 9, c.stat("other").Size)
	require.NotZero(t, other.Ino)
	answers := make(chan string)
	var st wire.AttrAnswer
	go func() {
		assert.NoError(t, b.conn.Call(wire.OpStat, &wire.Stat{Name: at("f")}, &st))
		answers <- "stat"
	}()
	var o wire.File
	go func() {
		assert.NoError(t, c.conn.Call(wire.OpOpen, &wire.Open{Name: at("f")}, &o))
		answers <- "open"
	}()
	select {
	case who := <-answers:
		t.Fatalf("%s has not waited", who)
	case <-time.After(20 * time.Millisecond): // a call that returns later passes, too
	}
	letGo(nil)
	<-answers
	<-answers
	assert.EqualValues(t, 5, st.Attr.Size)
	assert.EqualValues(t, 5, o.Attr.Size)
}

func TestNobodyWaitsForEver(t *testing.T) {
	r := newRig(t)
	letGo := adopting(r)
	r.x.opts.Timeout = 20 * time.Millisecond
	a, b := r.connect(0), r.connect(1)
	a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.kill()
	for _, call := range []struct {
		op      wire.Op
		request wire.Body
	}{
		{wire.OpStat, &wire.Stat{Name: at("f")}}, {wire.OpOpen, &wire.Open{Name: at("f")}}, {wire.OpOpenIno, &wire.OpenIno{Ino: 2}},
		{wire.OpTruncate, &wire.Truncate{Name: at("f")}},
	} {
		err := b.conn.Call(call.op, call.request, nil)
		require.ErrorIs(t, err, syscall.EIO, "%v", call.op)
		assert.Contains(t, err.Error(), "partition 0")
	}
	b.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
	letGo(errors.New("the target does not answer"))
}

func TestAdoptionThatFails(t *testing.T) {
	r := newRig(t)
	letGo := adopting(r)
	a, b := r.connect(3), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.put(f, 0, "published")
	a.write(f, 9, "not")
	a.kill()
	letGo(errors.New("the target does not answer"))
	assert.Equal(t, "published", b.read("f"))
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.Equal(t, []string{"what a process of partition 3 had written and not closed when it died is missing from one file: the target does not answer"}, r.lines)
}

// TestAdoptionAtTheStart kills all processes and the index: the next index adopts torn files.
func TestAdoptionAtTheStart(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(1)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.create("g", "whole")
	a.write(f, 0, "torn")
	b.open("f", unix.O_RDWR)
	b.put(f, 2, "bb")
	untold := a.open("untold", unix.O_RDWR|unix.O_CREAT)
	a.write(untold, 0, "the shard is complete")
	shard, err := a.partition.Open(microfs.RootIno, shardOf(untold)[0].Name(), unix.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, shard.Close())
	r.x.Close()
	r.start()
	letGo := adopting(r)
	r.x.Adopt(0)
	b = r.connect(1)
	assert.Equal(t, "whole", b.read("g"), "who is complete is not waited for")
	answer := make(chan string)
	go func() { answer <- b.read("f") }()
	letGo(nil)
	assert.Equal(t, "tobb", <-answer)
	assert.False(t, b.stat("f").Closed)
	assert.Equal(t, "the shard is complete", b.read("untold"))
}

// TestTheDeadAreAskedFor checks a process that has ended although its connection is open, as when a child has the
// socket.
func TestTheDeadAreAskedFor(t *testing.T) {
	r := newRig(t)
	a, b := r.connect(0), r.connect(wire.NoPartition)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.write(f, 0, "bytes")
	a.ended.Store(true)
	require.EqualValues(t, 5, b.stat("f").Size)
	assert.Equal(t, "bytes", b.read("f"))
	require.NoError(t, <-a.served)
	assert.False(t, b.stat("f").Closed)
}

// TestANewClientOfAPartitionEndsTheOldOne checks that the later of two clients of a partition gets it.
func TestANewClientOfAPartitionEndsTheOldOne(t *testing.T) {
	r := newRig(t)
	a := r.connect(0)
	f := a.open("f", unix.O_RDWR|unix.O_CREAT)
	a.write(f, 0, "bytes")
	b := r.connect(0)
	assert.ErrorIs(t, a.conn.Call(wire.OpSync, nil, nil), wire.ErrGone)
	<-a.served
	assert.Equal(t, "bytes", b.read("f"))
	b.ok(wire.OpUnlink, &wire.Unlink{Name: at("f")}, nil)
	assert.Equal(t, shardOf(f), b.collect())
}

func TestManyDie(t *testing.T) {
	r := newRig(t)
	letGo := adopting(r)
	const ranks = 4
	b := r.connect(wire.NoPartition)
	users := make([]*user, ranks)
	for i := range users {
		users[i] = r.connect(uint32(i))
		f := users[i].open("f", unix.O_RDWR|unix.O_CREAT)
		users[i].write(f, int64(i), strings.Repeat("x", ranks-i))
	}
	for _, u := range users {
		u.kill()
	}
	go func() {
		for range ranks {
			letGo(nil)
		}
	}()
	assert.Equal(t, strings.Repeat("x", ranks), b.read("f"))
}
