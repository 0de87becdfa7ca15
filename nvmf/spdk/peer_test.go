//go:build spdk

package spdk_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/spdk"
)

// takeEnv and bringEnv name shell commands that remove the namespace of peerEnv and restore
// it. Without bringEnv the namespace is gone for good, as a drive that was pulled.
const (
	takeEnv  = "NVMECR_TEST_SPDK_TAKE"
	bringEnv = "NVMECR_TEST_SPDK_BRING"
)

func shell(t *testing.T, command string) {
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// A worker writes and reads the same blocks repeatedly.
type worker struct {
	d    nvmf.Device
	q    nvmf.Queue
	lba  nvmf.LBA
	data []byte
}

// busy writes and reads until a command fails, and returns the error.
func (w *worker) busy() error {
	for {
		for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
			if err := do(w.q, transfer(op, w.d, w.lba, w.data)); err != nil {
				return err
			}
		}
	}
}

// transfer returns a read or write command for all of b.
func transfer(op nvmf.Opcode, d nvmf.Device, lba nvmf.LBA, b []byte) *nvmf.Command {
	return &nvmf.Command{Opcode: op, LBA: lba, Blocks: nvmf.LBA(len(b)) / nvmf.LBA(d.Identity().LBASize), Data: [][]byte{b}}
}

// TestPeerLoss removes a namespace while commands are in flight. The commands fail soon. If
// the namespace is restored, Reset finds it again, and otherwise later commands fail, too.
func TestPeerLoss(t *testing.T) {
	id := peer(t)
	take, bring := os.Getenv(takeEnv), os.Getenv(bringEnv)
	if take == "" {
		t.Skipf("%s is not set to a command that takes the namespace away", takeEnv)
	}
	const patience = 15 * time.Second
	d := openDevice(t, id, spdk.Options{CommandTimeout: patience / 3, ConnectTimeout: patience / 3, RegisterFrom: 64 * nvmf.KiB})
	block := d.Identity().LBASize
	lengths := []nvmf.Bytes{block, 64 * nvmf.KiB, 64 * nvmf.KiB} // copied, and over RDMA registered
	if bring == "" {                                             // long transfers to a removed device do not end for minutes
		lengths = []nvmf.Bytes{block, block, block}
	}
	var workers []*worker
	for n, length := range lengths {
		workers = append(workers, &worker{d: d, q: openQueue(t, d, 8), lba: nvmf.LBA(64*nvmf.KiB/block) * nvmf.LBA(n),
			data: bytes.Repeat([]byte("durable!"), int(length)/8)})
	}
	failed := make(chan error, len(workers))
	for _, w := range workers {
		go func() { failed <- w.busy() }()
	}
	time.Sleep(time.Second)
	began := time.Now()
	shell(t, take)
	for range workers {
		select {
		case err := <-failed:
			t.Logf("after %s: %v", time.Since(began).Round(time.Millisecond), err)
			assert.Error(t, err)
		case <-time.After(3 * patience): // SPDK ends queues one by one, over RDMA in ten seconds each
			require.FailNow(t, "commands hang")
		}
	}
	if bring != "" {
		shell(t, bring)
	}
	var group sync.WaitGroup
	for _, w := range workers {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := w.q.Reset(ctx)
			if bring == "" {
				if err == nil { // the controller is reachable, without the namespace
					err = w.busy()
				}
				assert.Error(t, err)
				t.Logf("without the namespace: %v", err)
				return
			}
			if !assert.NoError(t, err) {
				return
			}
			got := make([]byte, len(w.data))
			for { // the namespace may be restored later than its controller
				err := do(w.q, transfer(nvmf.Read, w.d, w.lba, got))
				if err == nil || ctx.Err() != nil {
					assert.NoError(t, err)
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			assert.True(t, bytes.Equal(w.data, got))
		})
	}
	group.Wait()
	for _, w := range workers {
		assert.NoError(t, w.q.Close())
	}
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		assert.NoError(t, err)
	case <-time.After(patience):
		require.FailNow(t, "Close hangs")
	}
}

// TestPeerLossy checks that transfers over a network that loses packets succeed, since the
// transport sends lost packets again.
func TestPeerLossy(t *testing.T) {
	id := peer(t)
	d := openDevice(t, id, spdk.Options{})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q := openQueue(t, d, 4)
	r := random(t)
	for range 12 {
		want, got := noise(r, 64*nvmf.KiB), make([]byte, 64*nvmf.KiB)
		require.NoError(t, do(q, transfer(nvmf.Write, d, 0, want)))
		require.NoError(t, do(q, transfer(nvmf.Read, d, 0, got)))
		require.True(t, bytes.Equal(want, got))
	}
}

// TestPeerTwice checks that a process can have a namespace open twice, as one that reads files
// and then writes. The second device works after the first one was closed.
func TestPeerTwice(t *testing.T) {
	id := peer(t)
	one := openDevice(t, id, spdk.Options{})
	two := openDevice(t, id, spdk.Options{})
	size := one.Identity().LBASize
	queues := []nvmf.Queue{openQueue(t, one, 4), openQueue(t, two, 4)}
	block := bytes.Repeat([]byte("twofold!"), int(size)/8)
	require.NoError(t, do(queues[0], &nvmf.Command{Opcode: nvmf.Write, Blocks: 1, Data: [][]byte{block}}))
	require.NoError(t, one.Close())
	assert.ErrorIs(t, do(queues[0], &nvmf.Command{Opcode: nvmf.Flush}), nvmf.ErrConnectionLost)
	got := make([]byte, size)
	require.NoError(t, do(queues[1], &nvmf.Command{Opcode: nvmf.Read, Blocks: 1, Data: [][]byte{got}}))
	assert.Equal(t, block, got)
	require.NoError(t, two.Close())
	require.NoError(t, two.Close(), "a second Close")
	d := openDevice(t, id, spdk.Options{})
	assert.NoError(t, d.Close())
}
