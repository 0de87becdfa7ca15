package owner

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

const windowSize = 1 << 16

// introduced dials an index that begins the connection with introduce.
func introduced(t *testing.T, patience time.Duration, introduce func(*net.UnixConn)) (int, []byte, error) {
	old := base
	base = t.TempDir()
	t.Cleanup(func() { base = old })
	require.NoError(t, Prepare("group"))
	listen, err := ListenForIndex("group")
	require.NoError(t, err)
	t.Cleanup(func() { listen.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := listen.AcceptUnix(); assert.NoError(t, err) {
			introduce(conn)
		}
	}()
	fd, window, err := DialIndex("group", windowSize, patience)
	<-done
	return fd, window, err
}

// TestWindow checks that both ends have the memory, and that neither can shrink it.
func TestWindow(t *testing.T) {
	var theirs []byte
	fd, ours, err := introduced(t, hang, func(conn *net.UnixConn) {
		var err error
		theirs, err = ShareWindow(conn, windowSize)
		assert.NoError(t, err)
		assert.NoError(t, conn.Close())
	})
	require.NoError(t, err)
	require.Len(t, ours, windowSize)
	require.Len(t, theirs, windowSize)
	ours[0], theirs[windowSize-1] = 1, 2
	assert.Equal(t, []byte{1, 2}, []byte{theirs[0], ours[windowSize-1]})
	require.NoError(t, CloseWindow(theirs))
	ours[1] = 3
	require.NoError(t, CloseWindow(ours))
	require.NoError(t, CloseWindow(nil))
	require.NoError(t, ownfd.Close(fd))

	sealed, window, err := makeWindow(windowSize)
	require.NoError(t, err)
	assert.Equal(t, unix.EPERM, unix.Ftruncate(sealed, 0), "the other end would die of SIGBUS")
	require.NoError(t, CloseWindow(window))
	require.NoError(t, unix.Close(sealed))
}

func TestIntroductions(t *testing.T) {
	sendFile := func(conn *net.UnixConn, first byte, size int64) {
		f, err := os.CreateTemp(t.TempDir(), "")
		if assert.NoError(t, err) && assert.NoError(t, f.Truncate(size)) {
			_, _, err = conn.WriteMsgUnix([]byte{first}, unix.UnixRights(int(f.Fd())), nil)
			assert.NoError(t, err)
			assert.NoError(t, f.Close())
		}
	}
	for name, c := range map[string]struct {
		introduce func(*net.UnixConn)
		patience  time.Duration
		err       error
	}{
		"no memory":        {func(c *net.UnixConn) { _, _ = c.Write([]byte{noWindow}) }, hang, nil},
		"no descriptor":    {func(c *net.UnixConn) { _, _ = c.Write([]byte{hasWindow}) }, hang, syscall.EPROTO},
		"of another build": {func(c *net.UnixConn) { sendFile(c, hasWindow, windowSize/2) }, hang, syscall.EPROTO},
		"closed":           {func(c *net.UnixConn) { _ = c.Close() }, hang, syscall.ECONNRESET},
		"silent":           {func(*net.UnixConn) {}, time.Millisecond, syscall.EAGAIN},
	} {
		t.Run(name, func(t *testing.T) {
			fd, window, err := introduced(t, c.patience, c.introduce)
			assert.Nil(t, window)
			if c.err == nil {
				require.NoError(t, err)
				require.NoError(t, ownfd.Close(fd))
				return
			}
			assert.ErrorIs(t, err, c.err)
		})
	}
}
