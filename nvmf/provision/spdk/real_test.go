package spdk_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/jsonrpc"
	"nvmecr/internal/shortdir"
	"nvmecr/nvmf"
	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/provision"
	"nvmecr/nvmf/provision/provisiontest"
	"nvmecr/nvmf/provision/spdk"
)

// real is an SPDK target program with a TCP transport, a logical volume store, and no
// job.
type real struct {
	o    spdk.Options
	rpc  *jsonrpc.Client
	unit nvmf.Bytes

	mu              sync.Mutex // guards the following fields
	armed, executed bool
	left            int // number of calls that succeed before calls fail
}

func (r *real) Open(*testing.T) provision.Provisioner { return spdk.New(r.o) }

func (r *real) Connect(id nvmf.TransportID, host string, keys dhchap.Keys) (provisiontest.Volume, error) {
	return provisiontest.Dial(id, host, keys)
}

// serve is a proxy between the provisioner and the target, which can fail calls.
func (r *real) serve(ctx context.Context, l net.Listener) error {
	return jsonrpc.Serve(ctx, l, func(ctx context.Context, method string, params json.RawMessage) (any, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.left--
		died := &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "interrupted"}
		if r.armed && (r.left < 0 || r.left == 0 && !r.executed) {
			return nil, died
		}
		var result json.RawMessage
		var p any
		if params != nil {
			p = params
		}
		err := r.rpc.Call(ctx, method, p, &result)
		if r.armed && r.left == 0 {
			return nil, died
		}
		return result, err
	})
}

func (r *real) Interrupt(n int, executed bool) func() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed, r.left, r.executed = true, n, executed
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.left <= 0
	}
}

func (r *real) Recover(*testing.T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = false
}

// Restart removes all state that a restarted target would have lost: everything but the
// logical volumes.
func (r *real) Restart(t *testing.T) {
	ctx := context.Background()
	p := r.Open(t)
	list, err := p.List(ctx)
	require.NoError(t, err)
	var keys []struct{ Name string }
	require.NoError(t, r.rpc.Call(ctx, "keyring_get_keys", nil, &keys))
	for _, n := range list {
		require.NoError(t, p.Limit(ctx, n.Job, 0))
		require.NoError(t, r.rpc.Call(ctx, "nvmf_delete_subsystem", map[string]string{"nqn": provision.NQN(provision.Base, n.Job)}, nil))
	}
	for _, k := range keys {
		require.NoError(t, r.rpc.Call(ctx, "keyring_file_remove_key", map[string]string{"name": k.Name}, nil))
	}
	require.NoError(t, p.Close())
}

func (r *real) Leftovers(t *testing.T) []string {
	p := r.Open(t)
	list, err := p.List(context.Background())
	require.NoError(t, err)
	require.NoError(t, p.Close())
	var names []string
	for _, n := range list {
		names = append(names, n.Job)
	}
	var keys []struct{ Name string }
	require.NoError(t, r.rpc.Call(context.Background(), "keyring_get_keys", nil, &keys))
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return append(names, files(r.o.Keys)...)
}

func (r *real) Traits() provisiontest.Traits {
	return provisiontest.Traits{Unit: r.unit, Limited: true, Limits: true, Paced: true, Forgetful: true}
}

// newReal returns the target with the socket NVMECR_TEST_SPDK_RPC. It listens at
// NVMECR_TEST_SPDK_LISTEN (127.0.0.1:4420).
func newReal(t *testing.T) *real {
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
	require.Len(t, stores, 1)
	between := filepath.Join(shortdir.New(t), "s")
	r := &real{rpc: rpc, unit: nvmf.Bytes(stores[0].Cluster), o: spdk.Options{Socket: between, Keys: filepath.Join(t.TempDir(), "keys"),
		Listen: &nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port}}}
	l, err := net.Listen("unix", between)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.serve(ctx, l) }()
	t.Cleanup(func() { cancel(); assert.NoError(t, errors.Join(<-ended, rpc.Close())) })
	require.Empty(t, r.Leftovers(t))
	t.Cleanup(func() { assert.Empty(t, r.Leftovers(t)) })
	return r
}

// TestSPDK runs the conformance tests on a real target.
func TestSPDK(t *testing.T) {
	r := newReal(t)
	provisiontest.Run(t, func(*testing.T) provisiontest.Fixture { return r })
}

// TestIsolation checks that the host of one job cannot affect another job.
func TestIsolation(t *testing.T) {
	p := newReal(t).Open(t)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	provisiontest.Isolation(t, p, nil)
}
