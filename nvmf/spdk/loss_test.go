//go:build spdk

package spdk_test

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/busy"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp/fakepeer"
)

func do(q nvmf.Queue, cmds ...*nvmf.Command) error {
	q.Submit(cmds)
	return q.Wait(cmds)
}

func read(lba nvmf.LBA, b []byte) *nvmf.Command {
	return &nvmf.Command{Opcode: nvmf.Read, LBA: lba, Blocks: nvmf.LBA(len(b) / 512), Data: [][]byte{b}}
}

func openQueue(t testing.TB, d nvmf.Device, depth int) nvmf.Queue {
	q, err := d.OpenQueue(t.Context(), depth)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, q.Close()) })
	return q
}

// TestReset checks that all queues notice the end of the target, that they reconnect after
// its restart, and that they read the data written before.
func TestReset(t *testing.T) {
	r := embedded(t, 512, 0)
	d := openDevice(t, r.id(t), spdk.Options{})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	want := bytes.Repeat([]byte("durable!"), 64)
	var queues []nvmf.Queue
	for range 3 {
		queues = append(queues, openQueue(t, d, 8))
	}
	for round := range 3 {
		w := read(nvmf.LBA(round), want)
		w.Opcode = nvmf.Write
		require.NoError(t, do(queues[round], w))
		r.stop(t)
		var group sync.WaitGroup
		for _, q := range queues {
			group.Go(func() {
				c := read(nvmf.LBA(round), make([]byte, 512))
				assert.ErrorIs(t, do(q, c), nvmf.ErrConnectionLost)
				assert.ErrorIs(t, do(q, c), nvmf.ErrConnectionLost, "before Reset")
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if assert.NoError(t, q.Reset(ctx)) && assert.NoError(t, do(q, c)) {
					assert.Equal(t, want, c.Data[0])
				}
				assert.NoError(t, q.Reset(ctx), "Reset of a connected queue")
			})
		}
		time.Sleep(50 * time.Millisecond)
		r.start(t)
		group.Wait()
	}
}

// TestResetEnds checks that Reset ends with its context when the target is not reachable.
func TestResetEnds(t *testing.T) {
	r := embedded(t, 512, 0)
	d := openDevice(t, r.id(t), spdk.Options{})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 1)
	r.stop(t)
	require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	clock := busy.Start(t)
	err := q.Reset(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorIs(t, err, nvmf.ErrUnreachable)
	assert.Less(t, clock.Now(), 2*time.Second)
	r.start(t)
	require.NoError(t, q.Reset(t.Context()))
	require.NoError(t, do(q, read(0, make([]byte, 512))))
}

// TestResetChanged checks that Reset fails when another namespace has the same name.
func TestResetChanged(t *testing.T) {
	r := embedded(t, 512, 0)
	d := openDevice(t, r.id(t), spdk.Options{})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 1)
	r.stop(t)
	was := r.backing
	var err error
	r.backing, err = target.NewMemory(32*nvmf.MiB, 512)
	require.NoError(t, err)
	r.start(t)
	require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	require.ErrorIs(t, q.Reset(t.Context()), nvmf.ErrNamespaceChanged)
	r.stop(t)
	assert.NoError(t, r.backing.Close())
	r.backing = was
	r.start(t)
	require.NoError(t, q.Reset(t.Context()), "after the namespace was restored")
}

// scripted starts a target that answers I/O commands by the function answer.
func scripted(t *testing.T, answer func(c *fakepeer.Conn, sqe *nvme.SQE) error) nvmf.TransportID {
	return attended(t, answer, func(*nvme.SQE) bool { return false })
}

// attended is like scripted. The target does not answer admin commands for which
// swallow returns true.
func attended(t *testing.T, answer func(c *fakepeer.Conn, sqe *nvme.SQE) error, swallow func(*nvme.SQE) bool) nvmf.TransportID {
	return playing(answer, swallow).Start(t)
}

// playing returns the peer for attended, which is not started yet.
func playing(answer func(c *fakepeer.Conn, sqe *nvme.SQE) error, swallow func(*nvme.SQE) bool) *fakepeer.Peer {
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error { return answer(c, sqe) })
	// SPDK expects a controller to be disabled before it enables it. It also sends
	// Asynchronous Event Requests, which are not answered, and asks for the active namespaces.
	var enabled sync.Map // by connection
	p.Controller = func(c *nvme.IdentifyController) { c.SetNN(1) }
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
		if swallow(sqe) {
			return true, nil
		}
		if sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() != nvme.FabricsConnect {
			switch offset, _, value := sqe.Property(); offset {
			case nvme.PropertyCC:
				enabled.Store(c, value&1)
			case nvme.PropertyCSTS:
				ready, _ := enabled.LoadOrStore(c, uint64(0))
				return true, c.Respond(sqe.CID(), 0, ready.(uint64))
			}
		}
		if sqe.Opcode() == nvme.AdminIdentify && sqe.CNS() == nvme.CNSActiveNamespaces {
			var page [nvme.IdentifySize]byte
			nvme.PutActiveNamespaces(&page, []uint32{1}, 0)
			return true, c.Data(sqe.CID(), 0, page[:], pdu.FlagLast|pdu.FlagSuccess)
		}
		return sqe.Opcode() == nvme.AdminAsyncEvent, nil
	}
	return p
}

// TestHurry checks that later commands to a controller have the whole connection time-out,
// even if Open had little time.
func TestHurry(t *testing.T) {
	const little = time.Second
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	p.Connect = func(qid uint16) nvme.Status {
		if qid != 0 {
			time.Sleep(2 * little)
		}
		return 0
	}
	ctx, cancel := context.WithTimeout(t.Context(), little)
	defer cancel()
	d, err := spdk.Open(ctx, p.Start(t), spdk.Options{KeepAlive: -1, ConnectTimeout: 10 * little})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	openQueue(t, d, 1)
}

// TestNoHurry checks that OpenQueue ends with its context.
func TestNoHurry(t *testing.T) {
	const little = 200 * time.Millisecond
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	p.Connect = func(qid uint16) nvme.Status {
		if qid != 0 {
			time.Sleep(10 * little)
		}
		return 0
	}
	d, err := spdk.Open(t.Context(), p.Start(t), spdk.Options{KeepAlive: -1})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), little)
	defer cancel()
	clock := busy.Start(t)
	_, err = d.OpenQueue(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, clock.Now(), 5*little)
}

// TestTimeout checks that the connection counts as lost when the target has not answered for
// the command time-out. Commands in flight and waiting commands end, and the queue can be reset.
func TestTimeout(t *testing.T) {
	const timeout = 200 * time.Millisecond
	id := scripted(t, func(*fakepeer.Conn, *nvme.SQE) error { return nil })
	d := openDevice(t, id, spdk.Options{CommandTimeout: timeout, ConnectTimeout: time.Second, KeepAlive: -1})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 2)
	var cmds []*nvmf.Command
	for i := range 5 {
		cmds = append(cmds, read(nvmf.LBA(i), make([]byte, 512)))
	}
	start := time.Now()
	err := do(q, cmds...)
	assert.ErrorIs(t, err, nvmf.ErrConnectionLost)
	assert.ErrorIs(t, err, unix.ETIMEDOUT)
	assert.InDelta(t, timeout, time.Since(start), float64(timeout))
	for _, c := range cmds {
		assert.True(t, c.Done())
		assert.ErrorIs(t, c.Err, nvmf.ErrConnectionLost)
	}
	assert.NoError(t, q.Reset(t.Context()))
}

// shutdown reports whether a command asks for a shutdown of the controller.
func shutdown(sqe *nvme.SQE) bool {
	if sqe.Opcode() != nvme.AdminFabrics || sqe.FabricsType() != nvme.FabricsPropertySet {
		return false
	}
	offset, _, value := sqe.Property()
	return offset == nvme.PropertyCC && value&nvme.CCShutdown != 0
}

// TestSilentClose checks that Close ends soon when the target does not answer the shutdown.
func TestSilentClose(t *testing.T) {
	id := attended(t, func(*fakepeer.Conn, *nvme.SQE) error { return nil }, shutdown)
	d := openDevice(t, id, spdk.Options{KeepAlive: -1})
	clock := busy.Start(t)
	require.NoError(t, d.Close())
	assert.Less(t, clock.Now(), 3*time.Second)
}

// TestSilentAdmin checks that Reset and Close end soon when the target does not answer
// anything any more.
func TestSilentAdmin(t *testing.T) {
	var silent atomic.Bool
	id := attended(t, func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return silent.Load() })
	const timeout = 300 * time.Millisecond
	d := openDevice(t, id, spdk.Options{CommandTimeout: timeout, ConnectTimeout: timeout, KeepAlive: -1})
	q := openQueue(t, d, 1)
	silent.Store(true)
	require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	clock := busy.Start(t)
	assert.ErrorIs(t, q.Reset(ctx), context.DeadlineExceeded)
	assert.NoError(t, d.Close())
	assert.Less(t, clock.Now(), 10*timeout)
}

// TestNoNotices checks that the driver asks for no notices about namespaces. SPDK would
// otherwise update its namespaces while queues use them.
func TestNoNotices(t *testing.T) {
	var wanted atomic.Uint32
	wanted.Store(^uint32(0))
	id := attended(t, func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(sqe *nvme.SQE) bool {
		if sqe.Opcode() == nvme.AdminSetFeatures && sqe.CDW(10) == nvme.FeatureAsyncEventConfig {
			wanted.Store(sqe.CDW(11))
		}
		return false
	})
	require.NoError(t, openDevice(t, id, spdk.Options{KeepAlive: -1}).Close())
	assert.Zero(t, wanted.Load())
}

// TestCongestion checks that the driver sets the congestion control of SPDK's sockets. The
// default of the system may cost half the bandwidth.
func TestCongestion(t *testing.T) {
	r := embedded(t, 512, 0)
	_, port, err := net.SplitHostPort(r.addr)
	require.NoError(t, err)
	id := r.id(t)
	of := func(o spdk.Options) (names []string) {
		d := openDevice(t, id, o)
		defer d.Close()
		q, err := d.OpenQueue(t.Context(), 1)
		require.NoError(t, err)
		defer q.Close()
		for fd := range 256 {
			peer, err := unix.Getpeername(fd)
			a, ok := peer.(*unix.SockaddrInet4)
			if err != nil || !ok || strconv.Itoa(a.Port) != port {
				continue
			}
			name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			require.NoError(t, err)
			names = append(names, name)
		}
		return names
	}
	assert.Equal(t, []string{"reno", "reno"}, of(spdk.Options{CongestionControl: "reno"}), "admin and I/O")
	id.Address = "localhost"
	assert.Equal(t, []string{"reno", "reno"}, of(spdk.Options{CongestionControl: "reno"}), "by name")
	assert.Subset(t, []string{"cubic", "reno"}, of(spdk.Options{}))
	_, err = spdk.Open(t.Context(), r.id(t), spdk.Options{CongestionControl: "none such"})
	assert.ErrorContains(t, err, "none such")
}

// TestAgain checks that the queue retries commands with a transient status, and no others.
func TestAgain(t *testing.T) {
	var seen, refuse atomic.Uint32
	id := scripted(t, func(c *fakepeer.Conn, sqe *nvme.SQE) error {
		if seen.Add(1) <= 3 {
			return c.Respond(sqe.CID(), nvme.Status(refuse.Load()), 0)
		}
		return c.Data(sqe.CID(), 0, make([]byte, 512*sqe.NLB()), pdu.FlagLast|pdu.FlagSuccess)
	})
	d := openDevice(t, id, spdk.Options{KeepAlive: -1})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 2)
	refuse.Store(uint32(nvme.StatusNamespaceNotReady))
	require.NoError(t, do(q, read(1, make([]byte, 512))))
	assert.EqualValues(t, 4, seen.Load())
	seen.Store(0)
	refuse.Store(uint32(nvme.StatusNamespaceNotReady | nvme.DNR))
	var se *nvmf.StatusError
	require.ErrorAs(t, do(q, read(1, make([]byte, 512))), &se)
	assert.EqualValues(t, 1, seen.Load())
	assert.True(t, se.DNR)
}

// TestKeepAlive checks that an idle association lives longer than its keep-alive time-out.
func TestKeepAlive(t *testing.T) {
	r := embedded(t, 512, 0)
	d := openDevice(t, r.id(t), spdk.Options{KeepAlive: 2 * time.Second})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 1)
	require.NoError(t, do(q, read(0, make([]byte, 512))))
	time.Sleep(5 * time.Second)
	require.NoError(t, do(q, read(0, make([]byte, 512))))
}

// TestAffinity checks that SPDK's initialization does not change the CPU affinity of threads.
func TestAffinity(t *testing.T) {
	var before, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	d := openDevice(t, embedded(t, 512, 0).id(t), spdk.Options{})
	require.NoError(t, d.Close())
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	assert.Equal(t, before, after)
}

// TestOnlyTCP checks that a process that has initialized SPDK without huge pages, for TCP,
// cannot open PCIe devices.
func TestOnlyTCP(t *testing.T) {
	d := openDevice(t, embedded(t, 512, 0).id(t), spdk.Options{})
	require.NoError(t, d.Close())
	_, err := spdk.Open(t.Context(), nvmf.TransportID{Transport: nvmf.PCIe, Address: "0000:00:1f.0", NSID: 1}, spdk.Options{})
	assert.ErrorIs(t, err, nvmf.ErrUnsupported)
	assert.ErrorContains(t, err, "huge pages")
}

// TestManyDevices checks that many devices of one subsystem can be open at the same time, each
// with a controller of its own.
func TestManyDevices(t *testing.T) {
	id := embedded(t, 512, 0).id(t)
	o := spdk.Options{HostID: uuid.New()}
	for range 12 {
		d := openDevice(t, id, o)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		require.NoError(t, do(openQueue(t, d, 2), read(0, make([]byte, 512))))
	}
}

// TestNoMoreQueues checks the error of OpenQueue when the target grants no more queues.
func TestNoMoreQueues(t *testing.T) {
	id := scripted(t, func(*fakepeer.Conn, *nvme.SQE) error { return nil })
	d := openDevice(t, id, spdk.Options{KeepAlive: -1})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	for range 8 {
		openQueue(t, d, 1)
	}
	_, err := d.OpenQueue(t.Context(), 1)
	assert.ErrorIs(t, err, unix.EBUSY)
}

// TestMount checks a file system over the driver. The target is restarted between two writes,
// and a second mount reads the data.
func TestMount(t *testing.T) {
	r := embedded(t, 4096, 0)
	d := openDevice(t, r.id(t), spdk.Options{})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	segment := microfs.Segment{Length: d.Identity().Capacity()}
	require.NoError(t, microfs.Format(t.Context(), d, segment, microfs.FormatOptions{}))
	fs, err := microfs.Mount(t.Context(), d, segment, microfs.Options{})
	require.NoError(t, err)
	f, err := fs.Open(microfs.RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	want := bytes.Repeat([]byte("0123456789abcde\n"), 1<<18)
	half := len(want) / 2
	_, err = f.WriteAt([][]byte{want[:half]}, 0)
	require.NoError(t, err)
	r.stop(t)
	r.start(t)
	_, err = f.WriteAt([][]byte{want[half:]}, int64(half))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unmount())

	fs, err = microfs.Mount(t.Context(), d, segment, microfs.Options{ReadOnly: true})
	require.NoError(t, err)
	f, err = fs.Open(microfs.RootIno, "f", unix.O_RDONLY, 0)
	require.NoError(t, err)
	got := make([]byte, len(want))
	_, err = f.ReadAt([][]byte{got}, 0)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got))
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unmount())
}
