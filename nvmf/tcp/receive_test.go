package tcp

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
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

// TestAnswerBeforeSent checks that the connection ends on a response to a command
// that has not been sent yet. It also ends on a second response to a command whose
// first response is held back until a PDU of the command was sent.
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

// TestGuess checks the guess of a connection with one read in flight: it receives
// into the memory of the read before it has seen the header. The result must be
// right for other answers than the guessed one, too, in portions of any size.
func TestGuess(t *testing.T) {
	const size = 32 << 10
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	data := func(align uint32, offset, n int, flags uint8) []byte {
		b := make([]byte, pdu.MaxHeaderSize)
		r := pdu.Rules{Align: align}
		head := r.Put(b, pdu.TypeC2HData, flags, n)
		pdu.PutData(b, pdu.Data{Offset: uint32(offset), Length: uint32(n)})
		return append(b[:head], want[offset:offset+n]...)
	}
	response := func(status nvme.Status) []byte {
		b := make([]byte, pdu.CapsuleRespSize)
		(&pdu.Rules{}).Put(b, pdu.TypeCapsuleResp, 0, 0)
		pdu.CQEOf(b).Set(0, 0, status, 0)
		return b
	}
	const last, success = pdu.FlagLast, pdu.FlagLast | pdu.FlagSuccess
	for name, tt := range map[string]struct {
		answer [][]byte
		fails  bool
		wrong  bool
	}{
		"as guessed":         {[][]byte{data(0, 0, size, success)}, false, false},
		"with a response":    {[][]byte{data(0, 0, size, last), response(0)}, false, false},
		"in two":             {[][]byte{data(0, 0, size/2, 0), data(0, size/2, size/2, success)}, false, true},
		"in many":            {[][]byte{data(0, 0, 4096, 0), data(0, 4096, 8192, 0), data(0, 12288, 512, 0), data(0, 12800, size-12800, last), response(0)}, false, true},
		"padded":             {[][]byte{data(128, 0, size, success)}, false, true},
		"refused":            {[][]byte{response(nvme.StatusInvalidField | nvme.DNR)}, true, false},
		"refused after data": {[][]byte{data(0, 0, size, last), response(nvme.StatusInvalidField | nvme.DNR)}, true, false},
	} {
		for _, portion := range []int{1 << 20, 24, 25, 4096, 1000} {
			for _, pieces := range []int{1, 8, 100} {
				t.Run(fmt.Sprintf("%s/%d/%d", name, portion, pieces), func(t *testing.T) {
					c, peer := onSocketpair(t)
					require.NoError(t, unix.SetsockoptInt(peer, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20))
					for range 2 { // the second read follows a wrong guess
						got := make([]byte, size)
						cmd := &nvmf.Command{Opcode: nvmf.Read, Blocks: 8}
						for i := range pieces {
							cmd.Data = append(cmd.Data, got[size*i/pieces:size*(i+1)/pieces])
						}
						cmd.Begin()
						c.submit(cmd, 1)
						c.flush()
						answer := slices.Concat(tt.answer...)
						for part := range slices.Chunk(answer, portion) {
							n, err := unix.Write(peer, part)
							require.NoError(t, err)
							require.Equal(t, len(part), n)
							for c.receive() {
							}
						}
						require.NoError(t, c.err)
						require.True(t, cmd.Done())
						if tt.fails {
							require.ErrorContains(t, cmd.Err, "Invalid Field")
							continue
						}
						require.NoError(t, cmd.Err)
						require.True(t, bytes.Equal(want, got))
					}
					if pieces < 60 && portion > size {
						require.Equal(t, tt.wrong, c.recv.wrong)
					}
				})
			}
		}
	}
}

// TestGuessOfTwo checks two reads in flight of which the later one is answered first. Data of
// the later read may be received into the memory of the earlier one, but must not stay there.
func TestGuessOfTwo(t *testing.T) {
	const size = 32 << 10
	c, peer := onSocketpair(t)
	require.NoError(t, unix.SetsockoptInt(peer, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20))
	got := [2][]byte{make([]byte, size), make([]byte, size)}
	var cmds [2]nvmf.Command
	for i := range cmds {
		cmds[i] = nvmf.Command{Opcode: nvmf.Read, Blocks: 8, Data: [][]byte{got[i]}}
		cmds[i].Begin()
		c.submit(&cmds[i], 1)
	}
	c.flush()
	for _, cid := range []uint16{1, 0} {
		b := make([]byte, pdu.MaxHeaderSize)
		var r pdu.Rules
		head := r.Put(b, pdu.TypeC2HData, pdu.FlagLast|pdu.FlagSuccess, size)
		pdu.PutData(b, pdu.Data{CID: cid, Length: size})
		n, err := unix.Write(peer, append(b[:head], bytes.Repeat([]byte{byte(cid) + 1}, size)...))
		require.NoError(t, err)
		require.Equal(t, head+size, n)
		for c.receive() {
		}
		require.NoError(t, c.err)
	}
	for i := range got {
		require.Equal(t, bytes.Repeat([]byte{byte(i) + 1}, size), got[i], "command %d", i)
	}
}
