package tcp_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

// zeros completes every command successfully. Reads return zeros.
func zeros(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
	if sqe.Opcode() == nvme.IORead {
		return c.Data(sqe.CID(), 0, make([]byte, 512*sqe.NLB()), pdu.FlagLast|pdu.FlagSuccess)
	}
	return c.Respond(sqe.CID(), 0, 0)
}

var flush = &nvmf.Command{Opcode: nvmf.Flush}

// TestResetShared checks that queues that have lost their connections together
// reconnect within one new association.
func TestResetShared(t *testing.T) {
	p := fakepeer.New(zeros)
	d, q := scripted(t, p, tcp.Options{})
	queues := []nvmf.Queue{q}
	for range 3 {
		q, err := d.OpenQueue(t.Context(), 4)
		require.NoError(t, err)
		defer q.Close()
		queues = append(queues, q)
	}
	require.Equal(t, 5, p.Connections(), "admin and four queues")
	p.Cut()
	var wg sync.WaitGroup
	for _, q := range queues {
		wg.Go(func() {
			c := *flush
			assert.ErrorIs(t, do(q, &c), nvmf.ErrConnectionLost)
			assert.NoError(t, q.Reset(context.Background()))
			assert.NoError(t, do(q, &c))
			assert.NoError(t, q.Reset(context.Background()), "of a healthy queue")
			assert.EqualValues(t, 1, q.(*tcp.Queue).Stats().Reconnects)
		})
	}
	wg.Wait()
	assert.Equal(t, 10, p.Connections(), "five new ones")
}

// TestResetOneQueue checks that a queue that alone has lost its connection
// reconnects within the same association, with a queue id that was not used before.
func TestResetOneQueue(t *testing.T) {
	qids := make(chan uint16, 2)
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error {
		if qids <- c.QID; c.QID == 1 {
			return fakepeer.ErrHangUp
		}
		return zeros(c, sqe, data)
	})
	_, q := scripted(t, p, tcp.Options{})
	require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	require.NoError(t, q.Reset(t.Context()))
	require.NoError(t, do(q, read(0, make([]byte, 512))))
	assert.Equal(t, []uint16{1, 2}, []uint16{<-qids, <-qids})
	assert.Equal(t, 3, p.Connections())
}

// TestResetChanged checks that Reset fails at once when another namespace has the
// same name.
func TestResetChanged(t *testing.T) {
	for name, change := range map[string]func(*nvme.IdentifyNamespace){
		"UUID":     func(n *nvme.IdentifyNamespace) { n.SetNGUID([16]byte{2}) },
		"capacity": func(n *nvme.IdentifyNamespace) { n.SetSize(fakepeer.Blocks - 1) },
		"format":   func(n *nvme.IdentifyNamespace) { n.SetLBAFormat(12) },
	} {
		t.Run(name, func(t *testing.T) {
			var changed atomic.Bool
			p := fakepeer.New(zeros)
			p.Descriptors = nil
			p.Namespace = func(n *nvme.IdentifyNamespace) {
				if changed.Load() {
					change(n)
				}
			}
			_, q := scripted(t, p, tcp.Options{})
			changed.Store(true)
			p.Cut()
			require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
			require.ErrorIs(t, q.Reset(t.Context()), nvmf.ErrNamespaceChanged)
			changed.Store(false)
			require.NoError(t, q.Reset(t.Context()), "it is back")
			require.NoError(t, do(q, read(0, make([]byte, 512))))
		})
	}
}

// TestResetTries checks that Reset retries while the target refuses, until its
// context ends.
func TestResetTries(t *testing.T) {
	var refuse atomic.Int32
	p := fakepeer.New(zeros)
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() == nvme.FabricsConnect && refuse.Add(-1) >= 0 {
			return true, c.Respond(sqe.CID(), nvme.StatusConnectInvalidParameters|nvme.DNR, nvme.ConnectInvalid(256, true))
		}
		return false, nil
	}
	_, q := scripted(t, p, tcp.Options{})
	refuse.Store(3)
	p.Cut()
	require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	require.NoError(t, q.Reset(t.Context()))

	refuse.Store(1 << 30)
	p.Cut()
	require.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	err := patiently(t, func(err error) bool { return errors.Is(err, nvmf.ErrNoSubsystem) }, q.Reset)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorIs(t, err, nvmf.ErrNoSubsystem, "the reason of the last attempt")
}

// TestCloseInFlight checks that Close ends the commands in flight, and those that
// wait for a place in the queue.
func TestCloseInFlight(t *testing.T) {
	p := fakepeer.New(func(*fakepeer.Conn, *nvme.SQE, []byte) error { return nil })
	d, _ := scripted(t, p, tcp.Options{})
	q, err := d.OpenQueue(t.Context(), 2)
	require.NoError(t, err)
	var cmds []*nvmf.Command
	for i := range 5 {
		cmds = append(cmds, read(nvmf.LBA(i), make([]byte, 512)))
	}
	q.Submit(cmds)
	assert.False(t, cmds[4].Done())
	require.NoError(t, q.Close())
	for _, c := range cmds {
		assert.True(t, c.Done())
		assert.ErrorIs(t, c.Err, nvmf.ErrConnectionLost)
	}
	c := *flush
	assert.ErrorIs(t, do(q, &c), nvmf.ErrClosed)
}

// TestDeviceClosed checks that closing a device ends its queues.
func TestDeviceClosed(t *testing.T) {
	p := fakepeer.New(zeros)
	d, q := scripted(t, p, tcp.Options{})
	require.NoError(t, d.Close())
	c := *flush
	assert.ErrorIs(t, do(q, &c), nvmf.ErrConnectionLost)
	assert.ErrorIs(t, q.Reset(t.Context()), nvmf.ErrClosed)
}

// TestNoAllocation checks that commands allocate nothing once a queue is warm.
func TestNoAllocation(t *testing.T) {
	id := startTarget(t)
	for _, o := range []tcp.Options{{}, {HeaderDigest: true, DataDigest: true}} {
		d := openDevice(t, id, o)
		q, err := d.OpenQueue(t.Context(), 4)
		require.NoError(t, err)
		var cmds []*nvmf.Command
		for i := range 12 {
			op := []nvmf.Opcode{nvmf.Write, nvmf.Read, nvmf.Flush, nvmf.Deallocate}[i%4]
			c := &nvmf.Command{Opcode: op, LBA: nvmf.LBA(100 * i), Blocks: 64}
			if op == nvmf.Write || op == nvmf.Read {
				c.Data = [][]byte{make([]byte, 100), make([]byte, 64*4096-100)}
			}
			cmds = append(cmds, c)
		}
		assert.Zero(t, testing.AllocsPerRun(50, func() {
			q.Submit(cmds)
			if err := q.Wait(cmds); err != nil {
				t.Fatal(err)
			}
		}))
		require.NoError(t, q.Close())
		require.NoError(t, d.Close())
	}
}

// TestQueueIDs checks that the id of an open queue is not used for another queue,
// and that the error says so when all granted queues are in use.
func TestQueueIDs(t *testing.T) {
	p := fakepeer.New(zeros)
	p.Admin = answer(nvme.AdminSetFeatures, 0, 0, uint64(nvme.NumberOfQueues(3, 2)))
	d, first := scripted(t, p, tcp.Options{}) // id 1
	second, err := d.OpenQueue(t.Context(), 2)
	require.NoError(t, err)
	_, err = d.OpenQueue(t.Context(), 2)
	assert.ErrorContains(t, err, "the target grants only 2 I/O queues")
	require.NoError(t, second.Close())
	for range 5 { // always with id 2
		second, err = d.OpenQueue(t.Context(), 2)
		require.NoError(t, err)
		require.NoError(t, second.Close())
	}
	require.NoError(t, do(first, read(0, make([]byte, 512))))
}

// TestQueueIDHeld checks that OpenQueue retries while the target still considers the
// queue id in use.
func TestQueueIDHeld(t *testing.T) {
	var held atomic.Int32
	held.Store(3)
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error { return zeros(c, sqe, data) })
	p.Connect = func(qid uint16) nvme.Status {
		if qid > 0 && held.Add(-1) >= 0 {
			return nvme.StatusCommandSequence | nvme.DNR
		}
		return 0
	}
	_, q := scripted(t, p, tcp.Options{})
	require.NoError(t, do(q, read(0, make([]byte, 512))))
}

// TestAssociationGone checks OpenQueue when the target has removed the controller,
// as after the loss of the admin connection. The error is that of a lost
// connection, not that of a refusal.
func TestAssociationGone(t *testing.T) {
	p := fakepeer.New(zeros)
	p.Connect = func(qid uint16) nvme.Status {
		if qid > 1 {
			return nvme.StatusConnectInvalidParameters | nvme.DNR
		}
		return 0
	}
	d, _ := scripted(t, p, tcp.Options{})
	_, err := d.OpenQueue(t.Context(), 2)
	require.ErrorIs(t, err, nvmf.ErrConnectionLost)
	require.ErrorIs(t, err, nvmf.ErrUnreachable)
}
