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

// TestSocketsAtOnce checks that each of several concurrent connections to one address
// finds its own socket.
func TestSocketsAtOnce(t *testing.T) {
	const devices = 3
	p := playing(func(*fakepeer.Conn, *nvme.SQE) error { return nil }, func(*nvme.SQE) bool { return false })
	var all sync.WaitGroup // the peer answers after all hosts have connected
	all.Add(devices)
	var ports sync.Map // ports of the connections, by host NQN
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
	for i, d := range opened { // the other devices keep their sockets
		require.NoError(t, d.Close())
		for _, other := range opened[i+1:] {
			_, err := unix.Getpeername(spdk.Socket(other))
			assert.NoError(t, err)
		}
	}
}

func hostName(i int) string { return fmt.Sprint("nqn.2014-08.org.example:host-", i) }
