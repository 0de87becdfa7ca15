package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/hostile"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/tcp/fakepeer"
)

const (
	fuzzMemory = 32 << 20
	fuzzTime   = 20 * time.Second
)

// FuzzReceive sends arbitrary bytes, in one or two parts, to a connection with a
// read, a write and a flush in flight. It checks that nothing panics or hangs,
// that each command ends, and that no byte outside the buffers of the read is
// written. With digests, the PDUs in the bytes get valid digests, so that the
// code behind the check of digests is reached.
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
		if digests {
			b = withDigests(b)
		}
		c.rx.HeaderDigest, c.rx.DataDigest = digests, digests
		c.tx.HeaderDigest, c.tx.DataDigest = digests, digests
		memory := bytes.Repeat([]byte{0xa5}, 3072)
		cmds := []*nvmf.Command{
			{Opcode: nvmf.Read, Blocks: 2, Data: [][]byte{memory[1024:2000:2000], {}, memory[2000:2048:2048]}},
			{Opcode: nvmf.Write, Blocks: 32, Data: [][]byte{make([]byte, 16384)}},
			{Opcode: nvmf.Flush},
		}
		for _, cmd := range cmds {
			cmd.Begin()
			c.submit(cmd, 1)
		}
		c.flush()
		answered(t, c, peer, b, cut, cmds)
		for i, cmd := range cmds {
			if !cmd.Done() {
				t.Fatalf("command %d is still in flight", i)
			}
		}
		if c.busy != 0 || len(c.free) != len(c.slots) {
			t.Fatalf("%d slots busy, %d of %d free", c.busy, len(c.free), len(c.slots))
		}
		beside := append(bytes.Clone(memory[:1024]), memory[2048:]...)
		if n := bytes.Count(beside, []byte{0xa5}); n != len(beside) {
			t.Fatalf("%d bytes beside the buffers were written", len(beside)-n)
		}
	})
}

// withDigests parses b as PDUs without digests, and returns these PDUs with
// digests. Bytes after the last valid PDU are unchanged.
func withDigests(b []byte) []byte {
	plain := pdu.Rules{MaxData: 1 << 20}
	var out []byte
	for {
		h, err := plain.Common(b)
		if err != nil || len(b) < int(h.Offset)+int(h.Data) {
			return append(out, b...)
		}
		next := int(h.Offset) + int(h.Data)
		if h.Type == pdu.TypeC2HTermReq || h.Type == pdu.TypeICResp {
			out, b = append(out, b[:next]...), b[next:]
			continue
		}
		r := pdu.Rules{HeaderDigest: true, DataDigest: true}
		p := make([]byte, pdu.MaxHeaderSize)
		n := r.Put(p, h.Type, h.Flags&^(pdu.FlagHeaderDigest|pdu.FlagDataDigest), int(h.Data))
		copy(p[pdu.CommonSize:], b[pdu.CommonSize:h.HLen])
		r.Seal(p)
		data := b[h.Offset:next]
		out = append(append(out, p[:n]...), data...)
		if len(data) > 0 {
			out = binary.LittleEndian.AppendUint32(out, pdu.Digest(0, data))
		}
		b = b[next:]
	}
}

// claims has the data that a controller reports about itself, for a script to edit.
type claims struct {
	controller, namespace, descriptors [nvme.IdentifySize]byte
	numbers                            [32]byte // 0: CAP; 8: result of Number of Queues; 16: MAXH2CDATA; 20: CPDA
	header                             nvme.DiscoveryHeader
	entry                              nvme.DiscoveryEntry
}

func decent() *claims {
	x := &claims{}
	p := (*nvme.IdentifyController)(&x.controller)
	p.SetControllerType(nvme.ControllerIO)
	p.SetIOCCSZ((4096 + nvme.SQESize) / 16)
	p.SetONCS(nvme.ONCSDSM | nvme.ONCSReservation)
	p.SetVWC(nvme.VWCPresent)
	n := (*nvme.IdentifyNamespace)(&x.namespace)
	n.SetSize(fakepeer.Blocks)
	n.SetLBAFormat(9)
	n.SetRESCAP(nvme.RESCAPWriteExclusive)
	nvme.PutDescriptors(&x.descriptors, []nvme.Descriptor{{Type: nvme.NIDUUID, ID: []byte("0123456789abcdef")}, {Type: nvme.NIDCSI, ID: []byte{0}}})
	binary.LittleEndian.PutUint64(x.numbers[0:], uint64(nvme.MakeCAP(127, 1)))
	binary.LittleEndian.PutUint32(x.numbers[8:], nvme.NumberOfQueues(8, 8))
	binary.LittleEndian.PutUint32(x.numbers[16:], 128<<10)
	x.header.Set(1, 2)
	x.entry.SetSubsystem(nvme.SubtypeNVM, nvme.FamilyIPv4, 1, fakepeer.NQN, "127.0.0.1", "4420")
	return x
}

// edit applies a script, which changes mostly the fields that the initiator uses,
// and sometimes any byte.
func (x *claims) edit(script []byte) {
	c := x.controller[:]
	hostile.Apply(script, 32, [][]byte{
		x.numbers[:8], x.numbers[8:16], x.numbers[16:24], c[77:111], c[512:544], c[1792:1808],
		x.namespace[:40], x.namespace[104:192], x.descriptors[:64], x.header[:32], x.entry[:],
		c, x.namespace[:], x.descriptors[:],
	})
}

// peer returns a peer with this controller. Its I/O queues conform to the
// specification.
func (x *claims) peer() *fakepeer.Peer {
	p := fakepeer.New(serveDecently)
	p.CAP = nvme.CAP(binary.LittleEndian.Uint64(x.numbers[:]))
	p.IC = func(req pdu.IC) pdu.IC {
		return pdu.IC{PDA: x.numbers[20], Digest: req.Digest, Max: binary.LittleEndian.Uint32(x.numbers[16:])}
	}
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
		var page []byte
		switch {
		case sqe.Opcode() == nvme.AdminSetFeatures:
			return true, c.Respond(sqe.CID(), 0, binary.LittleEndian.Uint64(x.numbers[8:]))
		case sqe.Opcode() == nvme.AdminGetLogPage:
			if _, at, _ := sqe.LogPage(); at == 0 {
				page = x.header[:]
			} else {
				page = x.entry[:]
			}
		case sqe.Opcode() != nvme.AdminIdentify:
			return false, nil
		case sqe.CNS() == nvme.CNSController:
			page = x.controller[:]
		case sqe.CNS() == nvme.CNSNamespace:
			page = x.namespace[:]
		default:
			page = x.descriptors[:]
		}
		return true, c.Data(sqe.CID(), 0, page, pdu.FlagLast|pdu.FlagSuccess)
	}
	return p
}

// serveDecently executes an I/O command. Reads return bytes 7, and writes have to
// be of bytes 9.
func serveDecently(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error {
	n := sqe.SGL().Length()
	switch sqe.Opcode() {
	case nvme.IORead:
		if err := c.Data(sqe.CID(), 0, bytes.Repeat([]byte{7}, int(n)), pdu.FlagLast); err != nil {
			return err
		}
	case nvme.IOWrite, nvme.IODSM, nvme.IOReservationReg, nvme.IOReservationAcquire, nvme.IOReservationRelease:
		if len(data) > 0 {
			break
		}
		if err := c.R2T(sqe.CID(), 1, 0, n); err != nil {
			return err
		}
		got, err := c.ReadData(sqe.CID(), 1, 0, n)
		if err != nil {
			return err
		}
		data = got
	}
	status := nvme.Status(0)
	if sqe.Opcode() == nvme.IOWrite && bytes.Count(data, []byte{9}) != len(data) {
		status = nvme.StatusDataTransferError
	}
	return c.Respond(sqe.CID(), status, 0)
}

// answered sends b to the connection, in two parts, and then shuts the peer's side
// down. It waits for cmds, and closes the connection.
func answered(t *testing.T, c *conn, peer int, b []byte, cut uint16, cmds []*nvmf.Command) {
	hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
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
	})
}

// FuzzGuessedRead sends arbitrary bytes as the answer of the only read in flight. The
// connection receives that answer into the memory of the read before it has seen the header.
func FuzzGuessedRead(f *testing.F) {
	const size = 16 << 10
	answer := func(t pdu.Type, flags uint8, n int, d pdu.Data) []byte {
		b := make([]byte, pdu.MaxHeaderSize)
		r := pdu.Rules{}
		head := r.Put(b, t, flags, n)
		pdu.PutData(b, d)
		return append(b[:head], make([]byte, n)...)
	}
	const whole uint8 = pdu.FlagLast | pdu.FlagSuccess
	f.Add(answer(pdu.TypeC2HData, whole, size, pdu.Data{Length: size}), uint16(40))
	f.Add(answer(pdu.TypeC2HData, whole, size, pdu.Data{Length: size, Offset: size}), uint16(30000))
	f.Add(answer(pdu.TypeC2HData, whole, size, pdu.Data{Length: size, CID: 3}), uint16(24))
	f.Add(answer(pdu.TypeC2HData, whole, size, pdu.Data{Length: size - 4}), uint16(25))
	f.Add(answer(pdu.TypeC2HData, 0, size/2, pdu.Data{Length: size / 2}), uint16(8))
	f.Add(answer(pdu.TypeC2HTermReq, 0, 128, pdu.Data{}), uint16(30))
	f.Add(answer(pdu.TypeCapsuleResp, 0, 0, pdu.Data{}), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		c, peer := onSocketpair(t)
		cmds := []*nvmf.Command{{Opcode: nvmf.Read, Blocks: 32, Data: [][]byte{make([]byte, 1000), make([]byte, size-1000)}}}
		cmds[0].Begin()
		c.submit(cmds[0], 1)
		c.flush()
		answered(t, c, peer, b, cut, cmds)
	})
}

// FuzzOpen opens namespaces of controllers that report arbitrary data. If Open
// succeeds, the namespace must be usable within the limits of its identity.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(nil), false)
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 0}, true)                         // MQES 0
	f.Add([]byte{3, 0, 0, 0, 0, 0, 255, 0}, false)                      // MDTS 255
	f.Add([]byte{3, 0, 0, 0, 0, 0, 1, 0, 5, 2, 0, 0, 0, 0, 5, 0}, true) // MDTS 1, capsules of 80 bytes
	f.Add([]byte{6, 7, 0, 0, 0, 0, 29, 0}, false)                       // a huge namespace
	f.Add([]byte{7, 0, 0, 0, 26, 0, 12, 0}, false)                      // blocks of 4 KiB
	f.Add([]byte{2, 2, 0, 0, 0, 0, 0, 16, 2, 0, 0, 0, 4, 0, 31, 0}, true)
	f.Fuzz(func(t *testing.T, script []byte, digests bool) {
		x := decent()
		x.edit(script)
		p := x.peer()
		defer p.Stop()
		o := Options{Dial: p.Dial, ConnectTimeout: 10 * time.Second, CommandTimeout: 10 * time.Second, KeepAlive: -1, MaxTransfer: 256 << 10, DataDigest: digests, HeaderDigest: digests}
		hostile.Bounded(t, 2*fuzzMemory, fuzzTime, func() {
			d, err := Open(t.Context(), nvmf.TransportID{Transport: nvmf.TCP, SubNQN: fakepeer.NQN, NSID: 1}, o)
			if err != nil {
				return
			}
			defer d.Close()
			requireSane(t, d.Identity())
			q, err := d.OpenQueue(t.Context(), 8)
			if err != nil {
				require.False(t, errors.Is(err, nvmf.ErrConnectionLost), "%v", err)
				return
			}
			defer q.Close()
			useQueue(t, q, d.Identity())
		})
	})
}

// TestEveryAlignment uses targets with every alignment of H2CData that the
// specification allows (CPDA).
func TestEveryAlignment(t *testing.T) {
	for pda := range uint8(32) {
		for _, digests := range []bool{false, true} {
			x := decent()
			x.numbers[20] = pda
			p := x.peer()
			o := Options{Dial: p.Dial, KeepAlive: -1, MaxTransfer: 64 << 10, DataDigest: digests, HeaderDigest: digests}
			d, err := Open(t.Context(), nvmf.TransportID{Transport: nvmf.TCP, SubNQN: fakepeer.NQN, NSID: 1}, o)
			require.NoError(t, err, "CPDA %d", pda)
			q, err := d.OpenQueue(t.Context(), 8)
			require.NoError(t, err)
			useQueue(t, q, d.Identity())
			require.NoError(t, q.Close())
			require.NoError(t, d.Close())
			p.Stop()
		}
	}
}

// TestDiscoverEnds checks that Discover returns when its context is cancelled
// while the target does not answer.
func TestDiscoverEnds(t *testing.T) {
	x := decent()
	x.header.Set(1, maxRecords)
	p := x.peer()
	defer p.Stop()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	answer := p.Admin
	n := 0
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, b []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminGetLogPage {
			if n++; n == 3 {
				cancel(enough)
				return true, nil
			}
		}
		return answer(c, sqe, b)
	}
	hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
		_, err := Discover(ctx, nvmf.TransportID{Transport: nvmf.TCP}, Options{Dial: p.Dial})
		require.ErrorIs(t, err, enough)
	})
}

// requireSane checks the properties of an identity that users of a device rely on.
func requireSane(t *testing.T, id *nvmf.Identity) {
	ok := id.LBASize >= 512 && id.LBASize <= 4096 && id.LBASize&(id.LBASize-1) == 0 &&
		id.Blocks > 0 && id.Capacity()/id.LBASize == nvmf.Bytes(id.Blocks) && int64(id.Capacity()) > 0 &&
		id.MaxTransfer >= id.LBASize && id.MaxTransfer%id.LBASize == 0 && id.MaxTransfer <= initiator.MaxTransfer &&
		id.OptimalTransfer >= id.LBASize && id.OptimalTransfer <= id.MaxTransfer && id.OptimalTransfer%id.LBASize == 0
	require.True(t, ok, "%+v", id)
}

// useQueue reads and writes one block and the largest transfer, at both ends of
// the namespace.
func useQueue(t *testing.T, q nvmf.Queue, id *nvmf.Identity) {
	limit := min(id.MaxTransfer/id.LBASize, nvmf.Bytes(id.Blocks))
	for _, blocks := range []nvmf.Bytes{1, limit} {
		for _, lba := range []nvmf.LBA{0, id.Blocks - nvmf.LBA(blocks)} {
			in, out := make([]byte, blocks*id.LBASize), bytes.Repeat([]byte{9}, int(blocks*id.LBASize))
			cmds := []*nvmf.Command{{Opcode: nvmf.Read, LBA: lba, Blocks: nvmf.LBA(blocks), Data: [][]byte{in}}, {Opcode: nvmf.Flush}}
			if id.CanDeallocate {
				cmds = append(cmds, &nvmf.Command{Opcode: nvmf.Deallocate, LBA: lba, Blocks: nvmf.LBA(blocks)})
			}
			// The peer accepts no other command between its R2T and the data.
			alone := []*nvmf.Command{{Opcode: nvmf.Write, LBA: lba, Blocks: nvmf.LBA(blocks), Data: [][]byte{out[:100], out[100:]}}}
			for _, c := range [][]*nvmf.Command{cmds, alone} {
				q.Submit(c)
				require.NoError(t, q.Wait(c))
			}
			require.Equal(t, len(in), bytes.Count(in, []byte{7}))
		}
	}
}

// FuzzDiscover reads discovery logs with arbitrary contents.
func FuzzDiscover(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte{9, 7, 0, 0, 8, 0, 29, 0})
	f.Add([]byte{10, 0, 0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		x := decent()
		x.edit(script)
		if x.header.Records() > 64 && x.header.Records() <= maxRecords {
			return // longer logs take longer, and test nothing else
		}
		p := x.peer()
		defer p.Stop()
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			entries, err := Discover(t.Context(), nvmf.TransportID{Transport: nvmf.TCP}, Options{Dial: p.Dial})
			if err != nil {
				return
			}
			require.Len(t, entries, int(x.header.Records()))
			for i := range entries {
				require.LessOrEqual(t, len(entries[i].SubNQN()), 256)
				require.LessOrEqual(t, len(entries[i].Address()), 256)
				require.LessOrEqual(t, len(entries[i].Service()), 32)
			}
		})
	})
}

// FuzzReserve reserves a namespace whose target returns an arbitrary reservation
// report, and completes all other reservation commands successfully.
func FuzzReserve(f *testing.F) {
	host := uuid.UUID{1}
	add := func(s nvme.ReservationStatus) { f.Add(s.Append(nil), []byte(nil)) }
	add(nvme.ReservationStatus{})
	add(nvme.ReservationStatus{Type: nvme.WriteExclusive, Registrants: []nvme.Registrant{{Holder: true, Key: 7, HostID: host}}})
	add(nvme.ReservationStatus{Type: nvme.ExclusiveAccess, Registrants: []nvme.Registrant{{Key: 7, HostID: host}, {Key: 3, Holder: true}}})
	add(nvme.ReservationStatus{Type: nvme.WriteExclusiveAllRegistrants, Registrants: []nvme.Registrant{{Key: 9, Holder: true}}})
	f.Fuzz(func(t *testing.T, report, script []byte) {
		page := make([]byte, 8192)
		copy(page, report)
		hostile.Apply(script, 16, [][]byte{page[:16], page[64:96], page[128:160]})
		p := decent().peer()
		defer p.Stop()
		decently := p.IO
		var reports atomic.Int32 // over all queues
		p.IO = func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) error {
			if sqe.Opcode() != nvme.IOReservationReport {
				return decently(c, sqe, data)
			}
			if reports.Add(1) > 50 {
				return fakepeer.ErrHangUp // Reserve would otherwise ask for the same report 1000 times
			}
			b := make([]byte, sqe.SGL().Length())
			copy(b, page)
			return c.Data(sqe.CID(), 0, b, pdu.FlagLast|pdu.FlagSuccess)
		}
		hostile.Bounded(t, 4*fuzzMemory, fuzzTime, func() {
			d, err := Open(t.Context(), nvmf.TransportID{Transport: nvmf.TCP, SubNQN: fakepeer.NQN, NSID: 1},
				Options{Dial: p.Dial, KeepAlive: -1, HostID: host, MaxTransfer: 64 << 10})
			require.NoError(t, err)
			defer d.Close()
			status, total, _ := nvme.ReservationStatusOf(page)
			err = d.Reserve(t.Context(), 7)
			for _, g := range status.Registrants {
				if g.HostID != host && g.Key >= 7 && total == len(status.Registrants) {
					require.ErrorIs(t, err, nvmf.ErrFenced)
				}
			}
			if err == nil {
				require.Equal(t, nvme.WriteExclusive, status.Type)
				require.NotEmpty(t, status.Registrants)
			}
			_ = d.Unreserve(t.Context(), 7)
		})
	})
}
