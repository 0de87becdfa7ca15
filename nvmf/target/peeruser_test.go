package target

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestUsersOfSockets: whose a socket is, both ways of asking.
func TestUsersOfSockets(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	users := []int{os.Geteuid()}
	if users[0] == 0 {
		users = append(users, 65534)
	}
	for _, user := range users {
		conn := make(chan net.Conn, 1)
		go func() {
			// The thread is not given back, and ends with the goroutine.
			runtime.LockOSThread()
			if _, _, e := syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(user), 0, 0); e != 0 {
				conn <- nil
				return
			}
			conn <- dialHere(l.Addr().(*net.TCPAddr))
		}()
		c := <-conn
		require.NotNil(t, c)
		defer c.Close()
		own, other := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
		for name, ask := range map[string]func(a, b netip.AddrPort) (uint32, error){"diagnosis": userOf, "table": userInTable} {
			uid, err := ask(own, other)
			require.NoError(t, err, name)
			assert.EqualValues(t, user, uid, name)
		}
		ok, err := ownUsers(own, other)
		require.NoError(t, err)
		assert.Equal(t, user == os.Geteuid(), ok)
		err = (&Target{ownUser: true}).mayConnect(own, other)
		if user == os.Geteuid() {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "another user's")
		}
		require.NoError(t, (&Target{}).mayConnect(own, other), "if it was not asked for")
		_, err = ownUsers(netip.AddrPortFrom(own.Addr(), 1), other)
		require.Error(t, err)
	}
}

// dialHere connects in the thread that it is called in.
func dialHere(to *net.TCPAddr) net.Conn {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	if unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}) != nil {
		return nil
	}
	c, _ := net.FileConn(f)
	return c
}
