//go:build spdk

package spdk

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestLeadsTo checks whether a socket is recognized as connected to an address.
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
				t.Skipf("this machine lacks the address: %v", err)
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
