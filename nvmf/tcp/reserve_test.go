package tcp_test

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

// restartable is a target in this process that can be stopped, and started again
// at the same address with the same namespace.
type restartable struct {
	backing target.Backing
	target  *target.Target
	addr    string
}

// lasting is a Backing that stays open when its target closes.
type lasting struct{ target.Backing }

func (lasting) Close() error { return nil }

func (r *restartable) start(t *testing.T, inCapsule nvmf.Bytes) {
	var err error
	r.target, err = target.New(target.Config{InCapsule: inCapsule, Subsystems: []target.Subsystem{{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: lasting{r.backing}}},
	}}})
	require.NoError(t, err)
	var addr net.Addr
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		addr, err = r.target.Listen(r.addr)
		require.NoError(t, err)
	}, testTimeout, 10*time.Millisecond)
	r.addr = addr.String()
}

func (r *restartable) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	assert.NoError(t, r.target.Close(ctx))
}

func TestReservations(t *testing.T) {
	for _, c := range []struct {
		name               string
		lbaSize, inCapsule nvmf.Bytes
		options            tcp.Options
	}{
		{"in capsule", 4096, 0, tcp.Options{}},
		{"R2T", 512, 512, tcp.Options{}},
		{"digests", 4096, 8192, tcp.Options{HeaderDigest: true, DataDigest: true}},
	} {
		if testing.Short() && c.name != "R2T" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := &restartable{addr: "127.0.0.2:0"} // no other test listens here while the target is stopped
			var err error
			r.backing, err = target.NewMemory(64*nvmf.MiB, c.lbaSize)
			require.NoError(t, err)
			r.start(t, c.inCapsule)
			t.Cleanup(func() {
				r.stop(t)
				assert.NoError(t, r.backing.Close())
			})
			blocktest.RunReserver(t, blocktest.Reservers{
				Open: func(t *testing.T, host uuid.UUID) nvmf.Reserver {
					o := c.options
					o.HostID = host
					return openDevice(t, addressID(t, r.addr), o)
				},
				Restart: func(t *testing.T) {
					r.stop(t)
					r.start(t, c.inCapsule)
				},
			})
		})
	}
}

// odd is a target whose reservation commands do what the test's function change does.
type odd struct {
	mu     sync.Mutex
	state  nvme.ReservationStatus
	change func(o *odd, sqe *nvme.SQE, keys *nvme.ReservationKeys) nvme.Status
	seen   []nvme.ReservationCommand // all reservation commands but reports
	silent time.Duration             // command time-out of its host; 0 is testTimeout
}

// locked calls look while the target executes no command.
func (o *odd) locked(look func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	look()
}

var oddHost = uuid.UUID{1}

// serve answers the commands of I/O queues.
func (o *odd) serve(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if sqe.Opcode() == nvme.IOReservationReport {
		length, _ := sqe.ReservationReport()
		b := o.state.Append(nil)
		b = append(b, make([]byte, length)...)[:length]
		if err := c.Data(sqe.CID(), 0, b, pdu.FlagLast); err != nil {
			return err
		}
		return c.Respond(sqe.CID(), 0, 0)
	}
	o.seen = append(o.seen, sqe.Reservation())
	var keys nvme.ReservationKeys
	copy(keys[:], data)
	status := o.change(o, sqe, &keys)
	if status == hangUp {
		return fakepeer.ErrHangUp
	}
	if status == silence {
		return nil
	}
	return c.Respond(sqe.CID(), status, 0)
}

// These values are no statuses: they make the target hang up, or not answer.
const (
	hangUp  nvme.Status = 0xffff
	silence nvme.Status = 0xfffe
)

// start starts the target, and opens a device of it.
func (o *odd) start(t *testing.T) *tcp.Device {
	p := fakepeer.New(o.serve)
	p.Controller = func(c *nvme.IdentifyController) { c.SetONCS(c.ONCS() | nvme.ONCSReservation) }
	p.Namespace = func(n *nvme.IdentifyNamespace) { n.SetRESCAP(nvme.RESCAPAllTypes) }
	d := openDevice(t, p.Start(t), tcp.Options{HostID: oddHost, CommandTimeout: cmp.Or(o.silent, testTimeout), MaxTransfer: nvmf.MiB})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	require.True(t, d.Identity().Reservations)
	return d
}

// obey executes Reservation Register and Acquire as the specification says, for
// types of reservations with one holder.
func obey(o *odd, sqe *nvme.SQE, keys *nvme.ReservationKeys) nvme.Status {
	own := func(r nvme.Registrant) bool { return r.HostID == oddHost }
	s := &o.state
	switch c := sqe.Reservation(); {
	case sqe.Opcode() == nvme.IOReservationReg && c.Action == nvme.ReservationUnregister:
		s.Registrants = slices.DeleteFunc(s.Registrants, own)
	case sqe.Opcode() == nvme.IOReservationReg && c.Action == nvme.ReservationReplace:
		s.Registrants[slices.IndexFunc(s.Registrants, own)].Key = keys.Other()
	case sqe.Opcode() == nvme.IOReservationReg:
		s.Registrants = append(s.Registrants, nvme.Registrant{Key: keys.Other(), HostID: oddHost})
	default:
		if c.Action != nvme.ReservationAcquire {
			s.Registrants = slices.DeleteFunc(s.Registrants, func(r nvme.Registrant) bool {
				return !own(r) && (r.Key == keys.Other() || keys.Other() == 0)
			})
		}
		s.Registrants[slices.IndexFunc(s.Registrants, own)].Holder = true
		s.Type = c.Type
	}
	return 0
}

// stranger returns the registration of another host.
func stranger(i int, key uint64, holder bool) nvme.Registrant {
	return nvme.Registrant{CNTLID: 1, Key: key, Holder: holder, HostID: [16]byte{2, byte(i), byte(i >> 8)}}
}

func TestReserveOddTargets(t *testing.T) {
	many := func(n int) (list []nvme.Registrant) {
		for i := range n {
			list = append(list, stranger(i, uint64(10+i%7), i == 0))
		}
		return list
	}
	ours := func(key uint64, holder bool) nvme.Registrant {
		return nvme.Registrant{Key: key, Holder: holder, HostID: oddHost}
	}
	refuse := func(statuses ...nvme.Status) func(*odd, *nvme.SQE, *nvme.ReservationKeys) nvme.Status {
		n := 0
		return func(o *odd, sqe *nvme.SQE, keys *nvme.ReservationKeys) nvme.Status {
			if n++; n <= len(statuses) {
				return statuses[n-1]
			}
			return obey(o, sqe, keys)
		}
	}
	noAbort := func(o *odd, sqe *nvme.SQE, keys *nvme.ReservationKeys) nvme.Status {
		if sqe.Opcode() == nvme.IOReservationAcquire && sqe.Reservation().Action == nvme.ReservationPreemptAbort {
			return nvme.StatusInvalidField | nvme.DNR
		}
		return obey(o, sqe, keys)
	}
	slow := func(o *odd, sqe *nvme.SQE, keys *nvme.ReservationKeys) nvme.Status {
		status := obey(o, sqe, keys)
		if sqe.Reservation().Action == nvme.ReservationPreemptAbort {
			status = 0x21
		}
		return status
	}
	full := refuse(nvme.StatusInternalError)
	const tooLong = "an abort that takes too long"
	for _, x := range []struct {
		name   string
		kind   nvme.ReservationType
		before []nvme.Registrant
		change func(*odd, *nvme.SQE, *nvme.ReservationKeys) nvme.Status
		is     error
		says   string
	}{
		{"nobody", 0, nil, obey, nil, ""},
		{"one", nvme.WriteExclusive, many(1), obey, nil, ""},
		{"more than the first report holds", nvme.WriteExclusive, many(200), obey, nil, ""},
		{"more than a transfer holds", nvme.WriteExclusive, many(20000), obey, nvmf.ErrUnsupported, "20000 registrants"},
		{"another type", nvme.ExclusiveAccessRegistrantsOnly, many(3), obey, nil, ""},
		{"all registrants hold", nvme.WriteExclusiveAllRegistrants, many(9), obey, nil, ""},
		{"another type of ours", nvme.ExclusiveAccess, []nvme.Registrant{ours(100, true)}, obey, nil, ""},
		{"a lower key of ours", nvme.WriteExclusive, []nvme.Registrant{ours(99, true)}, obey, nil, ""},
		{"a higher key of ours", nvme.WriteExclusive, []nvme.Registrant{ours(101, true)}, obey, nvmf.ErrFenced, "0x65 already"},
		{"a higher key", nvme.WriteExclusive, []nvme.Registrant{ours(100, true), stranger(1, 101, false)}, obey, nvmf.ErrFenced, "0x65"},
		{"the same key", 0, []nvme.Registrant{stranger(1, 100, false)}, obey, nvmf.ErrFenced, "0x64"},
		{"no holder", nvme.WriteExclusive, []nvme.Registrant{ours(100, false)}, obey, nvmf.ErrUnsupported, "without a holder"},
		{"an unknown type", 0x80, []nvme.Registrant{stranger(1, 1, false)}, obey, nvmf.ErrUnsupported, "0x80 without a holder"},
		{"no Preempt and Abort", nvme.WriteExclusive, many(3), noAbort, nil, ""},
		{"some conflicts", nvme.WriteExclusive, many(3), refuse(nvme.StatusReservation, nvme.StatusReservation|nvme.DNR), nil, ""},
		{"no space", nvme.WriteExclusive, many(3), full, syscall.EIO, "beside 3 other hosts: Reservation Register"},
		{tooLong, nvme.WriteExclusive, many(1), slow, syscall.EIO, "Reservation Acquire: Command Interrupted"},
		{"reservations are gone", 0, nil, refuse(nvme.StatusInvalidOpcode | nvme.DNR), nvmf.ErrNoReservations, ""},
		{"says yes and does nothing", 0, nil, func(*odd, *nvme.SQE, *nvme.ReservationKeys) nvme.Status { return 0 }, nil, "after 1000 changes"},
		{"hangs up", 0, nil, refuse(hangUp), nvmf.ErrConnectionLost, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := &odd{state: nvme.ReservationStatus{Type: x.kind, Registrants: x.before}, change: x.change}
			if x.name == tooLong {
				o.silent = time.Second
			}
			d := o.start(t)
			err := d.Reserve(t.Context(), 100)
			if x.says != "" || x.is != nil {
				if x.is != nil {
					assert.ErrorIs(t, err, x.is)
				}
				assert.ErrorContains(t, err, x.says)
				return
			}
			require.NoError(t, err)
			want := nvme.ReservationStatus{Type: nvme.WriteExclusive, Registrants: []nvme.Registrant{ours(100, true)}}
			o.locked(func() {
				assert.Equal(t, want, o.state)
				last := o.seen[len(o.seen)-1]
				assert.Equal(t, nvme.ReservationCommand{Type: nvme.WriteExclusive}, last, "the last word waits for those before it")
				for _, c := range o.seen {
					assert.False(t, c.IgnoreKey)
					assert.Zero(t, c.Persist)
				}
			})
			require.NoError(t, d.Unreserve(t.Context(), 100))
			o.locked(func() { assert.Empty(t, o.state.Registrants) })
		})
	}
}

// TestReserveTimes checks that Reserve ends with its context when the target does
// not answer, or always answers Reservation Conflict.
func TestReserveTimes(t *testing.T) {
	for name, status := range map[string]nvme.Status{"silence": silence, "conflict": nvme.StatusReservation} {
		t.Run(name, func(t *testing.T) {
			o := &odd{change: func(*odd, *nvme.SQE, *nvme.ReservationKeys) nvme.Status { return status }}
			d := o.start(t)
			conflict := name == "conflict"
			reason := func(err error) bool { return nvmf.IsConflict(err) == conflict }
			err := patiently(t, reason, func(ctx context.Context) error { return d.Reserve(ctx, 1) })
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.True(t, reason(err), "the reason of the last attempt: %v", err)
			// The device is still usable.
			q, err := d.OpenQueue(t.Context(), 1)
			require.NoError(t, err)
			require.NoError(t, q.Close())
		})
	}
}

// TestReserveWithoutQueues checks the error of Reserve when the only I/O queue that
// the target grants is in use.
func TestReserveWithoutQueues(t *testing.T) {
	p := fakepeer.New(zeros)
	p.Admin = answer(nvme.AdminSetFeatures, 0, 0, uint64(nvme.NumberOfQueues(1, 1)))
	p.Controller = func(c *nvme.IdentifyController) { c.SetONCS(nvme.ONCSReservation) }
	p.Namespace = func(n *nvme.IdentifyNamespace) { n.SetRESCAP(nvme.RESCAPWriteExclusive) }
	d, _ := scripted(t, p, tcp.Options{})
	err := d.Reserve(t.Context(), 1)
	assert.ErrorIs(t, err, syscall.EBUSY)
	assert.ErrorContains(t, err, "reservations take an I/O queue of their own")
}

// TestNoReservations checks that Reserve fails when the controller or the namespace
// does not report the necessary support.
func TestNoReservations(t *testing.T) {
	for _, x := range []struct {
		oncs   uint16
		rescap uint8
	}{{0, 0}, {nvme.ONCSReservation, 0}, {0, nvme.RESCAPAllTypes}, {nvme.ONCSReservation, nvme.RESCAPAllTypes &^ nvme.RESCAPWriteExclusive}} {
		p := fakepeer.New(zeros)
		p.Controller = func(c *nvme.IdentifyController) { c.SetONCS(x.oncs) }
		p.Namespace = func(n *nvme.IdentifyNamespace) { n.SetRESCAP(x.rescap) }
		d, _ := scripted(t, p, tcp.Options{})
		assert.False(t, d.Identity().Reservations)
		assert.ErrorIs(t, d.Reserve(t.Context(), 1), nvmf.ErrNoReservations)
		assert.ErrorIs(t, d.Unreserve(t.Context(), 1), nvmf.ErrNoReservations)
	}
	assert.ErrorContains(t, (&odd{change: obey}).start(t).Reserve(t.Context(), 0), "0 is no key")
}
