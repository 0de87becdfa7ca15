package target_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/busy"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// openQueue opens a queue to a namespace of the target.
func openQueue(t testing.TB, addr net.Addr, nsid int) nvmf.Queue {
	d, err := tcp.Open(context.Background(), id(t, addr, nsid), tcp.Options{})
	require.NoError(t, err)
	q, err := d.OpenQueue(context.Background(), 8)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, q.Close()); assert.NoError(t, d.Close()) })
	return q
}

// move executes n commands of 1 MiB, all in flight at the same time.
func move(q nvmf.Queue, op nvmf.Opcode, n int) error {
	var cmds []*nvmf.Command
	for range n {
		cmds = append(cmds, &nvmf.Command{Opcode: op, Blocks: 256, Data: [][]byte{make([]byte, nvmf.MiB)}})
	}
	q.Submit(cmds)
	return q.Wait(cmds)
}

// TestRate checks that the limit of a namespace applies to the reads and writes of two
// hosts together. It does not delay commands to another namespace. Connections that wait
// for the limit continue when it is removed.
func TestRate(t *testing.T) {
	const rate = 16 * nvmf.MiB
	c := one(memory(t, 16*nvmf.MiB, 4096))
	c.Subsystems[0].Namespaces = append(c.Subsystems[0].Namespaces,
		target.Namespace{Backing: memory(t, 16*nvmf.MiB, 4096), Rate: rate})
	tgt, addr := serve(t, c)
	start := time.Now()
	var group sync.WaitGroup
	for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
		q := openQueue(t, addr, 2)
		group.Go(func() { assert.NoError(t, move(q, op, 16)) })
	}
	group.Wait()
	// The first command of each connection is executed before the connection waits.
	assert.Greater(t, time.Since(start), 1760*time.Millisecond, "32 MiB at 16 MiB/s")

	require.NoError(t, tgt.SetRate(testNQN, 2, target.MinRate))
	free, q := openQueue(t, addr, 1), openQueue(t, addr, 2)
	const minutes = 120 // MiB, which take two minutes at 1 MiB/s
	done := make(chan error, 1)
	start = time.Now()
	go func() { done <- move(q, nvmf.Read, minutes) }()
	require.NoError(t, move(free, nvmf.Write, 8))
	assert.Empty(t, done)
	require.NoError(t, tgt.SetRate(testNQN, 2, 0))
	require.NoError(t, <-done)
	assert.Less(t, time.Since(start), hang)

	require.ErrorIs(t, tgt.SetRate(testNQN, 2, target.MinRate-1), nvmf.ErrUnsupported)
	require.ErrorIs(t, tgt.SetRate(testNQN, 9, 0), nvmf.ErrNoNamespace)
	require.ErrorIs(t, tgt.SetRate(testNQN+"x", 2, 0), nvmf.ErrNoSubsystem)
}

// TestRateAndRemoval checks that a connection that waits for a limit delays neither the
// removal of the namespace nor that of the subsystem.
func TestRateAndRemoval(t *testing.T) {
	c := one(memory(t, 16*nvmf.MiB, 4096))
	c.Subsystems[0].Namespaces[0].Rate = target.MinRate
	tgt, addr := serve(t, c)
	_, q := io2(t, addr, 0)
	for range 16 {
		q.capsule(q.rw(nvme.IORead, 0, 256, 1<<20), nil)
	}
	_, _, data, err := q.next() // the first one is answered at once
	require.NoError(t, err)
	require.NotEmpty(t, data)
	clock := busy.Start(t)
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	require.NoError(t, tgt.RemoveNamespace(ctx, testNQN, 1))
	require.NoError(t, tgt.RemoveSubsystem(testNQN))
	assert.Less(t, clock.Now(), 10*time.Second, "16 MiB at 1 MiB/s would be 15 s")
}

// TestRateAndReconnection checks that a new connection has to wait for the transfers of
// earlier connections to the same namespace, but not for those to other namespaces.
func TestRateAndReconnection(t *testing.T) {
	c := one(memory(t, 4*nvmf.MiB, 4096))
	c.Subsystems[0].Namespaces[0].Rate = 10 * nvmf.MiB
	_, addr := serve(t, c)
	start := time.Now()
	for range 6 {
		admin, q := io2(t, addr, 0)
		_, status := q.readBlocks(0, 256, 1<<20)
		require.Zero(t, status)
		require.NoError(t, errors.Join(q.c.Close(), admin.c.Close()))
	}
	assert.Greater(t, time.Since(start), 450*time.Millisecond, "of 6 MiB at 10 MiB/s the last one is not waited for")
	for !waitsForDebt(t) {
		t.Log("the debt was over before it was looked at: a busy machine")
	}
}

// waitsForDebt uses up the limit of a namespace for some seconds. Then it checks that a new
// connection waits on this namespace, and not on another one. It returns false if this took
// so long that the wait may have been over.
func waitsForDebt(t *testing.T) bool {
	const debt = 6 * time.Second
	c := one(memory(t, 4*nvmf.MiB, 4096))
	c.Subsystems[0].Namespaces[0].Rate = target.MinRate
	c.Subsystems[0].Namespaces = append(c.Subsystems[0].Namespaces, target.Namespace{Backing: memory(t, nvmf.MiB, 4096)})
	tgt, addr := serve(t, c)
	var debtors []*client
	for range debt / time.Second {
		_, q := io2(t, addr, 0)
		_, status := q.readBlocks(0, 1, 4096) // attaches the queue to the namespace
		require.Zero(t, status)
		debtors = append(debtors, q)
	}
	begin := time.Now()
	for _, q := range debtors { // the first read takes a second of the limit, and the other one waits
		for range 2 {
			q.capsule(q.rw(nvme.IORead, 0, 256, 1<<20), nil)
		}
		_, _, _, err := q.next()
		require.NoError(t, err)
	}
	_, waits := io2(t, addr, 0)
	waits.capsule(waits.rw(nvme.IORead, 0, 1, 4096), nil)
	_, free := io2(t, addr, 0)
	s := new(nvme.SQE)
	s.Reset(nvme.IOWrite, 100, 2)
	s.SetRange(0, 1, 0)
	free.capsule(s, make([]byte, 4096))
	assert.Zero(t, free.response().Status())
	if time.Since(begin) > debt/2 {
		return false
	}
	waits.silent(50 * time.Millisecond)
	// A connection that waits does not delay the removal of the namespace.
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	require.NoError(t, tgt.RemoveNamespace(ctx, testNQN, 1))
	if time.Since(begin) > debt {
		return false
	}
	x, b := waits.read()
	require.Equal(t, pdu.TypeCapsuleResp, x.Type)
	assert.Equal(t, nvme.StatusInvalidNamespace|nvme.DNR, pdu.CQEOf(b).Status())
	return true
}

// TestListedOnly checks that a subsystem with Listed and an empty list admits no host.
func TestListedOnly(t *testing.T) {
	c := one(memory(t, nvmf.MiB, 4096))
	c.Subsystems[0].Listed = true
	tgt, addr := serve(t, c)
	o := tcp.Options{HostNQN: testHost}
	_, err := tcp.Open(context.Background(), id(t, addr, 1), o)
	require.ErrorIs(t, err, nvmf.ErrHostRefused)
	entries, err := tcp.Discover(context.Background(), id(t, addr, 1), o)
	require.NoError(t, err)
	assert.Empty(t, entries)
	require.NoError(t, tgt.SetHosts(testNQN, []string{testHost}))
	h := dial(t, addr, 0)
	h.admin()
	require.NoError(t, tgt.SetHosts(testNQN, nil))
	h.ends(0)
}
