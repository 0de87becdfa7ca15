package serve

import (
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pair returns a connection and its other end.
func pair(t *testing.T) (here net.Conn, there *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fds[0]), "here")
	defer f.Close()
	here, err = net.FileConn(f)
	require.NoError(t, err)
	there = os.NewFile(uintptr(fds[1]), "there")
	t.Cleanup(func() { _ = there.Close() })
	return here, there
}

// TestLife checks that a connection ends with its process, although another process has the socket, too.
func TestLife(t *testing.T) {
	sleep := exec.Command("sleep", "1000")
	require.NoError(t, sleep.Start())
	defer func() { _ = sleep.Wait() }()
	here, there := pair(t)
	l := bindToProcess(here, sleep.Process.Pid).(*processConn)
	assert.False(t, l.Ended())
	_, err := there.WriteString("request")
	require.NoError(t, err)
	b := make([]byte, 16)
	n, err := l.Read(b)
	require.NoError(t, err)
	assert.Equal(t, "request", string(b[:n]))
	require.NoError(t, l.SetReadDeadline(time.Now().Add(time.Minute)))
	require.NoError(t, sleep.Process.Kill())
	_, err = l.Read(b)
	assert.ErrorIs(t, err, net.ErrClosed)
	assert.True(t, l.Ended())
	_, err = there.Read(b)
	assert.ErrorIs(t, err, io.EOF)
}

// TestLifeCloses closes a connection before its process ends, and one whose process cannot be watched.
func TestLifeCloses(t *testing.T) {
	here, there := pair(t)
	l := bindToProcess(here, os.Getpid())
	require.NoError(t, l.Close())
	_, err := there.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF)
	here, _ = pair(t)
	assert.Equal(t, here, bindToProcess(here, 0))
	require.NoError(t, here.Close())
}

// A host that vanishes is noticed within the time-out of the run: idle, or while an answer is on its way.
func TestHearOfLoss(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer there.Close()
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, enableKeepalive(conn.(*net.TCPConn), 8*time.Second))
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	for option, want := range map[int]int{
		unix.TCP_KEEPIDLE: 2, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 3, unix.TCP_USER_TIMEOUT: 8000,
	} {
		require.NoError(t, raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
			assert.NoError(t, err)
			assert.Equal(t, want, got, "option %d", option)
		}))
	}
}
