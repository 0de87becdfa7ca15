package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// These tests have targets that behave in unusual ways that the specification allows.

// testTimeout is long enough for any short operation, even on an overloaded machine.
const testTimeout = 5 * time.Minute

// patiently calls f with longer and longer time-outs, until f returns a wanted error. f runs
// until its context ends. patiently returns the last error of f.
func patiently(t *testing.T, wanted func(error) bool, f func(context.Context) error) (err error) {
	for limit := 100 * time.Millisecond; limit < testTimeout; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err = f(ctx)
		cancel()
		if wanted(err) {
			return err
		}
	}
	return err
}

// scripted starts a fake peer, and opens a device and a queue of it.
func scripted(t testing.TB, p *fakepeer.Peer, o tcp.Options) (*tcp.Device, nvmf.Queue) {
	if o.CommandTimeout == 0 {
		o.CommandTimeout = testTimeout
	}
	d := openDevice(t, p.Start(t), o)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	q, err := d.OpenQueue(context.Background(), 8)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, q.Close()) })
	return d, q
}

// do runs commands and returns the first error.
func do(q nvmf.Queue, cmds ...*nvmf.Command) error {
	q.Submit(cmds)
	return q.Wait(cmds)
}

func write(lba nvmf.LBA, data ...[]byte) *nvmf.Command {
	c := &nvmf.Command{Opcode: nvmf.Write, LBA: lba, Data: data}
	c.Blocks = nvmf.LBA(c.Length() / 512)
	return c
}

func read(lba nvmf.LBA, data ...[]byte) *nvmf.Command {
	c := write(lba, data...)
	c.Opcode = nvmf.Read
	return c
}

// pattern returns n bytes that depend on their offset.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9) ^ byte(i)*7
	}
	return b
}

// pieces cuts b into pieces of growing length, some of them empty.
func pieces(b []byte) [][]byte {
	var list [][]byte
	for n := 0; len(b) > 0; n++ {
		k := min(n, len(b))
		list = append(list, b[:k])
		b = b[k:]
	}
	return list
}

// TestR2T checks writes whose target asks for the data in one or several R2Ts, with
// different limits, alignments, digests and buffers.
func TestR2T(t *testing.T) {
	const size = 64 << 10
	data := pattern(size)
	for _, c := range []struct {
		name   string
		ic     pdu.IC
		o      tcp.Options
		part   uint32
		pieces [][]byte
	}{
		{"all at once", pdu.IC{Max: 128 << 10}, tcp.Options{}, size, [][]byte{data}},
		{"in parts", pdu.IC{Max: 128 << 10}, tcp.Options{}, 20 << 10, [][]byte{data}},
		{"smallest MAXH2CDATA", pdu.IC{Max: 4096}, tcp.Options{}, size, [][]byte{data}},
		{"many pieces", pdu.IC{Max: 4096}, tcp.Options{}, 12 << 10, pieces(data)},
		{"aligned", pdu.IC{Max: 8192, PDA: 31}, tcp.Options{}, size, [][]byte{data}},
		{"digests", pdu.IC{Max: 8192, PDA: 7}, tcp.Options{HeaderDigest: true, DataDigest: true}, 12 << 10, pieces(data)},
		{"more vectors than one system call takes", pdu.IC{Max: 128 << 10}, tcp.Options{DataDigest: true}, size, singles(data)},
	} {
		t.Run(c.name, func(t *testing.T) {
			received := make(chan []byte, 1)
			p := fakepeer.New(func(conn *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
				var got []byte
				assert.Equal(t, uint8(nvme.FlagSGL), sqe.Flags())
				assert.Equal(t, uint8(nvme.SGLTransport), sqe.SGL().ID())
				for at := uint32(0); at < size; at += c.part {
					n := min(c.part, size-at)
					if err := conn.R2T(sqe.CID(), uint16(at>>9), at, n); err != nil {
						return err
					}
					part, err := conn.ReadData(sqe.CID(), uint16(at>>9), at, n)
					if err != nil {
						return err
					}
					got = append(got, part...)
				}
				received <- got
				return conn.Respond(sqe.CID(), 0, 0)
			})
			p.IC = func(req pdu.IC) pdu.IC { return pdu.IC{PDA: c.ic.PDA, Max: c.ic.Max, Digest: req.Digest} }
			_, q := scripted(t, p, c.o)
			require.NoError(t, do(q, write(5, c.pieces...)))
			require.True(t, bytes.Equal(data, <-received))
		})
	}
}

// singles cuts the first 5000 bytes of b into single bytes.
func singles(b []byte) [][]byte {
	var list [][]byte
	for i := range 5000 {
		list = append(list, b[i:i+1])
	}
	return append(list, b[5000:])
}

// TestR2TForMany checks several writes in flight for which the target sends all R2Ts
// at once, and responds to the last write first.
func TestR2TForMany(t *testing.T) {
	const n, size = 4, 16 << 10
	data := pattern(size)
	var cids []uint16
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		if cids = append(cids, sqe.CID()); len(cids) < n {
			return nil
		}
		var all []byte
		for _, cid := range cids {
			all = append(all, c.Encode(pdu.TypeR2T, 0, nil, func(b []byte) {
				pdu.PutR2T(b, pdu.R2T{CID: cid, TTag: cid + 100, Length: size})
			})...)
		}
		if _, err := c.Write(all); err != nil {
			return err
		}
		for _, cid := range cids {
			got, err := c.ReadData(cid, cid+100, 0, size)
			if err != nil || !bytes.Equal(got, data) {
				return errors.New("other data")
			}
		}
		for i := n - 1; i >= 0; i-- {
			if err := c.Respond(cids[i], 0, 0); err != nil {
				return err
			}
		}
		return nil
	})
	_, q := scripted(t, p, tcp.Options{})
	var cmds []*nvmf.Command
	for i := range n {
		cmds = append(cmds, write(nvmf.LBA(i), data))
	}
	require.NoError(t, do(q, cmds...))
}

func TestInCapsule(t *testing.T) {
	data := pattern(4096)
	for _, digests := range []bool{false, true} {
		p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, got []byte) error {
			assert.Equal(t, uint8(nvme.SGLInCapsule), sqe.SGL().ID())
			assert.Zero(t, sqe.SGL().Address())
			assert.EqualValues(t, 4096, sqe.SGL().Length())
			assert.Equal(t, data, got)
			assert.True(t, sqe.FUA())
			assert.EqualValues(t, 77, sqe.SLBA())
			assert.EqualValues(t, 8, sqe.NLB())
			assert.EqualValues(t, 1, sqe.NSID())
			return c.Respond(sqe.CID(), 0, 0)
		})
		p.IC = func(req pdu.IC) pdu.IC { return pdu.IC{PDA: 15, Digest: req.Digest, Max: 4096} }
		_, q := scripted(t, p, tcp.Options{HeaderDigest: digests, DataDigest: digests})
		c := write(77, pieces(data)...)
		c.FUA = true
		require.NoError(t, do(q, c))
	}
}

// TestReads checks reads whose data comes in one or several C2HData, in TCP
// segments of any size (drop), with and without the SUCCESS flag.
func TestReads(t *testing.T) {
	for _, size := range []int{512, 4096, 64 << 10} {
		for _, part := range []int{512, 1500 &^ 3, 64 << 10} {
			for _, success := range []bool{false, true} {
				for _, digests := range []bool{false, true} {
					for _, drop := range []int{0, 1, 777} {
						if drop == 1 && size > 4096 {
							continue
						}
						t.Run(fmt.Sprintf("%d by %d, success %t, digests %t, drops %d", size, part, success, digests, drop), func(t *testing.T) {
							testRead(t, size, part, success, digests, drop)
						})
					}
				}
			}
		}
	}
}

func testRead(t *testing.T, size, part int, success, digests bool, drop int) {
	data := pattern(size)
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		var all []byte
		for at := 0; at < size; at += part {
			n := min(part, size-at)
			var flags uint8
			if at+n == size {
				if flags = pdu.FlagLast; success {
					flags |= pdu.FlagSuccess
				}
			}
			all = append(all, c.Encode(pdu.TypeC2HData, flags, data[at:at+n], func(b []byte) {
				pdu.PutData(b, pdu.Data{CID: sqe.CID(), Offset: uint32(at), Length: uint32(n)})
			})...)
		}
		if !success {
			all = append(all, c.Encode(pdu.TypeCapsuleResp, 0, nil, func(b []byte) { pdu.CQEOf(b).Set(sqe.CID(), 0, 0, 0) })...)
		}
		for n := 0; len(all) > 0; all = all[n:] {
			if n = len(all); drop > 0 {
				n = min(n, drop)
			}
			if _, err := c.Write(all[:n]); err != nil {
				return err
			}
		}
		return nil
	})
	if drop != 1 {
		p.Align = 64
	}
	_, q := scripted(t, p, tcp.Options{HeaderDigest: digests, DataDigest: digests})
	got := make([]byte, size)
	require.NoError(t, do(q, read(3, pieces(got)...)))
	require.True(t, bytes.Equal(data, got))
	clear(got)
	require.NoError(t, do(q, read(3, got)), "in one piece")
	require.True(t, bytes.Equal(data, got))
}

// TestDataDigestMismatch checks that a read is retried after a wrong data digest.
// If all digests are wrong, the command fails, and the connection stays usable.
func TestDataDigestMismatch(t *testing.T) {
	want, got := pattern(512), make([]byte, 512)
	var spoil atomic.Int32
	spoiling := func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		b := c.Encode(pdu.TypeC2HData, pdu.FlagLast|pdu.FlagSuccess, want, func(b []byte) {
			pdu.PutData(b, pdu.Data{CID: sqe.CID(), Length: 512})
		})
		if spoil.Add(-1) >= 0 {
			b[100] ^= 1
		}
		_, err := c.Write(b)
		return err
	}
	_, q := scripted(t, fakepeer.New(spoiling), tcp.Options{DataDigest: true})
	spoil.Store(3)
	require.NoError(t, do(q, read(0, got)))
	require.Equal(t, want, got)
	require.EqualValues(t, 3, q.(*tcp.Queue).Stats().Retries)

	_, q = scripted(t, fakepeer.New(spoiling), tcp.Options{DataDigest: true, CommandTimeout: 2 * time.Second})
	spoil.Store(1 << 30)
	err := do(q, read(0, got))
	var status *nvmf.StatusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, nvme.StatusTransientTransport.SC(), status.SC)
	spoil.Store(0)
	require.NoError(t, do(q, read(0, got)))
	require.Equal(t, want, got)
	require.Zero(t, q.(*tcp.Queue).Stats().Reconnects)
}

// TestR2TBackwards checks a write whose target asks for the second half of the data
// first, and for some of the data twice.
func TestR2TBackwards(t *testing.T) {
	data := pattern(16 << 10)
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		for _, at := range []uint32{8192, 0, 4096} {
			n := uint32(8192)
			if err := c.R2T(sqe.CID(), 9, at, n); err != nil {
				return err
			}
			got, err := c.ReadData(sqe.CID(), 9, at, n)
			if err != nil || !bytes.Equal(got, data[at:at+n]) {
				return errors.New("other data")
			}
		}
		return c.Respond(sqe.CID(), 0, 0)
	})
	_, q := scripted(t, p, tcp.Options{})
	require.NoError(t, do(q, write(0, pieces(data)...)))
}

// TestRefusedMidPDU checks a write that the target completes with an error while
// the host is sending an H2CData of it. The PDU has more buffers than one system
// call takes, and more bytes than the sockets buffer. The write must not end before
// the whole PDU was sent, since sending uses the memory of the command.
func TestRefusedMidPDU(t *testing.T) {
	const size = 32 << 20
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		if sqe.Opcode() == nvme.IOFlush {
			return c.Respond(sqe.CID(), 0, 0)
		}
		if err := c.R2T(sqe.CID(), 1, 0, size); err != nil {
			return err
		}
		head := make([]byte, pdu.DataSize)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		if err := c.Respond(sqe.CID(), nvme.StatusWriteFault, 0); err != nil {
			return err
		}
		for range size / 4096 {
			b := make([]byte, 4096)
			if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, pattern(4096)) {
				return errors.New("other data")
			}
		}
		return nil
	})
	p.IC = func(pdu.IC) pdu.IC { return pdu.IC{Max: size} }
	_, q := scripted(t, p, tcp.Options{MaxTransfer: size})
	var data [][]byte
	for range size / 4096 {
		data = append(data, pattern(4096))
	}
	c := write(0, data...)
	var status *nvmf.StatusError
	require.ErrorAs(t, do(q, c), &status)
	for _, d := range data {
		clear(d) // the write has ended, so its memory may be changed
	}
	require.NoError(t, do(q, &nvmf.Command{Opcode: nvmf.Flush}))
}

// TestRefusedEarly checks a write that the target completes with an error before it
// has received the data.
func TestRefusedEarly(t *testing.T) {
	const size = 1 << 20
	refuse := true
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) error {
		if !refuse {
			return c.Respond(sqe.CID(), 0, 0)
		}
		refuse = false
		if err := c.R2T(sqe.CID(), 1, 0, size); err != nil {
			return err
		}
		if err := c.Respond(sqe.CID(), nvme.StatusLBARange|nvme.DNR, 0); err != nil {
			return err
		}
		// The host completes the H2CData that it has begun, and sends no further one.
		for {
			h, head, _, err := c.ReadPDU()
			switch {
			case err != nil:
				return err
			case h.Type == pdu.TypeCapsuleCmd:
				return c.Respond(pdu.SQEOf(head).CID(), 0, 0)
			}
		}
	})
	p.IC = func(pdu.IC) pdu.IC { return pdu.IC{Max: 4096} }
	_, q := scripted(t, p, tcp.Options{})
	err := do(q, write(0, make([]byte, size)))
	var status *nvmf.StatusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, "Write at LBA 0: LBA Out of Range (status type 0x0 code 0x80)", status.Error())
	assert.True(t, status.DNR)
	require.NoError(t, do(q, &nvmf.Command{Opcode: nvmf.Flush}))
}

func TestDeallocate(t *testing.T) {
	received := make(chan []nvme.DSMRange, 1)
	p := fakepeer.New(func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error {
		assert.Equal(t, uint8(nvme.IODSM), sqe.Opcode())
		assert.EqualValues(t, nvme.DSMDeallocate, sqe.CDW(11))
		var ranges []nvme.DSMRange
		for i := range sqe.DSMRanges() {
			ranges = append(ranges, nvme.DSMRange(data[16*i:]))
		}
		received <- ranges
		return c.Respond(sqe.CID(), 0, 0)
	})
	const blocks = 1 << 34
	p.Namespace = func(n *nvme.IdentifyNamespace) { n.SetSize(blocks) }
	d, q := scripted(t, p, tcp.Options{})
	assert.EqualValues(t, blocks, d.Identity().Blocks)
	require.NoError(t, do(q, &nvmf.Command{Opcode: nvmf.Deallocate, LBA: 3, Blocks: blocks - 3}))
	var next, total uint64 = 3, 0
	for _, r := range <-received {
		assert.Equal(t, next, r.SLBA())
		next += uint64(r.Blocks())
		total += uint64(r.Blocks())
	}
	assert.EqualValues(t, blocks-3, total)
}
