package spdk_test

import (
	"cmp"
	"context"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/jsonrpc"
	"nvmecr/nvmf"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
	"nvmecr/nvmf/provision/spdk"
)

// real is a target of SPDK's own, with a TCP transport and a logical volume
// store, and nothing of a job.
type real struct {
	o    spdk.Options
	unit nvmf.Bytes
}

func (r *real) Open(*testing.T) provision.Provisioner { return spdk.New(r.o) }

func (r *real) Connect(id nvmf.TransportID, host string) (provisiontest.Volume, error) {
	return provisiontest.Dial(id, host)
}

func (r *real) Interrupt(int, bool) func() bool { return func() bool { return false } }
func (r *real) Recover(*testing.T)              {}
func (r *real) Restart(*testing.T)              {}

func (r *real) Leftovers(t *testing.T) []string {
	p := r.Open(t)
	list, err := p.List(context.Background())
	require.NoError(t, err)
	require.NoError(t, p.Close())
	var names []string
	for _, n := range list {
		names = append(names, n.Job)
	}
	return names
}

func (r *real) Traits() provisiontest.Traits {
	return provisiontest.Traits{Unit: r.unit, Limits: true, Paced: true, Volatile: true}
}

// TestSPDK runs the conformance on a real target: NVMECR_TEST_SPDK_RPC is its
// socket, NVMECR_TEST_SPDK_LISTEN where it is to listen (127.0.0.1:4420).
func TestSPDK(t *testing.T) {
	socket := os.Getenv("NVMECR_TEST_SPDK_RPC")
	if socket == "" {
		t.Skip("NVMECR_TEST_SPDK_RPC does not name the RPC socket of an nvmf_tgt to test with")
	}
	host, port, err := net.SplitHostPort(cmp.Or(os.Getenv("NVMECR_TEST_SPDK_LISTEN"), "127.0.0.1:4420"))
	require.NoError(t, err)
	rpc := jsonrpc.NewClient(socket)
	var stores []struct {
		Name    string `json:"name"`
		Cluster uint64 `json:"cluster_size"`
	}
	require.NoError(t, rpc.Call(context.Background(), "bdev_lvol_get_lvstores", nil, &stores))
	require.NoError(t, rpc.Close())
	require.Len(t, stores, 1)
	r := &real{unit: nvmf.Bytes(stores[0].Cluster), o: spdk.Options{Socket: socket,
		Listen: &nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port}}}
	require.Empty(t, r.Leftovers(t))
	provisiontest.Run(t, func(*testing.T) provisiontest.Fixture { return r })
	assert.Empty(t, r.Leftovers(t))
}
