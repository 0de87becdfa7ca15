package target_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/target"
)

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func TestConnectValidation(t *testing.T) {
	c := one(memory(t, nvmf.MiB, 4096))
	c.Subsystems[0].Hosts = []string{testHost}
	_, addr := serve(t, c)
	for _, x := range []struct {
		name   string
		edit   func(*nvme.SQE, *nvme.ConnectData)
		status nvme.Status
		result uint64
	}{
		{"unknown subsystem", func(_ *nvme.SQE, d *nvme.ConnectData) {
			d.Set([16]byte{1}, nvme.CNTLIDDynamic, "nqn.2014-08.org.example:other", testHost)
		}, nvme.StatusConnectInvalidParameters, nvme.ConnectInvalid(nvme.ConnectOffsetSubNQN, true)},
		{"host not allowed", func(_ *nvme.SQE, d *nvme.ConnectData) {
			d.Set([16]byte{1}, nvme.CNTLIDDynamic, testNQN, testHost+"x")
		}, nvme.StatusConnectInvalidHost, 0},
		{"static controller", func(_ *nvme.SQE, d *nvme.ConnectData) {
			d.Set([16]byte{1}, 1, testNQN, testHost)
		}, nvme.StatusConnectInvalidParameters, nvme.ConnectInvalid(nvme.ConnectOffsetCNTLID, true)},
		{"record format", func(s *nvme.SQE, _ *nvme.ConnectData) {
			s.SetConnect(nvme.Connect{RecordFormat: 1, SQSize: 31})
		}, nvme.StatusConnectFormat, 0},
		{"queue of one entry", func(s *nvme.SQE, _ *nvme.ConnectData) {
			s.SetConnect(nvme.Connect{SQSize: 0})
		}, nvme.StatusConnectInvalidParameters, nvme.ConnectInvalid(44, false)},
		{"queue too large", func(s *nvme.SQE, _ *nvme.ConnectData) {
			s.SetConnect(nvme.Connect{SQSize: 1024})
		}, nvme.StatusConnectInvalidParameters, nvme.ConnectInvalid(44, false)},
		{"I/O queue of no controller", func(s *nvme.SQE, d *nvme.ConnectData) {
			s.SetConnect(nvme.Connect{QID: 1, SQSize: 31})
			d.Set([16]byte{1}, 77, testNQN, testHost)
		}, nvme.StatusConnectInvalidParameters, nvme.ConnectInvalid(nvme.ConnectOffsetCNTLID, true)},
	} {
		t.Run(x.name, func(t *testing.T) {
			h := dial(t, addr, 0)
			s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
			x.edit(s, d)
			h.capsule(s, d[:])
			r := h.response()
			assert.Equal(t, x.status, r.Status().Code())
			assert.True(t, r.Status().DNR())
			assert.Equal(t, x.result, r.Result())
			assert.NotZero(t, h.admin(), "the connection can still be used")
		})
	}
}

func TestQueueRules(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	h := dial(t, addr, 0)
	h.capsule(h.command(nvme.AdminIdentify), nil)
	assert.Equal(t, nvme.StatusCommandSequence, h.response().Status().Code(), "a command before Connect")
	s, d := h.connectCommand(0, nvme.CNTLIDDynamic)
	h.capsule(s, d[:])
	cntlid := uint16(h.response().Result())

	q := dial(t, addr, 0)
	s, d = q.connectCommand(1, cntlid)
	q.capsule(s, d[:])
	assert.Equal(t, nvme.StatusCommandSequence, q.response().Status().Code(), "an I/O queue before CC.EN")
	h.setProperty(nvme.PropertyCC, nvme.CCFabrics)
	s, d = q.connectCommand(1, cntlid)
	d.Set([16]byte{2}, cntlid, testNQN, testHost)
	q.capsule(s, d[:])
	assert.Equal(t, nvme.StatusConnectInvalidParameters, q.response().Status().Code(), "another host's controller")
	s, d = q.connectCommand(1, cntlid)
	q.capsule(s, d[:])
	assert.Zero(t, q.response().Status())

	twice := dial(t, addr, 0)
	s, d = twice.connectCommand(1, cntlid)
	twice.capsule(s, d[:])
	assert.Equal(t, nvme.StatusCommandSequence, twice.response().Status().Code(), "a queue id in use")

	s, _ = h.connectCommand(0, 0)
	s.ResetFabrics(nvme.FabricsDisconnect, 9)
	q.capsule(s, nil)
	assert.Zero(t, q.response().Status())
	q.ends(0)
	s, d = twice.connectCommand(1, cntlid)
	twice.capsule(s, d[:])
	assert.Zero(t, twice.response().Status(), "the queue id is free after Disconnect")
	require.NoError(t, h.c.Close())
	twice.ends(0) // the end of the admin queue ends the controller
}

func TestIOValidation(t *testing.T) {
	_, addr := serve(t, one(memory(t, 4*nvmf.MiB, 4096)))
	_, q := io2(t, addr, 0)
	block := make([]byte, 4096)
	for _, x := range []struct {
		name   string
		sqe    *nvme.SQE
		data   []byte
		status nvme.Status
	}{
		{"unknown opcode", q.rw(0x7d, 0, 1, 0), nil, nvme.StatusInvalidOpcode},
		{"no such namespace", func() *nvme.SQE { s := q.command(nvme.IOFlush); s.Reset(nvme.IOFlush, s.CID(), 2); return s }(), nil, nvme.StatusInvalidNamespace},
		{"read beyond the end", q.rw(nvme.IORead, 1023, 2, 8192), nil, nvme.StatusLBARange},
		{"read at the largest LBA", q.rw(nvme.IORead, ^uint64(0), 1, 4096), nil, nvme.StatusLBARange},
		{"write beyond the end in capsule", q.rw(nvme.IOWrite, 1024, 1, 4096), block, nvme.StatusLBARange},
		{"write beyond the end by R2T", q.rw(nvme.IOWrite, 1024, 1, 4096), nil, nvme.StatusLBARange},
		{"more than MDTS", q.rw(nvme.IORead, 0, 257, 257*4096), nil, nvme.StatusInvalidField},
		{"SGL too short for a read", q.rw(nvme.IORead, 0, 2, 4096), nil, nvme.StatusSGLLengthInvalid},
		{"SGL too short for a write", q.rw(nvme.IOWrite, 0, 2, 4096), nil, nvme.StatusSGLLengthInvalid},
		{"capsule too short for a write", q.rw(nvme.IOWrite, 0, 2, 0), block, nvme.StatusSGLLengthInvalid},
		{"fused", func() *nvme.SQE { s := q.rw(nvme.IORead, 0, 1, 4096); s[1] |= 1; return s }(), nil, nvme.StatusInvalidField},
		{"data with a command that has none", q.command(nvme.IOFlush), block, nvme.StatusInvalidField},
		{"admin command on an I/O queue", q.command(nvme.AdminIdentify), nil, nvme.StatusInvalidOpcode},
		{"verify beyond the end", q.rw(nvme.IOVerify, 1000, 25, 0), nil, nvme.StatusLBARange},
		{"verify of more than VSL", q.rw(nvme.IOVerify, 0, 257, 0), nil, nvme.StatusInvalidField},
		{"verify with data", q.rw(nvme.IOVerify, 0, 1, 0), block, nvme.StatusInvalidField},
		{"write zeroes beyond the end", q.rw(nvme.IOWriteZeroes, 1000, 25, 0), nil, nvme.StatusLBARange},
	} {
		t.Run(x.name, func(t *testing.T) {
			q.t = t
			q.capsule(x.sqe, x.data)
			r := q.response()
			assert.Equal(t, x.status, r.Status().Code(), "status %#x", r.Status())
			assert.True(t, r.Status().DNR())
			assert.Equal(t, x.sqe.CID(), r.CID())
		})
	}
	_, status := q.readBlocks(0, 1, 4096)
	assert.Zero(t, status, "the queue still works")
}

func TestR2TInPieces(t *testing.T) {
	for _, digests := range []uint8{0, pdu.EnableHeaderDigest | pdu.EnableDataDigest} {
		_, addr := serve(t, one(memory(t, nvmf.MiB, 512)))
		_, q := io2(t, addr, digests)
		want := make([]byte, 64<<10)
		for i := range want {
			want[i] = byte(rand.Uint32())
		}
		q.capsule(q.rw(nvme.IOWrite, 3, 128, uint32(len(want))), nil)
		x, b := q.read()
		require.Equal(t, pdu.TypeR2T, x.Type)
		r := pdu.R2TOf(b)
		assert.Equal(t, uint32(len(want)), r.Length)
		for at := uint32(0); at < r.Length; {
			n := min(uint32(4*(1+rand.IntN(5000))), r.Length-at)
			q.h2c(pdu.Data{CID: r.CID, TTag: r.TTag, Offset: at, Length: n}, at+n == r.Length, want[at:at+n])
			at += n
		}
		require.Zero(t, q.response().Status())
		got, status := q.readBlocks(3, 128, uint32(len(want)))
		assert.Zero(t, status)
		assert.True(t, bytes.Equal(want, got))
	}
}

// copied is a Backing without Memory, so the target receives data into a buffer first.
type copied struct{ target.Backing }

func (copied) Memory() []byte { return nil }

func TestWrongDataDigestWritesNothing(t *testing.T) {
	for _, b := range []target.Backing{memory(t, nvmf.MiB, 4096), copied{memory(t, nvmf.MiB, 4096)}} {
		t.Run(fmt.Sprintf("%T", b), func(t *testing.T) { wrongDataDigest(t, b) })
	}
}

func wrongDataDigest(t *testing.T, backing target.Backing) {
	_, addr := serve(t, one(backing))
	_, q := io2(t, addr, pdu.EnableDataDigest)
	block := bytes.Repeat([]byte{7}, 4096)
	b := q.encode(q.rw(nvme.IOWrite, 5, 1, 0), block)
	b[len(b)-2] ^= 1
	q.write(b)
	assert.Equal(t, nvme.StatusTransientTransport, q.response().Status())
	q.capsule(q.rw(nvme.IOWrite, 5, 1, 4096), nil)
	_, asked := q.read()
	r := pdu.R2TOf(asked)
	b = q.encodeH2C(pdu.Data{CID: r.CID, TTag: r.TTag, Length: 4096}, true, block)
	b[len(b)-2] ^= 1
	q.write(b)
	assert.Equal(t, nvme.StatusTransientTransport, q.response().Status(), "in a PDU of its own")
	got, status := q.readBlocks(5, 1, 4096)
	assert.Zero(t, status)
	assert.Equal(t, make([]byte, 4096), got)
	q.capsule(q.rw(nvme.IOWrite, 5, 1, 0), block)
	assert.Zero(t, q.response().Status())
}

// TestViolations sends PDUs that violate the protocol, and expects the TermReq with the
// status for the violation.
func TestViolations(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	fresh := func(t *testing.T) *client { return connect(t, addr) }
	queue := func(t *testing.T) *client { _, q := io2(t, addr, pdu.EnableHeaderDigest); return q }
	r2t := func(t *testing.T, q *client) pdu.R2T {
		q.capsule(q.rw(nvme.IOWrite, 0, 2, 8192), nil)
		x, b := q.read()
		require.Equal(t, pdu.TypeR2T, x.Type)
		return pdu.R2TOf(b)
	}
	block := make([]byte, 4096)
	for _, x := range []struct {
		name string
		on   func(*testing.T) *client
		do   func(*testing.T, *client)
		fes  pdu.FES
	}{
		{"not NVMe", fresh, func(_ *testing.T, c *client) { c.write([]byte("GET / HTTP/1.1\r\n\r\n")) }, pdu.InvalidHeaderField},
		{"capsule before ICReq", fresh, func(_ *testing.T, c *client) { c.capsule(c.command(0), nil) }, pdu.SequenceError},
		{"ICReq of another version", fresh, func(_ *testing.T, c *client) {
			b := make([]byte, pdu.ICSize)
			pdu.PutICReq(b, 0, 0, 1)
			b[8] = 1
			c.write(b)
		}, pdu.UnsupportedParameter},
		{"second ICReq", queue, func(_ *testing.T, c *client) {
			b := make([]byte, pdu.ICSize)
			pdu.PutICReq(b, 0, 0, 1)
			c.write(b)
		}, pdu.SequenceError},
		{"wrong header digest", queue, func(_ *testing.T, c *client) {
			b := c.encode(c.command(0), nil)
			b[40] ^= 1
			c.write(b)
		}, pdu.HeaderDigestError},
		{"capsule larger than allowed", queue, func(_ *testing.T, c *client) {
			c.write(c.encode(c.command(nvme.IOWrite), make([]byte, 257<<10))[:200])
		}, pdu.InvalidHeaderField},
		{"H2CData without R2T", queue, func(_ *testing.T, c *client) {
			c.h2c(pdu.Data{TTag: 3, Length: 4096}, true, block)
		}, pdu.InvalidHeaderField},
		{"H2CData for another command", queue, func(t *testing.T, c *client) {
			r := r2t(t, c)
			c.h2c(pdu.Data{CID: r.CID + 1, TTag: r.TTag, Length: 4096}, false, block)
		}, pdu.InvalidHeaderField},
		{"H2CData out of order", queue, func(t *testing.T, c *client) {
			r := r2t(t, c)
			c.h2c(pdu.Data{CID: r.CID, TTag: r.TTag, Offset: 4096, Length: 4096}, true, block)
		}, pdu.SequenceError},
		{"H2CData beyond the R2T", queue, func(t *testing.T, c *client) {
			r := r2t(t, c)
			c.h2c(pdu.Data{CID: r.CID, TTag: r.TTag, Length: 12288}, true, make([]byte, 12288))
		}, pdu.TransferOutOfRange},
		{"LAST_PDU too early", queue, func(t *testing.T, c *client) {
			r := r2t(t, c)
			c.h2c(pdu.Data{CID: r.CID, TTag: r.TTag, Length: 4096}, true, block)
		}, pdu.InvalidHeaderField},
		{"more commands than entries", queue, func(_ *testing.T, c *client) {
			for range 33 {
				c.capsule(c.rw(nvme.IOWrite, 0, 1, 4096), nil)
			}
		}, pdu.SequenceError},
		{"host gives up", queue, func(_ *testing.T, c *client) {
			b := make([]byte, pdu.TermReqSize+pdu.MaxTermReqData)
			c.write(b[:pdu.PutTermReq(b, true, pdu.Violation(pdu.SequenceError, 0, ""), nil)])
		}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := x.on(t)
			x.do(t, c)
			c.ends(x.fes)
		})
	}
	_, q := io2(t, addr, 0)
	_, status := q.readBlocks(0, 1, 4096)
	assert.Zero(t, status, "the target still serves others")
}

// TestQueueOfAnotherHost checks that a host with another NQN or another host identifier
// cannot connect a queue to a controller.
func TestQueueOfAnotherHost(t *testing.T) {
	_, addr := serve(t, one(memory(t, nvmf.MiB, 4096)))
	admin := dial(t, addr, 0)
	id := admin.admin()
	for name, edit := range map[string]func(*nvme.ConnectData){
		"name":       func(d *nvme.ConnectData) { d.Set(d.HostID(), id, testNQN, testHost+"x") },
		"identifier": func(d *nvme.ConnectData) { d.Set([16]byte{9}, id, testNQN, testHost) },
	} {
		h := dial(t, addr, 0)
		s, d := h.connectCommand(1, id)
		edit(d)
		h.capsule(s, d[:])
		assert.Equal(t, nvme.StatusConnectInvalidParameters, h.response().Status().Code(), name)
	}
	h := dial(t, addr, 0)
	h.join(id)
}
