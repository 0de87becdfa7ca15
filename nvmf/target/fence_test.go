package target_test

import (
	"bytes"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
)

func cqe(b []byte) *nvme.CQE { return pdu.CQEOf(b) }

// answerR2T sends the data for an R2T in one H2CData.
func (h *client) answerR2T(b, data []byte) {
	h.h2c(pdu.Data(pdu.R2TOf(b)), true, data)
}

// silent expects that the target sends nothing for a while.
func (h *client) silent(d time.Duration) {
	h.t.Helper()
	require.NoError(h.t, h.c.SetReadDeadline(time.Now().Add(d)))
	_, err := h.c.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(h.t, err, &timeout)
	assert.True(h.t, timeout.Timeout())
	require.NoError(h.t, h.c.SetReadDeadline(time.Now().Add(hang)))
}

// taken waits until the target has received and processed all bytes that h has
// sent. h has to be a pair.
func (h *client) taken(tgt *target.Target) {
	h.t.Helper()
	require.Eventually(h.t, func() bool { return h.queued(unix.TIOCOUTQ) == 0 && target.Running(tgt) == 0 }, hang, time.Millisecond)
}

// queued returns the number of bytes that h has not read yet (TIOCINQ), or that the
// target has not read yet (TIOCOUTQ), and -1 on errors. h has to be a pair.
func (h *client) queued(which uint) int {
	n := -1
	if raw, err := h.c.(*net.UnixConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), which) })
	}
	return n
}

// takeOver connects two registered hosts, of which old holds a Write Exclusive
// reservation.
func takeOver(t *testing.T, addr net.Addr) (old, next *client) {
	old, next = guest(t, addr, 1), guest(t, addr, 2)
	begin(t, old, next)
	return old, next
}

func begin(t *testing.T, old, next *client) {
	require.Zero(t, old.register(1))
	require.Zero(t, old.acquire(nvme.ReservationAcquire, nvme.WriteExclusive, 1, 0))
	require.Zero(t, next.register(2))
}

// TestPreemptAbortsWrites checks that data of a write that arrives after a preemption
// changes no block, whatever part of the write has arrived before.
func TestPreemptAbortsWrites(t *testing.T) {
	const size = 64 << 10
	for _, backing := range []struct {
		name string
		make func(testing.TB, nvmf.Bytes, nvmf.Bytes) target.Backing
		// partial means that the data that arrives before the preemption is in the namespace at once.
		partial bool
	}{{"memory", memory, true}, {"file", file, true}, {"device", wrapped, false}} {
		for _, action := range []uint8{nvme.ReservationPreempt, nvme.ReservationPreemptAbort} {
			for _, before := range []int{0, 1000, 4096, 32 << 10} {
				t.Run(backing.name, func(t *testing.T) {
					_, addr := serve(t, one(backing.make(t, nvmf.MiB, 4096)))
					old, next := takeOver(t, addr)
					old.capsule(old.rw(nvme.IOWrite, 0, size/4096, size), nil)
					x, b := old.read()
					require.Equal(t, pdu.TypeR2T, x.Type)
					r := pdu.R2TOf(b)
					data := bytes.Repeat([]byte{0xee}, size)
					// One PDU has all data, and a part of the PDU is sent before the preemption.
					p := make([]byte, pdu.MaxHeaderSize)
					n := old.send.Put(p, pdu.TypeH2CData, pdu.FlagLast, size)
					pdu.PutData(p, pdu.Data{CID: r.CID, TTag: r.TTag, Length: size})
					p = append(p[:n], data...)
					sent := 0
					if before > 0 {
						sent = n + before
						old.write(p[:sent])
						if backing.partial {
							require.Eventually(t, func() bool {
								got, s := next.readBlocks(0, size/4096, size)
								return s == 0 && bytes.Count(got, []byte{0xee}) == before
							}, hang, time.Millisecond, "the first part has arrived")
						}
					}
					require.Zero(t, next.acquire(action, nvme.WriteExclusive, 2, 1))
					mine := bytes.Repeat([]byte{0x11}, size)
					next.capsule(next.rw(nvme.IOWrite, 0, size/4096, 0), mine)
					require.Zero(t, next.response().Status())
					old.write(p[sent:])
					assert.Equal(t, nvme.StatusPreemptAbort, old.response().Status().Code())
					got, s := next.readBlocks(0, size/4096, size)
					require.Zero(t, s)
					assert.True(t, bytes.Equal(mine, got), "%d bytes of the old write came through", bytes.Count(got, []byte{0xee}))
					old.capsule(old.rw(nvme.IOWrite, 0, 1, 0), data[:4096])
					assert.Equal(t, nvme.StatusReservation, old.response().Status().Code(), "the connection is as good as before")
					_, s = old.readBlocks(0, 1, 4096)
					assert.Zero(t, s)
				})
			}
		}
	}
}

// TestPreemptAbortsCapsules checks that a preemption aborts a Write with in-capsule
// data and a Dataset Management command, when their capsules have partly arrived.
func TestPreemptAbortsCapsules(t *testing.T) {
	tgt, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	old, next := paired(t, tgt, 1), guest(t, addr, 2)
	begin(t, old, next)
	mine := bytes.Repeat([]byte{0x11}, 8192)
	write := old.encode(old.rw(nvme.IOWrite, 0, 2, 0), bytes.Repeat([]byte{0xee}, 8192))
	s := old.command(nvme.IODSM)
	s.SetDSM(1, nvme.DSMDeallocate)
	var r nvme.DSMRange
	r.Set(0, 2)
	key := uint64(1)
	for _, p := range [][]byte{write, old.encode(s, r[:])} {
		old.write(p[:len(p)-5])
		old.taken(tgt) // the target has the first part
		require.Zero(t, next.acquire(nvme.ReservationPreemptAbort, nvme.WriteExclusive, 2, key))
		next.capsule(next.rw(nvme.IOWrite, 0, 2, 0), mine)
		require.Zero(t, next.response().Status())
		old.write(p[len(p)-5:])
		assert.Equal(t, nvme.StatusPreemptAbort, old.response().Status().Code())
		got, status := next.readBlocks(0, 2, 8192)
		require.Zero(t, status)
		assert.True(t, bytes.Equal(mine, got))
		// The first host takes the reservation back, for the next command.
		require.Zero(t, old.register(3))
		require.Zero(t, old.acquire(nvme.ReservationPreempt, nvme.WriteExclusive, 3, 2))
		require.Zero(t, next.register(2))
		key = 3
	}
}

// stuck is a Backing whose next write, after armed was set, does not end before
// release is called.
type stuck struct {
	target.Backing
	arrived chan struct{} // closed when the write has begun
	release func()        // lets the write end
	end     chan struct{}
	armed   atomic.Bool
}

func newStuck(b target.Backing) *stuck {
	s := &stuck{Backing: b, arrived: make(chan struct{}), end: make(chan struct{})}
	s.release = sync.OnceFunc(func() { close(s.end) })
	return s
}

// Memory returns nil, so that the target writes with WriteAt.
func (s *stuck) Memory() []byte { return nil }

func (s *stuck) WriteAt(p []byte, offset int64) error {
	if s.armed.Swap(false) {
		close(s.arrived)
		<-s.end
	}
	return s.Backing.WriteAt(p, offset)
}

// TestPreemptWaitsForExecution checks that a preemption does not complete while a
// write of the preempted host is being executed. A later Acquire of the new host has
// to wait, too.
func TestPreemptWaitsForExecution(t *testing.T) {
	for _, action := range []uint8{nvme.ReservationPreempt, nvme.ReservationPreemptAbort} {
		b := newStuck(memory(t, nvmf.MiB, 4096))
		_, addr := serve(t, one(b))
		t.Cleanup(b.release) // also when the test fails
		old, next := takeOver(t, addr)
		sibling := guest(t, addr, 2)
		b.armed.Store(true)
		old.capsule(old.rw(nvme.IOWrite, 0, 1, 0), bytes.Repeat([]byte{0xee}, 4096))
		<-b.arrived
		s, data := next.reservation(nvme.IOReservationAcquire, nvme.ReservationCommand{Action: action, Type: nvme.WriteExclusive}, 2, 1)
		next.capsule(s, data)
		next.silent(50 * time.Millisecond)
		assert.Equal(t, nvme.WriteExclusive, sibling.status().Type, "reports come all the time")
		again, data := sibling.reservation(nvme.IOReservationAcquire, nvme.ReservationCommand{Type: nvme.WriteExclusive}, 2, 0)
		sibling.capsule(again, data)
		sibling.silent(50 * time.Millisecond)
		// Reads of the new host do not wait.
		_, status := next.readBlocks(1, 1, 4096)
		assert.Zero(t, status)
		b.release()
		assert.Zero(t, next.response().Status())
		assert.Zero(t, sibling.response().Status())
		assert.Zero(t, old.response().Status(), "it was executed")
		got, status := next.readBlocks(0, 1, 4096)
		assert.Zero(t, status)
		assert.Equal(t, byte(0xee), got[0])
	}
}

// TestPreemptWaitsForEnded checks that a preemption waits for a write that is still
// being executed although its connection has ended.
func TestPreemptWaitsForEnded(t *testing.T) {
	b := newStuck(memory(t, nvmf.MiB, 4096))
	tgt, addr := serve(t, one(b))
	t.Cleanup(b.release) // also when the test fails
	old, next := takeOver(t, addr)
	b.armed.Store(true)
	old.capsule(old.rw(nvme.IOWrite, 0, 1, 0), bytes.Repeat([]byte{0xee}, 4096))
	<-b.arrived
	go tgt.Cut(func(h target.Host) bool { return h.ID == [16]byte{1} })
	s, data := next.reservation(nvme.IOReservationAcquire,
		nvme.ReservationCommand{Action: nvme.ReservationPreemptAbort, Type: nvme.WriteExclusive}, 2, 1)
	next.capsule(s, data)
	next.silent(50 * time.Millisecond)
	b.release()
	assert.Zero(t, next.response().Status())
	old.ends(0)
}

// TestPreemptEachOther checks that two hosts that continually preempt each other do
// not deadlock.
func TestPreemptEachOther(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	var wg sync.WaitGroup
	for i := byte(1); i <= 2; i++ {
		q := guest(t, addr, i)
		wg.Go(func() {
			for range 300 {
				if s := q.register(uint64(i)); !assert.Zero(t, s) {
					return
				}
				q.acquire(nvme.ReservationAcquire, nvme.ExclusiveAccess, uint64(i), 0)
				q.acquire(nvme.ReservationPreemptAbort, nvme.ExclusiveAccess, uint64(i), uint64(3-i))
				q.capsule(q.rw(nvme.IOWrite, 0, 1, 0), make([]byte, 4096))
				q.response()
				_, _ = q.readBlocks(0, 1, 4096)
			}
		})
	}
	wg.Wait()
}

// TestExclusiveAccessStopsReads checks that an Exclusive Access reservation ends the
// connection of another host to which data of a read is being sent.
func TestExclusiveAccessStopsReads(t *testing.T) {
	tgt, addr := serve(t, one(memory(t, 64*nvmf.MiB, 4096)))
	old, next := paired(t, tgt, 1), guest(t, addr, 2)
	require.Zero(t, next.register(2))
	for range 30 {
		old.capsule(old.rw(nvme.IORead, 0, 256, 1<<20), nil)
	}
	// The first read is larger than the socket buffers, so it is partly sent from now on.
	require.Eventually(t, func() bool { return old.queued(unix.TIOCINQ) > 0 }, hang, time.Millisecond)
	require.Zero(t, next.acquire(nvme.ReservationAcquire, nvme.ExclusiveAccess, 2, 0))
	responses := 0
	for {
		x, _, _, err := old.next()
		if err != nil {
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			break
		}
		if x.Type == pdu.TypeCapsuleResp {
			responses++
		}
	}
	assert.Less(t, responses, 30, "the connection has ended")
}

// TestPreemptWithoutReservation checks preemptions of registrants when there is no
// reservation. Preempt and Abort aborts the write of the preempted host, and Preempt
// does not.
func TestPreemptWithoutReservation(t *testing.T) {
	for action, want := range map[uint8]nvme.Status{nvme.ReservationPreempt: 0, nvme.ReservationPreemptAbort: nvme.StatusPreemptAbort} {
		_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
		old, other, next := guest(t, addr, 1), guest(t, addr, 3), guest(t, addr, 2)
		require.Zero(t, old.register(1))
		require.Zero(t, other.register(3))
		require.Zero(t, next.register(2))
		var r2t [][]byte
		for _, h := range []*client{old, other} {
			h.capsule(h.rw(nvme.IOWrite, 0, 1, 4096), nil)
			_, b := h.read()
			r2t = append(r2t, b)
		}
		require.Zero(t, next.acquire(action, nvme.WriteExclusive, 2, 1))
		old.answerR2T(r2t[0], make([]byte, 4096))
		assert.Equal(t, want, old.response().Status().Code())
		other.answerR2T(r2t[1], make([]byte, 4096))
		assert.Zero(t, other.response().Status(), "a host that was not preempted")
		old.capsule(old.rw(nvme.IOWrite, 0, 1, 0), make([]byte, 4096))
		assert.Zero(t, old.response().Status(), "nobody has reserved anything")
	}
}
