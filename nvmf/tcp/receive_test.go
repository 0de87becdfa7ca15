package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/pdu"
)

// onSocketpair returns a connection of depth 4 and the other end of its socket.
func onSocketpair(tb testing.TB) (*conn, int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(tb, err)
	tb.Cleanup(func() { unix.Close(pair[1]) })
	c, err := newConn(pair[0], 4, 10*time.Millisecond)
	require.NoError(tb, err)
	tb.Cleanup(c.close)
	c.ready, c.pace.limit, c.tx.MaxData = true, minSpins, 4096
	return c, pair[1]
}

// TestAnswerBeforeSent: a response to a command that has not been sent yet,
// and a second response to one whose first is held back.
func TestAnswerBeforeSent(t *testing.T) {
	resp := make([]byte, pdu.CapsuleRespSize)
	(&pdu.Rules{}).Put(resp, pdu.TypeCapsuleResp, 0, 0)
	for _, answered := range []bool{false, true} {
		c, peer := onSocketpair(t)
		cmd := &nvmf.Command{Opcode: nvmf.Flush}
		cmd.Begin()
		c.submit(cmd, 1)
		if answered {
			c.slots[0].unsent, c.slots[0].sending = false, 1
			c.answer(&c.slots[0], 0, 0, 0)
			require.False(t, cmd.Done(), "a PDU of it is on its way")
		}
		_, err := unix.Write(peer, resp)
		require.NoError(t, err)
		require.True(t, c.receive())
		require.ErrorIs(t, cmd.Err, nvmf.ErrConnectionLost)
		require.ErrorContains(t, cmd.Err, "response to command 0, which is not in flight")
	}
}
