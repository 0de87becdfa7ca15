package target_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
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

// move runs n commands of 1 MiB, all in flight together.
func move(q nvmf.Queue, op nvmf.Opcode, n int) error {
	var cmds []*nvmf.Command
	for range n {
		cmds = append(cmds, &nvmf.Command{Opcode: op, Blocks: 256, Data: [][]byte{make([]byte, nvmf.MiB)}})
	}
	q.Submit(cmds)
	return q.Wait(cmds)
}

// TestRate measures what two hosts get out of one limit together, in reads and
// writes, and that it holds up nobody on another namespace.
func TestRate(t *testing.T) {
	const rate = 64 * nvmf.MiB
	c := one(memory(t, 16*nvmf.MiB, 4096))
	c.Subsystems[0].Namespaces = append(c.Subsystems[0].Namespaces,
		target.Namespace{Backing: memory(t, 16*nvmf.MiB, 4096), Rate: rate})
	tgt, addr := serve(t, c)
	free := openQueue(t, addr, 1)
	start := time.Now()
	var group sync.WaitGroup
	for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
		q := openQueue(t, addr, 2)
		group.Go(func() { assert.NoError(t, move(q, op, 16)) })
	}
	require.NoError(t, move(free, nvmf.Write, 8))
	unlimited := time.Since(start)
	group.Wait()
	took := time.Since(start)
	// Two commands are through before their connections wait for them.
	assert.Greater(t, took, 440*time.Millisecond, "32 MiB at 64 MiB/s")
	assert.Less(t, unlimited, took/2)

	// A limit that goes wakes up who waits for it.
	require.NoError(t, tgt.SetRate(testNQN, 2, target.MinRate))
	start = time.Now()
	q := openQueue(t, addr, 2)
	time.AfterFunc(50*time.Millisecond, func() { assert.NoError(t, tgt.SetRate(testNQN, 2, 0)) })
	require.NoError(t, move(q, nvmf.Read, 16))
	assert.Less(t, time.Since(start), 5*time.Second, "16 MiB at 1 MiB/s would be 15 s")

	require.ErrorIs(t, tgt.SetRate(testNQN, 2, target.MinRate-1), nvmf.ErrUnsupported)
	require.ErrorIs(t, tgt.SetRate(testNQN, 9, 0), nvmf.ErrNoNamespace)
	require.ErrorIs(t, tgt.SetRate(testNQN+"x", 2, 0), nvmf.ErrNoSubsystem)
}

// TestRateAndRemoval: a host that waits for its limit does not hold up the
// removal of the namespace, nor the end of the target.
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
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, tgt.RemoveNamespace(ctx, testNQN, 1))
	require.NoError(t, tgt.RemoveSubsystem(testNQN))
	assert.Less(t, time.Since(start), 3*time.Second, "16 MiB at 1 MiB/s would be 15 s")
}

// TestListedOnly: with Listed an empty list lets nobody in.
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
