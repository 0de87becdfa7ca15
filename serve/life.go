package serve

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A processConn is a connection that ends with its process, even if a child of the process has a copy of the socket.
type processConn struct {
	net.Conn
	process *os.File // a pidfd
}

// bindToProcess makes a connection end with the process pid. If the end of that process cannot be watched, it returns
// conn.
func bindToProcess(conn net.Conn, pid int) net.Conn {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return conn // the process has ended and a child has the socket, or the kernel has no pidfd_open
	}
	l := &processConn{conn, os.NewFile(uintptr(fd), "pidfd")}
	go l.watch()
	return l
}

// watch closes the connection at the end of the process. It also returns when the connection is closed.
func (l *processConn) watch() {
	raw, err := l.process.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool { return readable(fd) })
	}
	if err == nil {
		_ = l.Close()
	}
}

// Ended reports whether the process has ended. It is true before the parent of the process is notified.
func (l *processConn) Ended() (ended bool) {
	raw, err := l.process.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { ended = readable(fd) })
	}
	return ended || err != nil // the connection is closed
}

func readable(fd uintptr) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0
}

func (l *processConn) Close() error { return errors.Join(l.process.Close(), l.Conn.Close()) }
