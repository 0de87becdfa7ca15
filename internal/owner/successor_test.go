package owner

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/ownfd"
)

// TestSuccessor checks that DialSuccessor reaches the listener of the group, also after an earlier one was killed,
// and fails if there is none.
func TestSuccessor(t *testing.T) {
	old := base
	base = t.TempDir()
	t.Cleanup(func() { base = old })
	_, err := DialSuccessor("group")
	assert.ErrorIs(t, err, syscall.ENOENT)
	require.NoError(t, Prepare("group"))
	killed, err := ListenForHandovers("group")
	require.NoError(t, err)
	killed.SetUnlinkOnClose(false)
	require.NoError(t, killed.Close())
	_, err = DialSuccessor("group")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)

	listen, err := ListenForHandovers("group")
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		conn, err := listen.AcceptUnix()
		if err == nil {
			err = conn.Close()
		}
		ended <- err
	}()
	fd, err := DialSuccessor("group")
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, ownfd.Close(fd))
	require.NoError(t, listen.Close())
	_, err = listen.AcceptUnix()
	assert.True(t, errors.Is(err, net.ErrClosed))
	RemoveGroup("group")
	assert.NoDirExists(t, base+prefix()[len(base):]+"-group")
}
