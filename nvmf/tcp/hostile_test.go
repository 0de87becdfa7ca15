package tcp_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

// These tests have targets that violate the protocol. In every case the host ends
// the connection with an error that names the violation, sends a TermReq, and can
// reset the queue.

func TestHostile(t *testing.T) {
	const size = 16 << 10
	data := func(cid, ttag uint16, off, n uint32) func([]byte) {
		return func(b []byte) { pdu.PutData(b, pdu.Data{CID: cid, TTag: ttag, Offset: off, Length: n}) }
	}
	resp := func(cid uint16) func([]byte) {
		return func(b []byte) { pdu.CQEOf(b).Set(cid, 0, 0, 0) }
	}
	type send = func(c *fakepeer.Conn, cid uint16) []byte
	for _, c := range []struct {
		name, text string
		write      bool
		size       int
		send       send
	}{
		{"unknown command", "response to command 513", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeCapsuleResp, 0, nil, resp(513))
		}},
		{"idle command", "not in flight", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeCapsuleResp, 0, nil, resp(cid+1))
		}},
		{"read without data", "after 0 of its 16384 bytes", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeCapsuleResp, 0, nil, resp(cid))
		}},
		{"short read", "after 512 of its 16384", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, pdu.FlagLast|pdu.FlagSuccess, make([]byte, 512), data(cid, 0, 0, 512))
		}},
		{"write without data", "after 0 of its 16384", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeCapsuleResp, 0, nil, resp(cid))
		}},
		{"data beyond the read", "16388 bytes at 0", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, pdu.FlagLast, make([]byte, size+4), data(cid, 0, 0, size+4))
		}},
		{"data with a gap", "at 1024 of command", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, 0, make([]byte, 512), data(cid, 0, 1024, 512))
		}},
		{"whole data with a gap", "16384 bytes at 16384", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, pdu.FlagLast|pdu.FlagSuccess, make([]byte, size), data(cid, 0, size, size))
		}},
		{"whole data at an odd offset", "offset 3, not a multiple of 4", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, pdu.FlagLast, make([]byte, size), data(cid, 0, 3, size))
		}},
		{"data for a write", "no read in flight", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, 0, make([]byte, 512), data(cid, 0, 0, 512))
		}},
		{"data for nothing", "no read in flight", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeC2HData, 0, make([]byte, 512), data(cid+1, 0, 0, 512))
		}},
		{"R2T for a read", "has no data to send", false, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeR2T, 0, nil, data(cid, 1, 0, 512))
		}},
		{"R2T for data that was in the capsule", "has no data to send", true, 4096, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeR2T, 0, nil, data(cid, 1, 0, 512))
		}},
		{"R2T beyond the write", "R2T for 16384 bytes at 4", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeR2T, 0, nil, data(cid, 1, 4, size))
		}},
		{"two R2Ts at once", "second R2T", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return append(c.Encode(pdu.TypeR2T, 0, nil, data(cid, 1, 0, 4096)), c.Encode(pdu.TypeR2T, 0, nil, data(cid, 2, 4096, 4096))...)
		}},
		{"a second ICResp", "second ICResp", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			b := make([]byte, pdu.ICSize)
			pdu.PutICResp(b, 0, 0, 4096)
			return b
		}},
		{"a PDU for controllers", "wrong end", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return c.Encode(pdu.TypeH2CData, 0, make([]byte, 512), data(cid, 0, 0, 512))
		}},
		{"text", "does not exist", true, size, func(c *fakepeer.Conn, cid uint16) []byte {
			return []byte("HTTP/1.1 400 Bad Request\r\n\r\n")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			told := make(chan pdu.Type, 1)
			p := fakepeer.New(func(conn *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
				if _, err := conn.Write(c.send(conn, sqe.CID())); err != nil {
					return err
				}
				for {
					h, _, _, err := conn.ReadPDU()
					if err != nil || h.Type == pdu.TypeH2CTermReq {
						told <- h.Type
						return fakepeer.ErrHangUp
					}
				}
			})
			_, q := scripted(t, p, tcp.Options{})
			cmd := read(0, make([]byte, c.size))
			if c.write {
				cmd.Opcode = nvmf.Write
			}
			err := do(q, cmd)
			require.ErrorIs(t, err, nvmf.ErrConnectionLost)
			assert.ErrorContains(t, err, c.text)
			var e *pdu.Error
			assert.ErrorAs(t, err, &e)
			assert.Equal(t, pdu.TypeH2CTermReq, <-told)
			assert.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost, "until it is reset")
			require.NoError(t, q.Reset(t.Context()))
		})
	}
}

// TestTermReq checks that the error of a connection that the target ends with a
// C2HTermReq has the status of the TermReq.
func TestTermReq(t *testing.T) {
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		b := make([]byte, pdu.MaxHeaderSize)
		n := pdu.PutTermReq(b, false, pdu.Violation(pdu.LimitExceeded, 3, "x"), sqe[:])
		_, err := c.Write(b[:n])
		return err
	})
	_, q := scripted(t, p, tcp.Options{HeaderDigest: true, DataDigest: true})
	err := do(q, read(0, make([]byte, 512)))
	require.ErrorIs(t, err, nvmf.ErrConnectionLost)
	assert.ErrorContains(t, err, "the target ended it: R2T or Data Transfer Limit Exceeded (information 0x3)")
}

// TestCutAnywhere has the target close the connection within an answer, after
// each number of bytes but most of those within the data.
func TestCutAnywhere(t *testing.T) {
	var cut, whole atomic.Int64
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		b := c.Encode(pdu.TypeC2HData, pdu.FlagLast, pattern(512), func(b []byte) {
			pdu.PutData(b, pdu.Data{CID: sqe.CID(), Length: 512})
		})
		b = append(b, c.Encode(pdu.TypeCapsuleResp, 0, nil, func(b []byte) { pdu.CQEOf(b).Set(sqe.CID(), 0, 0, 0) })...)
		whole.Store(int64(len(b)))
		_, _ = c.Write(b[:min(cut.Load(), whole.Load())])
		return fakepeer.ErrHangUp
	})
	_, q := scripted(t, p, tcp.Options{HeaderDigest: true, DataDigest: true})
	for {
		err := do(q, read(0, make([]byte, 512)))
		at := cut.Load()
		if at >= whole.Load() {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, nvmf.ErrConnectionLost, "cut after %d bytes", at)
		if cut.Add(1); at > 60 && at < 500 { // the middle of the data
			cut.Add(36)
		}
		require.NoError(t, q.Reset(t.Context()))
	}
}

// TestGarbage answers with random bytes, and with valid PDUs of which random
// bits of the header were flipped. All commands must end, and the queue can be reset.
func TestGarbage(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		var b []byte
		switch random.IntN(3) {
		case 0:
			b = make([]byte, random.IntN(300))
			for i := range b {
				b[i] = byte(random.Uint32())
			}
		case 1:
			b = c.Encode(pdu.TypeC2HData, pdu.FlagLast|pdu.FlagSuccess, pattern(512), func(b []byte) {
				pdu.PutData(b, pdu.Data{CID: sqe.CID(), Length: 512})
			})
		case 2:
			b = c.Encode(pdu.TypeR2T, 0, nil, func(b []byte) {
				pdu.PutR2T(b, pdu.R2T{CID: sqe.CID(), Length: 8192})
			})
		}
		if len(b) > 24 {
			for range 1 + random.IntN(3) {
				b[random.IntN(24)] ^= 1 << random.IntN(8)
			}
		}
		_, _ = c.Write(b)
		return fakepeer.ErrHangUp
	})
	_, q := scripted(t, p, tcp.Options{})
	for range 200 {
		cmds := []*nvmf.Command{read(0, make([]byte, 512)), write(9, make([]byte, 8192)), {Opcode: nvmf.Flush}}
		_ = do(q, cmds...)
		for _, c := range cmds {
			require.True(t, c.Done())
		}
		require.NoError(t, q.Reset(t.Context()))
	}
}

func TestCommandTimeout(t *testing.T) {
	p := fakepeer.New(func(*fakepeer.Conn, *nvme.SQE, []byte) error { return nil })
	_, q := scripted(t, p, tcp.Options{CommandTimeout: 50 * time.Millisecond})
	start := time.Now()
	cmds := []*nvmf.Command{read(0, make([]byte, 512)), write(0, make([]byte, 512))}
	err := do(q, cmds...)
	require.ErrorIs(t, err, nvmf.ErrConnectionLost)
	assert.ErrorContains(t, err, "no command was answered for 50ms, 2 in flight")
	assert.Less(t, time.Since(start), testTimeout/2)
	assert.Equal(t, cmds[0].Err, cmds[1].Err)
}

// TestDrip checks that a command times out when the target sends data in tiny
// PDUs without a pause, and never completes the command.
func TestDrip(t *testing.T) {
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		for at := 0; ; {
			var b []byte
			for range 1000 {
				b = append(b, c.Encode(pdu.TypeC2HData, 0, make([]byte, 4), func(b []byte) {
					pdu.PutData(b, pdu.Data{CID: sqe.CID(), Offset: uint32(at), Length: 4})
				})...)
				at += 4
			}
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
	})
	_, q := scripted(t, p, tcp.Options{CommandTimeout: 50 * time.Millisecond, MaxTransfer: 32 << 20})
	err := do(q, read(0, make([]byte, 32<<20)))
	require.ErrorIs(t, err, nvmf.ErrConnectionLost)
	assert.ErrorContains(t, err, "no command was answered for 50ms")
}
