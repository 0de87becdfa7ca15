package tcp_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

// answer returns an Admin hook that answers the commands of one opcode, and of one
// Fabrics command type.
func answer(opcode, fctype uint8, status nvme.Status, result uint64) func(*fakepeer.Conn, *nvme.SQE, []byte) (bool, error) {
	return func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
		if sqe.Opcode() != opcode || opcode == nvme.AdminFabrics && sqe.FabricsType() != fctype {
			return false, nil
		}
		return true, c.Respond(sqe.CID(), status, result)
	}
}

func TestOpenRefused(t *testing.T) {
	connect := func(status nvme.Status, result uint64) func(*fakepeer.Peer) {
		return func(p *fakepeer.Peer) { p.Admin = answer(nvme.AdminFabrics, nvme.FabricsConnect, status, result) }
	}
	namespace := func(f func(*nvme.IdentifyNamespace)) func(*fakepeer.Peer) {
		return func(p *fakepeer.Peer) { p.Namespace = f }
	}
	for _, c := range []struct {
		name  string
		setup func(*fakepeer.Peer)
		want  error
		text  string
	}{
		{"host", connect(nvme.StatusConnectInvalidHost|nvme.DNR, 0), nvmf.ErrHostRefused, "allow it on subsystem " + fakepeer.NQN},
		{"host NQN", connect(nvme.StatusConnectInvalidParameters, nvme.ConnectInvalid(512, true)), nvmf.ErrHostRefused, ""},
		{"subsystem", connect(nvme.StatusConnectInvalidParameters|nvme.DNR, nvme.ConnectInvalid(256, true)), nvmf.ErrNoSubsystem, fakepeer.NQN},
		{"field of the command", connect(nvme.StatusConnectInvalidParameters|nvme.DNR, nvme.ConnectInvalid(44, false)), nil, "offset 44"},
		{"busy", connect(nvme.StatusConnectControllerBusy, 0), nil, "Connect Controller Busy"},
		{"authentication", connect(0, nvme.ConnectResult(1, nvme.ConnectAuthTransaction)), nvmf.ErrAuthentication, "requires it of host"},
		{"secure channel", connect(0, nvme.ConnectResult(1, nvme.ConnectAuthSecureChannel)), nvmf.ErrUnsupported, "secure channel"},
		{"digests", func(p *fakepeer.Peer) { p.IC = func(pdu.IC) pdu.IC { return pdu.IC{Max: 4096} } }, nvmf.ErrUnsupported, "agrees to digests"},
		{"MAXH2CDATA", func(p *fakepeer.Peer) { p.IC = func(q pdu.IC) pdu.IC { return pdu.IC{Max: 512, Digest: q.Digest} } }, nvmf.ErrUnreachable, "MAXH2CDATA 512"},
		{"command set", func(p *fakepeer.Peer) { p.CAP = 1 << 43 }, nvmf.ErrUnsupported, "NVM command set"},
		{"never ready", func(p *fakepeer.Peer) { p.CSTS = func() uint64 { return 0 } }, nil, "not ready after 500 ms"},
		{"fatal", func(p *fakepeer.Peer) { p.CSTS = func() uint64 { return nvme.CSTSFatal } }, nil, "fatal error"},
		{"discovery controller", func(p *fakepeer.Peer) {
			p.Controller = func(c *nvme.IdentifyController) { c.SetControllerType(nvme.ControllerDiscovery) }
		}, nvmf.ErrUnsupported, "type 2"},
		{"no namespace", namespace(func(n *nvme.IdentifyNamespace) { *n = nvme.IdentifyNamespace{} }), nvmf.ErrNoNamespace, ""},
		{"invalid namespace", func(p *fakepeer.Peer) {
			p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
				if sqe.Opcode() == nvme.AdminIdentify && sqe.CNS() == nvme.CNSNamespace {
					return true, c.Respond(sqe.CID(), nvme.StatusInvalidNamespace, 0)
				}
				return false, nil
			}
		}, nvmf.ErrNoNamespace, "Identify Namespace: Invalid Namespace or Format"},
		{"metadata", namespace(func(n *nvme.IdentifyNamespace) { n[128] = 8 }), nvmf.ErrUnsupported, "metadata"},
		{"protection", namespace(func(n *nvme.IdentifyNamespace) { n[29] = 1 }), nvmf.ErrUnsupported, "metadata"},
		{"large blocks", namespace(func(n *nvme.IdentifyNamespace) { n.SetLBAFormat(13) }), nvmf.ErrUnsupported, "2^13"},
		{"impossible size", namespace(func(n *nvme.IdentifyNamespace) { n.SetSize(1 << 60) }), nvmf.ErrUnsupported, "impossible"},
		{"zoned", func(p *fakepeer.Peer) { p.Descriptors = []nvme.Descriptor{{Type: nvme.NIDCSI, ID: []byte{2}}} }, nvmf.ErrUnsupported, "command set 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := fakepeer.New(nil)
			c.setup(p)
			_, err := tcp.Open(t.Context(), p.Start(t), tcp.Options{HeaderDigest: true})
			require.Error(t, err)
			if c.want != nil {
				assert.ErrorIs(t, err, c.want)
			}
			assert.ErrorContains(t, err, c.text)
			assert.ErrorContains(t, err, fakepeer.NQN, "names the device")
		})
	}
}

// TestOpenNobody checks the errors of Open for a closed port, a port that does not
// answer, and a port of another protocol.
func TestOpenNobody(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
		serve      func(c net.Conn, cancel context.CancelFunc)
	}{
		{"silence", "no answer in time (is it an NVMe/TCP port?)", nvmf.ErrUnreachable, nil},
		{"cancelled", "context canceled", context.Canceled, func(_ net.Conn, cancel context.CancelFunc) { cancel() }},
		{"another protocol", "does not exist", nvmf.ErrUnreachable, func(c net.Conn, _ context.CancelFunc) {
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2p1\r\n"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := tcp.Options{ConnectTimeout: 300 * time.Millisecond}
			if c.serve != nil {
				o.ConnectTimeout = testTimeout
				go func() {
					if nc, err := l.Accept(); err == nil {
						c.serve(nc, cancel)
						_, _ = io.Copy(io.Discard, nc)
						nc.Close()
					}
				}()
			}
			_, err = tcp.Open(ctx, addressID(t, l.Addr().String()), o)
			assert.ErrorIs(t, err, c.want)
			assert.ErrorContains(t, err, c.text)
		})
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	id := addressID(t, l.Addr().String())
	require.NoError(t, l.Close())
	_, err = tcp.Open(t.Context(), id, tcp.Options{})
	assert.ErrorIs(t, err, nvmf.ErrUnreachable)
	assert.ErrorContains(t, err, "connection refused")
	id.Service = "port"
	_, err = tcp.Open(t.Context(), id, tcp.Options{})
	assert.ErrorContains(t, err, `trsvcid "port"`)
	id.Service = "4420"
	_, err = tcp.Open(t.Context(), id, tcp.Options{CongestionControl: "none-such"})
	assert.ErrorContains(t, err, `congestion control "none-such"`)
}

func TestIdentity(t *testing.T) {
	own := uuid.MustParse("6f1c8f0e-3e0b-4c7e-a3a8-0b6f7d3e5a11")
	open := func(t *testing.T, p *fakepeer.Peer, o tcp.Options) *nvmf.Identity {
		d := openDevice(t, p.Start(t), o)
		defer d.Close()
		return d.Identity()
	}
	t.Run("UUID", func(t *testing.T) {
		p := fakepeer.New(nil)
		p.Descriptors = []nvme.Descriptor{{Type: nvme.NIDNGUID, ID: make([]byte, 16)}, {Type: nvme.NIDUUID, ID: own[:]}}
		assert.Equal(t, own, open(t, p, tcp.Options{}).UUID)
	})
	var derived []uuid.UUID
	for name, f := range map[string]func(n *nvme.IdentifyNamespace){
		"NGUID":   func(n *nvme.IdentifyNamespace) { n.SetNGUID([16]byte{1}) },
		"EUI-64":  func(n *nvme.IdentifyNamespace) { n[120] = 1 },
		"nothing": func(n *nvme.IdentifyNamespace) {},
	} {
		t.Run(name, func(t *testing.T) {
			p := fakepeer.New(nil)
			p.Descriptors, p.Namespace = nil, f
			id := open(t, p, tcp.Options{})
			assert.EqualValues(t, 5, id.UUID.Version())
			assert.NotContains(t, derived, id.UUID)
			derived = append(derived, id.UUID)
		})
	}
	t.Run("best size of a command", func(t *testing.T) {
		for capsule, want := range map[uint32]nvmf.Bytes{8 << 10: 512 * nvmf.KiB, 128 << 10: 128 * nvmf.KiB} {
			p := fakepeer.New(nil)
			p.Controller = func(c *nvme.IdentifyController) { c.SetIOCCSZ((nvme.SQESize + capsule) / 16) }
			assert.Equal(t, want, open(t, p, tcp.Options{}).OptimalTransfer, "capsules of %d bytes", capsule)
		}
	})
	t.Run("limits", func(t *testing.T) {
		p := fakepeer.New(nil)
		p.Controller = func(c *nvme.IdentifyController) { c.SetMDTS(4); c.SetVWC(0); c.SetONCS(0) }
		id := open(t, p, tcp.Options{})
		assert.Equal(t, 64*nvmf.KiB, id.MaxTransfer)
		assert.Equal(t, 64*nvmf.KiB, id.OptimalTransfer)
		assert.False(t, id.VolatileWriteCache)
		assert.False(t, id.CanDeallocate)
		p = fakepeer.New(nil)
		p.Namespace = func(n *nvme.IdentifyNamespace) { n.SetDeallocateUnit(128) }
		assert.Equal(t, 64*nvmf.KiB, open(t, p, tcp.Options{}).DeallocateUnit)
		p = fakepeer.New(nil)
		p.Namespace = func(n *nvme.IdentifyNamespace) { n.SetDeallocateUnit(128); n.SetNSFEAT(0) }
		assert.Zero(t, open(t, p, tcp.Options{}).DeallocateUnit, "it is not said to be there")
		p = fakepeer.New(nil)
		id = open(t, p, tcp.Options{OptimalTransfer: 1000})
		assert.Equal(t, 4*nvmf.MiB, id.MaxTransfer)
		assert.Equal(t, 512*nvmf.Bytes(1), id.OptimalTransfer)
		assert.True(t, id.VolatileWriteCache)
		assert.True(t, id.CanDeallocate)
		id = open(t, fakepeer.New(nil), tcp.Options{MaxTransfer: 1 << 40})
		assert.Equal(t, 32*nvmf.MiB, id.MaxTransfer, "65536 blocks")
	})
}

// TestHost checks the fields of Connect that identify the host.
func TestHost(t *testing.T) {
	type told struct {
		data    nvme.ConnectData
		connect nvme.Connect
	}
	received := make(chan told, 1)
	p := fakepeer.New(nil)
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, d []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() == nvme.FabricsConnect {
			received <- told{nvme.ConnectData(d), sqe.Connect()}
		}
		return false, nil
	}
	host := uuid.New()
	d := openDevice(t, p.Start(t), tcp.Options{HostID: host, KeepAlive: 15 * time.Second})
	require.NoError(t, d.Close())
	got := <-received
	assert.Equal(t, nvme.UUIDPrefix+host.String(), got.data.HostNQN())
	assert.Equal(t, [16]byte(host), got.data.HostID())
	assert.Equal(t, fakepeer.NQN, got.data.SubNQN())
	assert.Equal(t, nvme.Connect{SQSize: 31, Attributes: nvme.ConnectNoSQFlow, KATO: 15000}, got.connect)
}

// TestKeepAlive checks that the host sends a Keep Alive at intervals of a third of
// the keep-alive time-out.
func TestKeepAlive(t *testing.T) {
	seen := make(chan time.Time, 100)
	p := fakepeer.New(nil)
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminKeepAlive {
			seen <- time.Now()
		}
		return false, nil
	}
	begin := time.Now()
	d := openDevice(t, p.Start(t), tcp.Options{KeepAlive: 60 * time.Millisecond})
	<-seen
	<-seen
	assert.GreaterOrEqual(t, (<-seen).Sub(begin), 60*time.Millisecond)
	require.NoError(t, d.Close())
}

// TestAdminLost checks that the loss of the admin connection ends the commands in
// flight on I/O queues, long before their time-out.
func TestAdminLost(t *testing.T) {
	var waiting atomic.Bool
	p := fakepeer.New(func(*fakepeer.Conn, *nvme.SQE, []byte) error {
		waiting.Store(true)
		return nil
	})
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminKeepAlive && waiting.Load() {
			return true, fakepeer.ErrHangUp
		}
		return false, nil
	}
	_, q := scripted(t, p, tcp.Options{KeepAlive: 60 * time.Millisecond})
	start := time.Now()
	assert.ErrorIs(t, do(q, read(0, make([]byte, 512))), nvmf.ErrConnectionLost)
	assert.Less(t, time.Since(start), testTimeout/2)
}

func TestDiscover(t *testing.T) {
	_, id := embedded(t, 4096, 0)
	entries, err := tcp.Discover(t.Context(), id, tcp.Options{})
	require.NoError(t, err)
	var names []string
	for i := range entries {
		if entries[i].Subtype() == nvme.SubtypeNVM {
			names = append(names, entries[i].SubNQN())
			assert.Equal(t, id.Service, entries[i].Service())
		}
	}
	assert.Equal(t, []string{targetNQN}, names)
}

// TestDiscoverHostile checks that Discover refuses discovery logs that claim too
// many records, have an unknown format, or change with every read.
func TestDiscoverHostile(t *testing.T) {
	for _, c := range []struct {
		name, text string
		header     func(n uint64) (generation, records uint64, format uint16)
	}{
		{"endless", "claims 18446744073709551615 records", func(uint64) (uint64, uint64, uint16) { return 1, 1<<64 - 1, 0 }},
		{"format", "record format 9", func(uint64) (uint64, uint64, uint16) { return 1, 1, 9 }},
		{"restless", "changed 5 times", func(n uint64) (uint64, uint64, uint16) { return n, 1, 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n uint64
			p := fakepeer.New(nil)
			p.Admin = func(conn *fakepeer.Conn, sqe *nvme.SQE, _ []byte) (bool, error) {
				if sqe.Opcode() != nvme.AdminGetLogPage {
					return false, nil
				}
				var h nvme.DiscoveryHeader
				n++
				g, r, f := c.header(n)
				h.Set(g, r)
				h[16] = byte(f)
				return true, conn.Data(sqe.CID(), 0, h[:], pdu.FlagLast|pdu.FlagSuccess)
			}
			_, err := tcp.Discover(t.Context(), p.Start(t), tcp.Options{})
			assert.ErrorContains(t, err, c.text)
		})
	}
}
