package target_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
)

// client is a host whose PDUs the test sends and receives one by one.
type client struct {
	t        testing.TB
	c        net.Conn
	send     pdu.Rules
	recv     pdu.Rules
	cid      uint16
	answered int
}

const testHost = "nqn.2014-08.org.example:host"

// hang is longer than any operation takes, even on a busy machine. An operation
// that takes longer counts as one that never ends.
const hang = 5 * time.Minute

// dial connects and exchanges ICReq and ICResp.
func dial(t testing.TB, addr net.Addr, digests uint8) *client {
	h := connect(t, addr)
	h.initialise(digests)
	return h
}

// initialise exchanges ICReq and ICResp.
func (h *client) initialise(digests uint8) {
	b := make([]byte, pdu.ICSize)
	pdu.PutICReq(b, 0, digests, 1)
	h.write(b)
	header, resp := h.read()
	require.Equal(h.t, pdu.TypeICResp, header.Type)
	assert.Equal(h.t, digests, pdu.ICOf(resp).Digest)
	hd, dd := digests&pdu.EnableHeaderDigest != 0, digests&pdu.EnableDataDigest != 0
	h.send = pdu.Rules{FromHost: true, HeaderDigest: hd, DataDigest: dd}
	h.recv = pdu.Rules{HeaderDigest: hd, DataDigest: dd, MaxData: 1 << 20}
}

// pair connects through a socket pair, since many TCP connections would use up the
// ports.
func pair(t testing.TB, tgt *target.Target) *client {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, target.Admit(tgt, fds[0], netip.AddrPort{}))
	f := os.NewFile(uintptr(fds[1]), "host")
	c, err := net.FileConn(f)
	require.NoError(t, errors.Join(err, f.Close()))
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	return &client{t: t, c: c, send: pdu.Rules{FromHost: true}, recv: pdu.Rules{MaxData: 1 << 20}}
}

// connect opens a TCP connection, and sends nothing.
func connect(t testing.TB, addr net.Addr) *client {
	c, err := net.Dial("tcp", addr.String())
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
	t.Cleanup(func() { _ = c.Close() })
	return &client{t: t, c: c, send: pdu.Rules{FromHost: true}, recv: pdu.Rules{MaxData: 1 << 20}}
}

func (h *client) write(b []byte) {
	_, err := h.c.Write(b)
	require.NoError(h.t, err)
}

// next reads one PDU: its header and its data.
func (h *client) next() (pdu.Header, []byte, []byte, error) {
	b := make([]byte, pdu.MaxHeaderSize)
	if _, err := io.ReadFull(h.c, b[:8]); err != nil {
		return pdu.Header{}, nil, nil, err
	}
	x, err := h.recv.Common(b)
	if err != nil {
		return x, nil, nil, err
	}
	size := x.Size()
	if x.Data > 0 && x.Type != pdu.TypeC2HTermReq {
		size = int(x.Offset)
	}
	data := make([]byte, x.Data)
	_, err1 := io.ReadFull(h.c, b[8:size])
	_, err2 := io.ReadFull(h.c, data)
	err = errors.Join(err1, err2, h.recv.Header(x, b))
	if x.Digest && err == nil {
		var crc [4]byte
		_, err = io.ReadFull(h.c, crc[:])
		assert.Equal(h.t, pdu.Digest(0, data), binary.LittleEndian.Uint32(crc[:]), "data digest")
	}
	return x, b, data, err
}

func (h *client) read() (pdu.Header, []byte) {
	x, b, _, err := h.next()
	require.NoError(h.t, err)
	return x, b
}

// response reads a CapsuleResp.
func (h *client) response() *nvme.CQE {
	x, b := h.read()
	require.Equal(h.t, pdu.TypeCapsuleResp, x.Type)
	return pdu.CQEOf(b)
}

// capsule sends a command, with data in its capsule if there is any.
func (h *client) capsule(sqe *nvme.SQE, data []byte) { h.write(h.encode(sqe, data)) }

func (h *client) encode(sqe *nvme.SQE, data []byte) []byte {
	if len(data) > 0 {
		sqe.SGL().Set(nvme.SGLInCapsule, 0, uint32(len(data)))
	}
	b := make([]byte, pdu.MaxHeaderSize)
	n := h.send.Put(b, pdu.TypeCapsuleCmd, 0, len(data))
	*pdu.SQEOf(b) = *sqe
	h.send.Seal(b)
	b = append(b[:n], data...)
	if h.send.TrailerSize(len(data)) > 0 {
		b = binary.LittleEndian.AppendUint32(b, pdu.Digest(0, data))
	}
	return b
}

// command returns a command with an id of its own.
func (h *client) command(opcode uint8) *nvme.SQE {
	h.cid++
	s := new(nvme.SQE)
	s.Reset(opcode, h.cid, 1)
	s.SGL().Set(nvme.SGLTransport, 0, 0)
	return s
}

// connectCommand returns Connect with its data.
func (h *client) connectCommand(qid, cntlid uint16) (*nvme.SQE, *nvme.ConnectData) {
	h.cid++
	s := new(nvme.SQE)
	s.ResetFabrics(nvme.FabricsConnect, h.cid)
	s.SetConnect(nvme.Connect{QID: qid, SQSize: 31})
	d := new(nvme.ConnectData)
	d.Set([16]byte{1}, cntlid, testNQN, testHost)
	return s, d
}

// admin makes h the admin queue of a new, enabled controller.
func (h *client) admin() (cntlid uint16) {
	s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
	h.capsule(s, d[:])
	r := h.response()
	require.Zero(h.t, r.Status())
	h.setProperty(nvme.PropertyCC, nvme.CCFabrics)
	return uint16(r.Result())
}

func (h *client) setProperty(offset uint32, value uint64) {
	h.cid++
	s := new(nvme.SQE)
	s.ResetFabrics(nvme.FabricsPropertySet, h.cid)
	s.SetProperty(offset, value)
	h.capsule(s, nil)
	require.Zero(h.t, h.response().Status())
}

// io2 returns the admin queue and one I/O queue of a new controller.
func io2(t testing.TB, addr net.Addr, digests uint8) (admin, queue *client) {
	admin = dial(t, addr, digests)
	id := admin.admin()
	queue = dial(t, addr, digests)
	queue.join(id)
	return admin, queue
}

// join connects h as I/O queue 1 of a controller.
func (h *client) join(cntlid uint16) {
	s, d := h.connectCommand(1, cntlid)
	h.capsule(s, d[:])
	require.Zero(h.t, h.response().Status())
}

// rw returns a Read or Write command.
func (h *client) rw(opcode uint8, lba uint64, blocks, length uint32) *nvme.SQE {
	s := h.command(opcode)
	s.SetRange(lba, blocks, 0)
	s.SGL().Set(nvme.SGLTransport, 0, length)
	return s
}

// readBlocks reads through the queue.
func (h *client) readBlocks(lba uint64, blocks, length uint32) ([]byte, nvme.Status) {
	h.capsule(h.rw(nvme.IORead, lba, blocks, length), nil)
	var data []byte
	for {
		x, b, d, err := h.next()
		require.NoError(h.t, err)
		if x.Type == pdu.TypeCapsuleResp {
			return data, pdu.CQEOf(b).Status()
		}
		require.Equal(h.t, pdu.TypeC2HData, x.Type)
		data = append(data, d...)
	}
}

// h2c sends H2CData.
func (h *client) h2c(d pdu.Data, last bool, data []byte) { h.write(h.encodeH2C(d, last, data)) }

func (h *client) encodeH2C(d pdu.Data, last bool, data []byte) []byte {
	b := make([]byte, pdu.MaxHeaderSize)
	var flags uint8
	if last {
		flags = pdu.FlagLast
	}
	n := h.send.Put(b, pdu.TypeH2CData, flags, len(data))
	pdu.PutData(b, d)
	h.send.Seal(b)
	b = append(b[:n], data...)
	if h.send.TrailerSize(len(data)) > 0 {
		b = binary.LittleEndian.AppendUint32(b, pdu.Digest(0, data))
	}
	return b
}

// ends expects the target to end the connection, with a TermReq of the given
// status unless that is 0.
func (h *client) ends(fes pdu.FES) {
	h.t.Helper()
	for {
		x, b, _, err := h.next()
		if err != nil {
			assert.True(h.t, errors.Is(err, io.EOF) || isReset(err), "connection ended with %v", err)
			assert.Zero(h.t, fes, "no TermReq came")
			return
		}
		if x.Type == pdu.TypeC2HTermReq {
			assert.Equal(h.t, fes, pdu.TermReqOf(b).FES)
			fes = 0
		}
	}
}
