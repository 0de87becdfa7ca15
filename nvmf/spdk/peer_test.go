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

// Commands that take the namespace of peerEnv away and bring it back. Without
// the second it is gone for good, as a drive that was pulled.
const (
	takeEnv  = "NVMECR_TEST_SPDK_TAKE"
	bringEnv = "NVMECR_TEST_SPDK_BRING"
)

func shell(t *testing.T, command string) {
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// busy writes and reads one block over and over until something fails.
func busy(q nvmf.Queue, lba nvmf.LBA, size nvmf.Bytes) error {
	block := bytes.Repeat([]byte("durable!"), int(size)/8)
	for {
		for _, op := range []nvmf.Opcode{nvmf.Write, nvmf.Read} {
			if err := do(q, &nvmf.Command{Opcode: op, LBA: lba, Blocks: 1, Data: [][]byte{block}}); err != nil {
				return err
			}
		}
	}
}

// TestPeerLoss takes a namespace away in the middle of commands: they fail, soon
// and with the reason, and so do those that follow. If it comes back it is found
// again.
func TestPeerLoss(t *testing.T) {
	id := peer(t)
	take, bring := os.Getenv(takeEnv), os.Getenv(bringEnv)
	if take == "" {
		t.Skipf("%s is not set to a command that takes the namespace away", takeEnv)
	}
	const patience = 15 * time.Second
	d := openDevice(t, id, spdk.Options{CommandTimeout: patience / 3, ConnectTimeout: patience / 3})
	size := d.Identity().LBASize
	var queues []nvmf.Queue
	for range 3 {
		queues = append(queues, openQueue(t, d, 8))
	}
	failed := make(chan error, len(queues))
	for n, q := range queues {
		go func() { failed <- busy(q, nvmf.LBA(n), size) }()
	}
	time.Sleep(time.Second)
	began := time.Now()
	shell(t, take)
	for range queues {
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
	for n, q := range queues {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := q.Reset(ctx)
			if bring == "" {
				if err == nil { // the controller is there without the namespace
					err = busy(q, nvmf.LBA(n), size)
				}
				assert.Error(t, err)
				t.Logf("for good: %v", err)
				return
			}
			if !assert.NoError(t, err) {
				return
			}
			got := make([]byte, size)
			for { // a namespace may come back later than its controller
				err := do(q, &nvmf.Command{Opcode: nvmf.Read, LBA: nvmf.LBA(n), Blocks: 1, Data: [][]byte{got}})
				if err == nil || ctx.Err() != nil {
					assert.NoError(t, err)
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			assert.Equal(t, bytes.Repeat([]byte("durable!"), int(size)/8), got)
		})
	}
	group.Wait()
	for _, q := range queues {
		assert.NoError(t, q.Close())
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

// TestPeerTwice: a process may have a namespace open twice, as one that reads
// files and then writes; the second use outlives the first.
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
	require.NoError(t, two.Close(), "a second time")
	d := openDevice(t, id, spdk.Options{})
	assert.NoError(t, d.Close())
}
