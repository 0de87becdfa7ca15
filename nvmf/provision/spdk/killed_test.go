package spdk_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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

// mortal is an nvmf_tgt that the test kills. It has a logical volume store in a file.
type mortal struct {
	*testing.T
	socket, disk string
	listen       nvmf.TransportID
	rpc          *jsonrpc.Client
	cmd          *exec.Cmd
}

// start starts the command in NVMECR_TEST_SPDK_TARGET, with the socket as a further
// argument.
func (m *mortal) start() {
	words := strings.Fields(os.Getenv("NVMECR_TEST_SPDK_TARGET"))
	m.cmd = exec.Command(words[0], append(words[1:], "-r", m.socket)...)
	m.cmd.Stderr = os.Stderr
	require.NoError(m, m.cmd.Start())
	m.rpc = jsonrpc.NewClient(m.socket)
	require.Eventually(m, func() bool {
		return m.rpc.Call(ctx, "nvmf_create_transport", map[string]any{"trtype": "TCP", "max_io_size": 1 << 20}, nil) == nil
	}, time.Minute, 50*time.Millisecond)
	m.call("bdev_aio_create", map[string]any{"name": "disk", "filename": m.disk, "block_size": 4096})
}

func (m *mortal) call(method string, params any) {
	m.Helper()
	require.NoError(m, m.rpc.Call(ctx, method, params, nil))
}

func (m *mortal) kill() {
	require.NoError(m, m.cmd.Process.Kill())
	_ = m.cmd.Wait() // reports that the process was killed
	require.NoError(m, m.rpc.Close())
}

// clusters returns the numbers of free clusters, of clusters of volumes, and of all
// clusters. They are zero if there is no store yet. The clusters of a volume that is
// being deleted are only in the last number.
func (m *mortal) clusters() (free, used, all uint64) {
	var stores []struct {
		Free uint64 `json:"free_clusters"`
		All  uint64 `json:"total_data_clusters"`
	}
	var volumes []struct {
		Clusters uint64 `json:"num_allocated_clusters"`
	}
	if m.rpc.Call(ctx, "bdev_lvol_get_lvstores", nil, &stores) != nil || len(stores) == 0 || m.rpc.Call(ctx, "bdev_lvol_get_lvols", nil, &volumes) != nil {
		return 0, 0, 0
	}
	for _, v := range volumes {
		used += v.Clusters
	}
	return stores[0].Free, used, stores[0].All
}

// exposed creates and exposes a job, and connects its host.
func (m *mortal) exposed(p provision.Provisioner, job string, size nvmf.Bytes) provisiontest.Volume {
	n, err := p.Create(ctx, job, size)
	require.NoError(m, err)
	require.NoError(m, p.Expose(ctx, job, []string{provisiontest.HostA}, nil))
	v, err := provisiontest.Dial(n.Targets[0], provisiontest.HostA, dhchap.Keys{})
	require.NoError(m, err)
	return v
}

// TestKilled kills a target while it deletes a volume, and while it zeroes the free space
// afterwards. The next job must not see the data of the deleted one.
func TestKilled(t *testing.T) {
	if os.Getenv("NVMECR_TEST_SPDK_TARGET") == "" {
		t.Skip("NVMECR_TEST_SPDK_TARGET does not say how to start an nvmf_tgt to be killed")
	}
	const size, chunk = nvmf.GiB, nvmf.MiB
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	m := &mortal{T: t, socket: filepath.Join(shortdir.New(t), "s"), disk: filepath.Join(t.TempDir(), "disk"),
		listen: nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: "127.0.0.1", Service: strconv.Itoa(port)}}
	require.NoError(t, os.WriteFile(m.disk, nil, 0o600))
	require.NoError(t, os.Truncate(m.disk, int64(size+256*nvmf.MiB)))
	m.start()
	t.Cleanup(func() { m.kill() })
	m.call("bdev_lvol_create_lvstore", map[string]any{"bdev_name": "disk", "lvs_name": "lvs0"})
	open := func() *spdk.Provisioner { return spdk.New(spdk.Options{Socket: m.socket, Listen: &m.listen}) }
	p := open()
	v := m.exposed(p, "melt", size)
	data := make([]byte, chunk)
	for i := range data {
		data[i] = 0xee
	}
	for at := nvmf.Bytes(0); at < size; at += chunk {
		_, err := v.WriteAt(data, int64(at))
		require.NoError(t, err)
	}
	require.NoError(t, v.Close())

	// killed kills the target while it deletes a volume.
	killed := func(call func(p *spdk.Provisioner) error) {
		ended := make(chan error, 1)
		p := open()
		go func() { ended <- call(p) }()
		require.Eventually(t, func() bool { free, used, all := m.clusters(); return free+used < all }, time.Minute, time.Millisecond)
		time.Sleep(20 * time.Millisecond) // the target zeroes some clusters
		m.kill()
		require.Error(t, <-ended)
		require.NoError(t, p.Close())
		m.start()
		require.Eventually(t, func() bool { _, _, all := m.clusters(); return all > 0 }, time.Minute, 10*time.Millisecond)
		free, used, all := m.clusters()
		t.Logf("killed during a deletion: of %d clusters, %d are free and %d belong to volumes", all, free, used)
	}
	killed(func(p *spdk.Provisioner) error { return p.Delete(ctx, "melt") })
	killed(func(p *spdk.Provisioner) error { _, err := p.Create(ctx, "next", size); return err })

	v = m.exposed(p, "next", size)
	got, zeros := make([]byte, chunk), make([]byte, chunk)
	for at := nvmf.Bytes(0); at < size; at += chunk {
		_, err := v.ReadAt(got, int64(at))
		require.NoError(t, err)
		require.True(t, bytes.Equal(zeros, got), "old data at %d", at)
	}
	require.NoError(t, v.Close())
	for _, job := range []string{"melt", "next"} {
		require.NoError(t, p.Delete(ctx, job))
	}
	free, _, all := m.clusters()
	assert.Equal(t, all, free)
	var volumes []struct{ Name string }
	require.NoError(t, m.rpc.Call(ctx, "bdev_lvol_get_lvols", nil, &volumes))
	assert.Empty(t, volumes)
	require.NoError(t, p.Close())
}
