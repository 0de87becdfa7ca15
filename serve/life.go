package serve

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A life is a connection of a process of this host. It ends with the process, though a child of that may have a copy of the socket.
type life struct {
	net.Conn
	process *os.File // a pidfd
}

// ofProcess makes a connection end with the process of a number. Where the end of the process cannot be watched the connection stays as it is.
func ofProcess(conn net.Conn, pid int) net.Conn {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return conn // the process has ended, and a connection that has not is a child's; or the kernel is an old one
	}
	l := &life{conn, os.NewFile(uintptr(fd), "pidfd")}
	go l.watch()
	return l
}

// watch closes the connection at the end of the process. It returns when it is closed, too.
func (l *life) watch() {
	raw, err := l.process.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool { return readable(fd) })
	}
	if err == nil {
		_ = l.Close()
	}
}

// Ended says whether the process has ended: it is true before its parent hears of that.
func (l *life) Ended() (ended bool) {
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

func (l *life) Close() error { return errors.Join(l.process.Close(), l.Conn.Close()) }
