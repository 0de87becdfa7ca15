package serve

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/config"
)

// TestCloseEndsSilentConnections checks that Close does not wait for a client that sends nothing.
func TestCloseEndsSilentConnections(t *testing.T) {
	before := authTimeout
	authTimeout = time.Hour
	defer func() { authTimeout = before }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &Server{cfg: config.Default()}
	s.index.listen = append(s.index.listen, l)
	s.index.pending.Go(func() { s.acceptTree(l, s.serveRemote) })
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	for silent := 0; silent == 0; time.Sleep(time.Millisecond) {
		s.index.connecting.Lock()
		silent = len(s.index.conns)
		s.index.connecting.Unlock()
	}
	require.NoError(t, s.index.close())
	assert.Empty(t, s.index.conns)
}
