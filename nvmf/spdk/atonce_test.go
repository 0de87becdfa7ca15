//go:build spdk

package spdk_test

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/spdk"
	"nvmecr/nvmf/tcp/fakepeer"
)

// TestSocketsAtOnce: of connections to one address that are made at once each finds
// the socket that is its own.
func TestSocketsAtOnce(t *testing.T) {
	const devices = 3
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	var all sync.WaitGroup // nobody is answered before all are connected
	all.Add(devices)
	var ports sync.Map // of the connections, by the name of the host
	admin := p.Admin
	p.Admin = func(c *fakepeer.Conn, sqe *nvme.SQE, data []byte) (bool, error) {
		if sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() == nvme.FabricsConnect {
			ports.Store((*nvme.ConnectData)(data).HostNQN(), c.RemoteAddr().(*net.TCPAddr).Port)
			all.Done()
			all.Wait()
		}
		return admin(c, sqe, data)
	}
	id := p.Start(t)
	opened := make([]nvmf.Device, devices)
	var group sync.WaitGroup
	for i := range opened {
		group.Go(func() { opened[i] = openDevice(t, id, spdk.Options{HostNQN: hostName(i), KeepAlive: -1}) })
	}
	group.Wait()
	for i, d := range opened {
		name, err := unix.Getsockname(spdk.Socket(d))
		require.NoError(t, err)
		port, _ := ports.Load(hostName(i))
		assert.Equal(t, port, name.(*unix.SockaddrInet4).Port)
	}
	for i, d := range opened { // those that are left have theirs
		require.NoError(t, d.Close())
		for _, other := range opened[i+1:] {
			_, err := unix.Getpeername(spdk.Socket(other))
			assert.NoError(t, err)
		}
	}
}

func hostName(i int) string { return fmt.Sprint("nqn.2014-08.org.example:host-", i) }
