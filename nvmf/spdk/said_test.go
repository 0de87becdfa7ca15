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

// TestOldCause checks that the error of a lost connection does not contain an earlier message of
// SPDK about something else.
func TestOldCause(t *testing.T) {
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	const changed = 2 | 4<<16 // a notice of changed namespaces, whose log page the peer does not have
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

// TestCutWhileIdentifying checks that Open fails when the connection ends during an Identify. If the
// driver took that for an empty list of identifiers, the namespace would get another UUID.
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
