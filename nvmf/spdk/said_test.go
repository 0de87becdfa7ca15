//go:build spdk

package spdk_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/tcp/fakepeer"
)

// TestOldCause: what SPDK has said of something that went wrong, and was over long
// before the connection was lost, is not the reason for that.
func TestOldCause(t *testing.T) {
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	const changed = 2 | 4<<16 // the notice that namespaces have, and the log that tells which: there is none
	var notice atomic.Bool
	var listener uint16
	admin := p.Admin
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminAsyncEvent {
			listener = sqe.CID()
		}
		if sqe.Opcode() == nvme.AdminIdentify && notice.CompareAndSwap(true, false) {
			if err := c.Respond(listener, 0, changed); err != nil {
				return false, err
			}
		}
		return admin(c, sqe, data)
	}
	d := openDevice(t, p.Start(t), spdk.Options{KeepAlive: -1, ConnectTimeout: time.Second})
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	notice.Store(true)
	for range 3 {
		require.NoError(t, spdk.Ask(d))
	}
	p.Cut()
	err := spdk.Ask(d)
	t.Log(err)
	require.ErrorIs(t, err, nvmf.ErrConnectionLost)
	assert.NotContains(t, err.Error(), "log_page")
}

// TestCutWhileIdentifying: a connection that ends takes what was asked with it, and is
// no answer: a namespace would have another UUID without the list of its names.
func TestCutWhileIdentifying(t *testing.T) {
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	admin := p.Admin
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminIdentify && sqe.CNS() == nvme.CNSDescriptors {
			return true, context.Canceled
		}
		return admin(c, sqe, data)
	}
	_, err := spdk.Open(t.Context(), p.Start(t), spdk.Options{KeepAlive: -1})
	t.Log(err)
	require.ErrorIs(t, err, nvmf.ErrConnectionLost)
}
