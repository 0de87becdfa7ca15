package target_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/hostile"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
)

const (
	fuzzMemory = 64 << 20
	fuzzTime   = 2 * hang
)

// FuzzConnection sends arbitrary bytes at different stages of a connection. The
// target has to end the connection, and to serve another host.
func FuzzConnection(f *testing.F) {
	f.Add(uint8(0), []byte{})
	f.Add(uint8(1), make([]byte, 200))
	f.Add(uint8(2), append([]byte{4, 0, 72, 0, 72, 0, 0, 0, 1, 0x40}, make([]byte, 62)...))
	f.Add(uint8(3), append([]byte{4, 0, 72, 72, 72, 16, 0, 0, 1, 0x40, 1, 0, 1}, make([]byte, 4200)...))
	f.Add(uint8(3), append([]byte{6, 4, 24, 24, 24, 16, 0, 0}, make([]byte, 4200)...))
	f.Add(uint8(4), append([]byte{4, 0, 72, 0, 72, 0, 0, 0, 0x7f, 0x40, 1, 0, 5}, make([]byte, 200)...))
	tgt, err := target.New(one(memory(f, nvmf.MiB, 512)))
	require.NoError(f, err)
	c, _ := guardedConfig(f)
	barred, err := target.New(c)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, stage uint8, b []byte) {
		hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
			h := pair(t, tgt)
			switch stage % 5 {
			case 1:
				h.initialise(0)
			case 2:
				h.initialise(0)
				h.admin()
			case 3:
				admin := pair(t, tgt)
				admin.initialise(0)
				h.initialise(0)
				h.join(admin.admin())
			case 4:
				h = pair(t, barred)
				h.initialise(0)
				h.connectBarred(0, nvme.CNTLIDDynamic)
			}
			_, _ = h.c.Write(b) // the target may end the connection before it has read all
			_ = h.c.(*net.UnixConn).CloseWrite()
			require.NoError(t, h.c.SetDeadline(time.Now().Add(hang)))
			for {
				if _, _, _, err := h.next(); err != nil {
					assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the target neither answers nor ends the connection")
					break
				}
			}
			serves(t, tgt)
		})
	})
}

// serves checks that the target still serves another host.
func serves(t *testing.T, tgt *target.Target) {
	other := pair(t, tgt)
	other.initialise(0)
	assert.NotZero(t, other.admin(), "the target still serves others")
	_ = other.c.Close()
}

// commandScript is the number of bytes of a script for one command: the command, the
// queue, the amount of data, and two edits of the submission queue entry.
const commandScript = 3 + 16

// FuzzCommands sends valid commands with a script's edits, and the data that the
// target asks for. The target has to answer each command once, with at most as
// much data as the command asks for, or to end the connection.
func FuzzCommands(f *testing.F) {
	tgt, err := target.New(one(memory(f, nvmf.MiB, 512)))
	require.NoError(f, err)
	var all []byte
	for i := range commands {
		for queue := range 2 {
			c := append([]byte{uint8(i), uint8(queue), 3}, make([]byte, 16)...)
			f.Add(c, queue == 0)
			all = append(all, c...)
		}
	}
	f.Add(all, true)
	f.Fuzz(func(t *testing.T, script []byte, digests bool) {
		hostile.Bounded(t, 2*fuzzMemory, fuzzTime, func() {
			flags := uint8(0)
			if digests {
				flags = pdu.EnableHeaderDigest | pdu.EnableDataDigest
			}
			admin, io := pair(t, tgt), pair(t, tgt)
			admin.initialise(flags)
			io.initialise(flags)
			io.join(admin.admin())
			queues := [2]*session{{client: admin, held: map[uint16]bool{}}, {client: io, held: map[uint16]bool{}}}
			for n := 0; len(script) >= commandScript && n < 64; n++ {
				if !queues[script[1]&1].command(t, script[:commandScript]) {
					break
				}
				script = script[commandScript:]
			}
			_, _ = admin.c.Close(), io.c.Close()
			serves(t, tgt)
		})
	})
}

// commands has the commands before the edits of a script: opcode, Fabrics command type,
// dwords 10 and 11, length of the data.
var commands = []struct {
	opcode, fctype uint8
	dw10, dw11     uint32
	length         uint32
}{
	{opcode: nvme.IORead, length: 4096}, {opcode: nvme.IOWrite, length: 512}, {opcode: nvme.IOWrite, length: 4096},
	{opcode: nvme.IOFlush}, {opcode: nvme.IOWriteZeroes}, {opcode: nvme.IODSM, dw10: 1, dw11: nvme.DSMDeallocate, length: 32},
	{opcode: nvme.IOReservationReg, length: nvme.ReservationKeysSize}, {opcode: nvme.IOReservationAcquire, dw10: 1 << 8, length: nvme.ReservationKeysSize},
	{opcode: nvme.IOReservationRelease, dw10: 1 << 8, length: nvme.ReservationKeySize}, {opcode: nvme.IOReservationReport, dw10: 1023, dw11: 1, length: 4096},
	{opcode: nvme.AdminIdentify, dw10: nvme.CNSController, length: 4096}, {opcode: nvme.AdminIdentify, dw10: nvme.CNSNamespace, length: 4096},
	{opcode: nvme.AdminIdentify, dw10: nvme.CNSActiveNamespaces, length: 4096}, {opcode: nvme.AdminGetLogPage, dw10: nvme.LogSMART | 127<<16, length: 512},
	{opcode: nvme.AdminGetLogPage, dw10: nvme.LogChangedNS | 0xffff<<16, dw11: 15, length: 1 << 20},
	{opcode: nvme.AdminGetFeatures, dw10: nvme.FeatureHostID, length: 16}, {opcode: nvme.AdminSetFeatures, dw10: nvme.FeatureHostID, length: 16},
	{opcode: nvme.AdminSetFeatures, dw10: nvme.FeatureKeepAliveTimer, dw11: 100000}, {opcode: nvme.AdminSetFeatures, dw10: nvme.FeatureAsyncEventConfig, dw11: 1 << 8},
	{opcode: nvme.AdminAbort}, {opcode: nvme.AdminAsyncEvent}, {opcode: nvme.AdminKeepAlive},
	{opcode: nvme.AdminFabrics, fctype: nvme.FabricsPropertyGet}, {opcode: nvme.AdminFabrics, fctype: nvme.FabricsPropertySet},
	{opcode: nvme.AdminFabrics, fctype: nvme.FabricsConnect, length: 1024}, {opcode: nvme.AdminFabrics, fctype: nvme.FabricsDisconnect},
	{opcode: nvme.IOVerify},
}

// session is a queue of a host that conforms to the transport protocol.
type session struct {
	*client
	held map[uint16]bool // Asynchronous Event Requests
}

// command sends one command, and the data that the target asks for, until the target
// answers. It returns false if the connection has ended.
func (s *session) command(t *testing.T, script []byte) bool {
	base := commands[int(script[0])%len(commands)]
	sqe := s.client.command(base.opcode)
	if base.opcode == nvme.AdminFabrics {
		sqe.ResetFabrics(base.fctype, s.cid)
	}
	sqe.SetCDW(10, base.dw10)
	sqe.SetCDW(11, base.dw11)
	sqe.SGL().Set(nvme.SGLTransport, 0, base.length)
	hostile.Apply(script[3:], 2, [][]byte{sqe[:], sqe[24:48]})
	sqe.SetCID(s.cid)
	var data []byte
	if script[2]&1 != 0 && base.length < 4096 { // in the capsule, or so it says
		data = bytes.Repeat([]byte{script[2]}, int(base.length))
		sgl := *sqe.SGL()
		b := s.encode(sqe, data)
		if script[2]&2 == 0 {
			*pdu.SQEOf(b).SGL() = sgl
			s.send.Seal(b)
		}
		if _, err := s.c.Write(b); err != nil {
			return false
		}
	} else if _, err := s.c.Write(s.encode(sqe, nil)); err != nil {
		return false
	}
	if sqe.Opcode() == nvme.AdminAsyncEvent && s.cid > 0 {
		s.held[s.cid] = true
		// Something else tells whether it was held.
		ping := s.client.command(nvme.AdminKeepAlive)
		if _, err := s.c.Write(s.encode(ping, nil)); err != nil {
			return false
		}
		return s.serve(t, ping)
	}
	return s.serve(t, sqe)
}

// serve sends the data that the target asks for, until the target has answered sqe.
func (s *session) serve(t *testing.T, sqe *nvme.SQE) bool {
	var got uint32
	for {
		h, b, data, err := s.next()
		if err != nil {
			require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "no answer to %x", sqe[:])
			return false
		}
		switch h.Type {
		case pdu.TypeC2HData:
			d := pdu.DataOf(b)
			require.Equal(t, sqe.CID(), d.CID)
			require.Equal(t, got, d.Offset)
			got += uint32(len(data))
			require.LessOrEqual(t, got, sqe.SGL().Length())
		case pdu.TypeR2T:
			r := pdu.R2TOf(b)
			require.Equal(t, sqe.CID(), r.CID)
			require.LessOrEqual(t, r.Offset+r.Length, uint32(1<<20))
			s.h2c(pdu.Data(r), true, make([]byte, r.Length))
		case pdu.TypeCapsuleResp:
			cid := pdu.CQEOf(b).CID()
			if s.held[cid] {
				delete(s.held, cid)
				continue
			}
			require.Equal(t, sqe.CID(), cid)
			return true
		case pdu.TypeC2HTermReq:
			return false
		default:
			t.Fatalf("%s from a controller", h.Type)
		}
	}
}

// TestHostThatDoesNotRead has a host ask for more data than sockets buffer, and read
// it late. The target must need little memory meanwhile, and serve other hosts.
func TestHostThatDoesNotRead(t *testing.T) {
	tgt, err := target.New(one(memory(t, nvmf.MiB, 512)))
	require.NoError(t, err)
	const pages, length = 300, 1 << 20
	h := pair(t, tgt)
	h.initialise(0)
	s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
	s.SetConnect(nvme.Connect{SQSize: 1023})
	h.capsule(s, d[:])
	require.Zero(t, h.response().Status())
	h.setProperty(nvme.PropertyCC, nvme.CCFabrics)
	go func() { // writing may block until the host reads answers
		for range pages {
			s := h.command(nvme.AdminGetLogPage)
			s.SetLogPage(nvme.LogEffects, 0, length)
			s.SGL().Set(nvme.SGLTransport, 0, length)
			if _, err := h.c.Write(h.encode(s, nil)); err != nil {
				return
			}
		}
	}()
	// Each of the other hosts needs 50 KB as well, so their number is fixed.
	hostile.Bounded(t, 16<<20, fuzzTime, func() {
		for range 30 {
			serves(t, tgt)
			time.Sleep(10 * time.Millisecond)
		}
	})
	for range 20 * pages {
		header, _ := h.skip(t)
		if header.Type == pdu.TypeCapsuleResp {
			if h.answered++; h.answered == pages {
				return
			}
		}
	}
	t.Fatalf("%d of %d commands were answered", h.answered, pages)
}

// skip reads a PDU and discards its data.
func (h *client) skip(t *testing.T) (pdu.Header, []byte) {
	b := make([]byte, pdu.MaxHeaderSize)
	_, err := io.ReadFull(h.c, b[:8])
	require.NoError(t, err)
	x, err := h.recv.Common(b)
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, h.c, int64(x.Offset)+int64(x.Data)-8)
	require.NoError(t, err)
	return x, b
}

// TestHalfOpen checks connections that never complete a Connect: silent ones, those
// that send an ICReq byte by byte, and those that send other commands all the time.
// Each of them ends in time, and meanwhile other hosts can connect.
func TestHalfOpen(t *testing.T) {
	c := one(memory(t, nvmf.MiB, 512))
	c.MaxConnections = 8
	tgt, err := target.New(c)
	require.NoError(t, err)
	target.SetPatience(tgt, 2*time.Second)
	start := time.Now()
	ended := make(chan error, 6)
	for i := range cap(ended) {
		h := pair(t, tgt)
		if i%3 == 2 {
			h.initialise(0)
		}
		go func() {
			req := make([]byte, pdu.ICSize)
			pdu.PutICReq(req, 0, 0, 1)
			if i%3 > 0 {
				go drip(h, i%3, req)
			}
			_, err := io.Copy(io.Discard, h.c)
			ended <- err
		}()
	}
	serves(t, tgt)
	for range cap(ended) {
		err := <-ended
		require.True(t, err == nil || isReset(err), "%v", err)
	}
	require.Less(t, time.Since(start), hang/2)
}

// drip sends req byte by byte, or commands at full speed if how is 2, until writing fails.
func drip(h *client, how int, req []byte) {
	for i := 0; ; i++ {
		b := req[i%len(req):][:1]
		if how == 2 {
			b = h.encode(h.command(nvme.AdminIdentify), nil)
		} else {
			time.Sleep(20 * time.Millisecond)
		}
		if _, err := h.c.Write(b); err != nil {
			return
		}
	}
}

// TestTooManyConnections checks that the connections of a host that opens too many without
// Connect end each other, the oldest first, and do not end the connections of other hosts.
func TestTooManyConnections(t *testing.T) {
	c := one(memory(t, nvmf.MiB, 512))
	c.MaxConnections = 16
	_, addr := serve(t, c)
	_, q := io2(t, addr, 0)
	const all, unauthenticated = 64, 4
	var opened []*client
	hostile.Bounded(t, fuzzMemory, fuzzTime, func() {
		for range all {
			h := connect(t, addr)
			b := make([]byte, pdu.ICSize)
			pdu.PutICReq(b, 0, 0, 1)
			_, err := h.c.Write(b)
			require.NoError(t, err)
			_, _, _, err = h.next()
			require.NoError(t, err, "the newest is answered")
			opened = append(opened, h)
		}
		for _, h := range opened[:all-unauthenticated] {
			h.ends(0)
		}
	})
	_, status := q.readBlocks(0, 1, 512)
	assert.Zero(t, status)
}

// FuzzAuthentication authenticates with edited messages, in commands with edited
// fields. The target has to answer, or to end the connection.
func FuzzAuthentication(f *testing.F) {
	c, keys := guardedConfig(f)
	tgt, err := target.New(c)
	require.NoError(f, err)
	f.Add(uint8(0), []byte(nil), []byte(nil))
	f.Add(uint8(1), []byte{1, 0, 0, 0, 1, 0, 255, 0}, []byte(nil))
	f.Add(uint8(2), []byte(nil), []byte{0, 0, 0, 0, 16, 0, 1, 0})
	f.Fuzz(func(t *testing.T, at uint8, message, command []byte) {
		hostile.Bounded(t, 2*fuzzMemory, fuzzTime, func() {
			h := pair(t, tgt)
			h.initialise(0)
			h.connectBarred(0, nvme.CNTLIDDynamic)
			s, host := &session{client: h, held: map[uint16]bool{}}, hostSide(dhchap.Keys{Host: keys.Host})
			sound := true
			next := host.Start()
			for step := uint8(0); next != nil && s.attempt(t, nvme.FabricsAuthSend, next, func(sqe *nvme.SQE) {
				if step == at%4 {
					before := bytes.Clone(next)
					hostile.Apply(message, 4, [][]byte{next})
					sound = sound && bytes.Equal(before, next)
					was := *sqe
					hostile.Apply(command, 4, [][]byte{sqe[4:], sqe[40:48]})
					sound = sound && was == *sqe
				}
			}); step += 2 {
				answer := make([]byte, dhchap.MaxMessage)
				if !s.attempt(t, nvme.FabricsAuthReceive, answer, func(sqe *nvme.SQE) {
					if step+1 == at%4 {
						hostile.Apply(command, 4, [][]byte{sqe[4:], sqe[40:48]})
					}
				}) {
					break
				}
				if next, err = host.Answer(answer); err != nil {
					break
				}
			}
			require.False(t, sound && len(message)+len(command) == 0 && !host.Done(), "an unedited proof is accepted")
			_ = h.c.Close()
		})
	})
}

// attempt executes one command of an authentication, with its data in H2CData or
// C2HData. It returns false if the connection has ended.
func (s *session) attempt(t *testing.T, fctype uint8, message []byte, edit func(*nvme.SQE)) bool {
	sqe := s.security(fctype, securityOf(len(message)))
	edit(sqe)
	sqe.SetCID(s.cid)
	if _, err := s.c.Write(s.encode(sqe, nil)); err != nil {
		return false
	}
	var got uint32
	for {
		h, b, data, err := s.next()
		if err != nil {
			require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "no answer to %x", sqe[:])
			return false
		}
		switch h.Type {
		case pdu.TypeC2HData:
			copy(message[min(int(got), len(message)):], data)
			got += uint32(len(data))
			require.LessOrEqual(t, got, sqe.SGL().Length())
		case pdu.TypeR2T:
			r := pdu.R2TOf(b)
			require.LessOrEqual(t, r.Length, uint32(8192))
			out := make([]byte, r.Length)
			copy(out, message)
			s.h2c(pdu.Data(r), true, out)
		case pdu.TypeCapsuleResp:
			return true
		default:
			return false
		}
	}
}
