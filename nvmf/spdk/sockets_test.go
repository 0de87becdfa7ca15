//go:build spdk

package spdk

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

func TestOfDevice(t *testing.T) {
	for what, want := range map[string]bool{
		"/dev/vfio/vfio":                                 true,
		"/dev/vfio/12":                                   true,
		"/dev/uio0":                                      true,
		"/dev/infiniband/uverbs0":                        true,
		"/dev/infiniband/rdma_cm":                        true,
		"anon_inode:[vfio-device]":                       true,
		"anon_inode:[eventfd]":                           false,
		"/dev/null":                                      false,
		"/home/me/sys/config":                            false,
		"/var/tmp/spdk_cpu_lock_000":                     false,
		"/var/tmp/spdk_pci_lock_0000:01:00.0":            true,
		"/sys/devices/pci0000:00/0000:00:01.0/config":    true,
		"/sys/devices/pci0000:00/0000:00:01.0/resource0": true,
		"/sys/devices/pci0000:00/0000:00:01.0/resource":  true,
		"/sys/devices/pci0000:00/0000:00:01.0/net/eth0/statistics/rx_errors": false,
	} {
		assert.Equal(t, want, ofDevice(what), what)
	}
}

// TestClaimDevices: what was there before, and what is no device, is left alone.
func TestClaimDevices(t *testing.T) {
	configs, err := filepath.Glob("/sys/devices/*/*/config")
	require.NoError(t, err)
	if len(configs) == 0 {
		t.Skip("no PCI device is here")
	}
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	old := open(configs[0])
	before := descriptors(false)
	other, device := open(os.DevNull), open(configs[0])
	devices := claimDevices(before)
	assert.Equal(t, map[int]string{device: configs[0]}, devices)
	left := inheritable()
	assert.Contains(t, left, old)
	assert.Contains(t, left, other)
	assert.NotContains(t, left, device)
	dropDevices(devices)
	keepDevices(devices)
}

func TestLeadsTo(t *testing.T) {
	for _, c := range []struct {
		listen, address string
		want            bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", false},
		{"::1", "::1", true},
		{"::1", "0:0::1", true},
		{"::1", "::1%lo", true},
		{"::1", "127.0.0.1", false},
		{"127.0.0.1", "::ffff:127.0.0.1", true},
		{"127.0.0.1", "storage", false},
	} {
		t.Run(c.listen+" "+c.address, func(t *testing.T) {
			listen, err := net.Listen("tcp", net.JoinHostPort(c.listen, "0"))
			if err != nil {
				t.Skipf("no such address here: %v", err)
			}
			defer listen.Close()
			conn, err := net.Dial("tcp", listen.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			f, err := conn.(*net.TCPConn).File()
			require.NoError(t, err)
			defer f.Close()
			_, port, err := net.SplitHostPort(listen.Addr().String())
			require.NoError(t, err)
			for service, same := range map[string]bool{port: true, "0" + port: true, "1": false} {
				id := nvmf.TransportID{Transport: nvmf.TCP, Address: c.address, Service: service}
				assert.Equal(t, c.want && same, leadsTo(int(f.Fd()), id), service)
			}
		})
	}
}
