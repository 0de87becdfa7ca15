//go:build spdk

package spdk_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
	"nvmecr/nvmf/tcp/fakepeer"
)

const (
	targetNQN = "nqn.2014-08.org.example:spdk-test"
	// peerEnv is the transport id of a target whose namespace may be overwritten.
	peerEnv = "NVMECR_TEST_SPDK"
)

// restartable is a target in this process that can be stopped, and started again at the
// same address with the same namespace.
type restartable struct {
	backing   target.Backing
	inCapsule nvmf.Bytes
	target    *target.Target
	addr      string
}

// lasting is a Backing that stays open when its target closes.
type lasting struct{ target.Backing }

func (lasting) Close() error { return nil }

// embedded starts a restartable target with a namespace in memory.
func embedded(tb testing.TB, lbaSize, inCapsule nvmf.Bytes) *restartable {
	r := &restartable{addr: "127.0.0.1:0", inCapsule: inCapsule}
	var err error
	r.backing, err = target.NewMemory(64*nvmf.MiB, lbaSize)
	require.NoError(tb, err)
	r.start(tb)
	tb.Cleanup(func() {
		r.stop(tb)
		assert.NoError(tb, r.backing.Close())
	})
	return r
}

func (r *restartable) start(tb testing.TB) {
	var err error
	r.target, err = target.New(target.Config{InCapsule: r.inCapsule, Subsystems: []target.Subsystem{{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: lasting{r.backing}}},
	}}})
	require.NoError(tb, err)
	var addr net.Addr
	for range 500 {
		if addr, err = r.target.Listen(r.addr); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.NoError(tb, err)
	r.addr = addr.String()
}

func (r *restartable) stop(tb testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	assert.NoError(tb, r.target.Close(ctx))
}

func (r *restartable) id(tb testing.TB) nvmf.TransportID {
	host, port, err := net.SplitHostPort(r.addr)
	require.NoError(tb, err)
	return nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: targetNQN, NSID: 1}
}

// peer returns the transport id of the target in peerEnv.
func peer(tb testing.TB) nvmf.TransportID {
	s := os.Getenv(peerEnv)
	if s == "" {
		tb.Skipf("%s is not set to the transport id of a target whose namespace may be overwritten", peerEnv)
	}
	id, err := nvmf.ParseTransportID(s)
	require.NoError(tb, err)
	return id
}

func openDevice(tb testing.TB, id nvmf.TransportID, o spdk.Options) nvmf.Reserver {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // huge pages take long in a slow virtual machine
	defer cancel()
	d, err := spdk.Open(ctx, id, o)
	require.NoError(tb, err)
	return d
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name               string
		lbaSize, inCapsule nvmf.Bytes
		options            spdk.Options
	}{
		{"4 KiB blocks", 4096, 0, spdk.Options{}},
		{"512 byte blocks, R2T for nearly all", 512, 4096, spdk.Options{}},
		{"both digests", 4096, 4096, spdk.Options{HeaderDigest: true, DataDigest: true}},
		{"small transfers", 512, 0, spdk.Options{MaxTransfer: 16 * nvmf.KiB}},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := embedded(t, c.lbaSize, c.inCapsule).id(t)
			blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, c.options) })
		})
	}
}

func TestPeerConformance(t *testing.T) {
	id := peer(t)
	for name, o := range map[string]spdk.Options{"plain": {}, "digests": {HeaderDigest: true, DataDigest: true}} {
		t.Run(name, func(t *testing.T) {
			blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, o) })
		})
	}
}

// TestNoFlowControl checks that the driver disables the flow control of its submission queues. With
// flow control SPDK's target sends a response to each read in addition to the data.
func TestNoFlowControl(t *testing.T) {
	if spdk.Version() < "26.09" {
		t.Skipf("SPDK %s always uses flow control", spdk.Version())
	}
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	admin, received := p.Admin, make(chan nvme.Connect, 1)
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() == nvme.FabricsConnect {
			received <- sqe.Connect()
		}
		return admin(c, sqe, data)
	}
	require.NoError(t, openDevice(t, p.Start(t), spdk.Options{KeepAlive: -1}).Close())
	assert.EqualValues(t, nvme.ConnectNoSQFlow, (<-received).Attributes)
}

// TestSameIdentity checks that a namespace has the same identity in both drivers.
func TestSameIdentity(t *testing.T) {
	same := func(t *testing.T, id nvmf.TransportID) {
		other, err := tcp.Open(t.Context(), id, tcp.Options{})
		require.NoError(t, err)
		defer other.Close()
		d := openDevice(t, id, spdk.Options{})
		defer d.Close()
		assert.Equal(t, other.Identity(), d.Identity())
	}
	t.Run("embedded", func(t *testing.T) { same(t, embedded(t, 4096, 0).id(t)) })
	t.Run("SPDK", func(t *testing.T) { same(t, peer(t)) })
}

func TestReservations(t *testing.T) {
	r := embedded(t, 4096, 0)
	blocktest.RunReserver(t, blocktest.Reservers{
		Open: func(t *testing.T, host uuid.UUID) nvmf.Reserver {
			return openDevice(t, r.id(t), spdk.Options{HostID: host})
		},
		Restart: func(t *testing.T) {
			r.stop(t)
			r.start(t)
		},
	})
}

func TestPeerReservations(t *testing.T) {
	id := peer(t)
	d := openDevice(t, id, spdk.Options{})
	defer d.Close()
	if !d.Identity().Reservations {
		t.Skip("this target has no reservations")
	}
	blocktest.RunReserver(t, blocktest.Reservers{Open: func(t *testing.T, host uuid.UUID) nvmf.Reserver {
		return openDevice(t, id, spdk.Options{HostID: host})
	}})
}

func TestRefusals(t *testing.T) {
	r := embedded(t, 4096, 0)
	for name, c := range map[string]struct {
		change func(*nvmf.TransportID)
		want   error
	}{
		"subsystem": {func(id *nvmf.TransportID) { id.SubNQN = "nqn.2014-08.org.example:none" }, nvmf.ErrNoSubsystem},
		"namespace": {func(id *nvmf.TransportID) { id.NSID = 7 }, nvmf.ErrNoNamespace},
		"port":      {func(id *nvmf.TransportID) { id.Service = "1" }, nvmf.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			id := r.id(t)
			c.change(&id)
			_, err := spdk.Open(t.Context(), id, spdk.Options{ConnectTimeout: 5 * time.Second})
			assert.ErrorIs(t, err, c.want)
			t.Log(err)
		})
	}
}
