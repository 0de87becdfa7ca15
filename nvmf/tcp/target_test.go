package tcp_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// addressID is namespace 1 of targetNQN at an address.
func addressID(tb testing.TB, address string) nvmf.TransportID {
	host, port, err := net.SplitHostPort(address)
	require.NoError(tb, err)
	return nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: targetNQN, NSID: 1}
}

func openDevice(t testing.TB, id nvmf.TransportID, o tcp.Options) *tcp.Device {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	d, err := tcp.Open(ctx, id, o)
	require.NoError(t, err)
	return d
}

// embedded starts a target in this process with one namespace in memory.
func embedded(tb testing.TB, lbaSize, inCapsule nvmf.Bytes) (*target.Target, nvmf.TransportID) {
	b, err := target.NewMemory(64*nvmf.MiB, lbaSize)
	require.NoError(tb, err)
	t, err := target.New(target.Config{InCapsule: inCapsule, Subsystems: []target.Subsystem{{
		NQN: targetNQN, Namespaces: []target.Namespace{{NSID: 1, Backing: b}},
	}}})
	require.NoError(tb, err)
	addr, err := t.Listen("127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		assert.NoError(tb, t.Close(ctx))
	})
	return t, addressID(tb, addr.String())
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name               string
		lbaSize, inCapsule nvmf.Bytes
		options            tcp.Options
	}{
		{"4 KiB blocks", 4096, 0, tcp.Options{}},
		{"512 byte blocks, R2T for nearly all", 512, 4096, tcp.Options{}},
		{"header digest", 4096, 0, tcp.Options{HeaderDigest: true}},
		{"data digest", 512, 4096, tcp.Options{DataDigest: true}},
		{"both digests", 4096, 4096, tcp.Options{HeaderDigest: true, DataDigest: true}},
		{"small transfers", 512, 0, tcp.Options{MaxTransfer: 16 * nvmf.KiB}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, id := embedded(t, c.lbaSize, c.inCapsule)
			blocktest.Run(t, func(t *testing.T) nvmf.Device { return openDevice(t, id, c.options) })
		})
	}
}
