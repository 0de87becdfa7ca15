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

// FuzzReceive feeds arbitrary bytes to a connection with a read, a write and a
// flush in flight, whole or in two parts. There is no panic, no hang, and each
// command ends exactly once.
func FuzzReceive(f *testing.F) {
	resp := func(flags uint8, t pdu.Type, n int, d pdu.Data) []byte {
		b := make([]byte, pdu.MaxHeaderSize)
		r := pdu.Rules{}
		head := r.Put(b, t, flags, n)
		pdu.PutData(b, d)
		return append(b[:head], make([]byte, n)...)
	}
	f.Add(resp(pdu.FlagLast|pdu.FlagSuccess, pdu.TypeC2HData, 1024, pdu.Data{CID: 0, Length: 1024}), uint16(9), false)
	f.Add(resp(0, pdu.TypeR2T, 0, pdu.Data{CID: 1, Length: 16384}), uint16(0), false)
	f.Add(resp(0, pdu.TypeCapsuleResp, 0, pdu.Data{}), uint16(0), true)
	f.Add(resp(0, pdu.TypeC2HTermReq, 8, pdu.Data{}), uint16(30), false)
	f.Fuzz(func(t *testing.T, b []byte, cut uint16, digests bool) {
		c, peer := onSocketpair(t)
		c.rx.HeaderDigest, c.rx.DataDigest = digests, digests
		c.tx.HeaderDigest, c.tx.DataDigest = digests, digests
		cmds := []*nvmf.Command{
			{Opcode: nvmf.Read, Blocks: 2, Data: [][]byte{make([]byte, 1000), {}, make([]byte, 24)}},
			{Opcode: nvmf.Write, Blocks: 32, Data: [][]byte{make([]byte, 16384)}},
			{Opcode: nvmf.Flush},
		}
		for _, cmd := range cmds {
			cmd.Begin()
			c.submit(cmd, 1)
		}
		c.flush()
		n := min(int(cut), len(b))
		for _, part := range [][]byte{b[:n], b[n:]} {
			if len(part) > 0 {
				_, _ = unix.Write(peer, part)
			}
			for range 4 {
				if c.err == nil {
					c.turn()
				}
			}
		}
		_ = unix.Shutdown(peer, unix.SHUT_WR)
		c.wait(cmds)
		c.close()
		for i, cmd := range cmds {
			if !cmd.Done() {
				t.Fatalf("command %d is still in flight", i)
			}
		}
		if c.busy != 0 || len(c.free) != len(c.slots) {
			t.Fatalf("%d slots busy, %d of %d free", c.busy, len(c.free), len(c.slots))
		}
	})
}
