package target

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sockets are used through raw system calls with MSG_DONTWAIT and are never
// registered with Go's poller: its wake-ups cost more than a small command.

// prepare sets the options of an accepted socket.
func prepare(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	// The system's default may be BBR, whose pacing halves the bandwidth of
	// a fast network.
	if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
			return fmt.Errorf("TCP_CONGESTION: neither cubic nor reno: %w", err)
		}
	}
	// A host that vanished without keep-alives of its own must not hold its
	// connection for ever.
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
}

// The calls below move data without waiting. With brief the Go scheduler is not told of the call.
// If this thread has a core to itself, telling it costs more than the call: after 20 us the
// scheduler takes the thread for blocked and wakes another one. With more threads than cores the
// scheduler is told: it lets few of them run at a time, and the data that they move stays in the
// caches. It must be told where the memory is that of a file, because the call may block.

// recv receives into b.
func recv(fd int, b []byte, brief bool) (n int, errno syscall.Errno) {
	var r uintptr
	if brief {
		r, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	} else {
		r, _, errno = unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	}
	return int(r), errno
}

// recvmsg receives into what m describes.
func recvmsg(fd int, m *unix.Msghdr, brief bool) (n int, errno syscall.Errno) {
	var r uintptr
	if brief {
		r, _, errno = unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT)
	} else {
		r, _, errno = unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT)
	}
	return int(r), errno
}

// sendmsg sends what m describes.
func sendmsg(fd int, m *unix.Msghdr, brief bool) (n int, errno syscall.Errno) {
	var r uintptr
	if brief {
		r, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	} else {
		r, _, errno = unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	return int(r), errno
}

// local returns the local address of a connected socket.
func local(fd int) netip.AddrPort {
	a, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(a)
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// again reports whether a call has to be repeated, since it would have had to wait.
func again(errno syscall.Errno) bool { return errno == unix.EAGAIN || errno == unix.EINTR }

// poll waits until fd is ready for events, other is readable, or timeout ms
// have passed (-1: never).
func poll(fd int, events int16, other int, timeout int) error {
	fds := [2]unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(other), Events: unix.POLLIN}}
	_, err := unix.Poll(fds[:], timeout)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// unsafeSlice returns the memory an Iovec describes.
func unsafeSlice(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }
