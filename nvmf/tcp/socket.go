package tcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// dialTCP connects a socket to id's address, until ctx ends.
func dialTCP(ctx context.Context, id nvmf.TransportID, congestion string) (int, error) {
	addrs, err := resolve(ctx, id)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", nvmf.ErrUnreachable, err)
	}
	for _, a := range addrs {
		var fd int
		if fd, err = connectTo(ctx, a, congestion); err == nil {
			return fd, nil
		}
		err = fmt.Errorf("connecting to %s: %w: %w", a, nvmf.ErrUnreachable, err)
	}
	return -1, err
}

func resolve(ctx context.Context, id nvmf.TransportID) ([]netip.AddrPort, error) {
	port, err := strconv.ParseUint(id.Service, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("trsvcid %q is not a TCP port", id.Service)
	}
	if a, err := netip.ParseAddr(id.Address); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), uint16(port))}, nil
	}
	network := "ip4"
	if id.Family == "IPv6" {
		network = "ip6"
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, network, id.Address)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, a := range ips {
		list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return list, nil
}

func connectTo(ctx context.Context, a netip.AddrPort, congestion string) (int, error) {
	family, sa := sockaddr(a)
	fd, err := ownfd.Open(func() (int, error) { // a reconnection opens a descriptor while the application runs
		return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	})
	if err != nil {
		return -1, err
	}
	if err = tune(fd, congestion); err == nil {
		err = finishConnect(ctx, fd, sa)
	}
	if err != nil {
		_ = ownfd.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa6 := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		if ifi, err := net.InterfaceByName(zone); err == nil {
			sa6.ZoneId = uint32(ifi.Index)
		}
	}
	return unix.AF_INET6, sa6
}

// tune sets the socket options for a request-response protocol on a fast network.
func tune(fd int, congestion string) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	return initiator.SetCongestion(fd, congestion)
}

// finishConnect connects a non-blocking socket and waits for the result.
func finishConnect(ctx context.Context, fd int, sa unix.Sockaddr) error {
	// Cancelling ctx ends the attempt, which wakes the poll below.
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		close(over)
	})
	err := unix.Connect(fd, sa)
	for err == unix.EINPROGRESS || err == unix.EINTR {
		poll(-1, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT})
		var soerr int
		if soerr, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && soerr != 0 {
			err = syscall.Errno(soerr)
		}
		if err == nil {
			if _, perr := unix.Getpeername(fd); perr != nil {
				err = unix.EINPROGRESS // woken early by a signal
			}
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}
	if !stop() {
		<-over // the caller may close the descriptor, whose number another file can get then
		return fmt.Errorf("connecting: %w", context.Cause(ctx))
	}
	return err
}

// The following functions are the system calls of the data path. They do not allocate.
// They use Syscall, so that the garbage collector and other goroutines can run while
// the kernel copies or waits.

func sendmsg(fd int, m *unix.Msghdr) (int, syscall.Errno) {
	n, _, e := syscall.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(m)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return int(n), e
}

func recvmsg(fd int, m *unix.Msghdr) (int, syscall.Errno) {
	n, _, e := syscall.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT)
	return int(n), e
}

// poll blocks until one of fds is ready for its events, an error or a signal comes, or
// the time is over; a negative timeout waits for ever.
func poll(timeout time.Duration, fds ...unix.PollFd) {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	_, _, _ = syscall.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(ts)), 0, 0, 0)
}
