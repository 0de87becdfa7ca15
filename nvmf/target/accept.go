package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Listen starts to accept connections at address, host:port as for net.Listen, and returns the
// address with the port that the system has chosen. A target can listen at several addresses.
func (t *Target) Listen(address string) (net.Addr, error) {
	network := "tcp"
	if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().Is4() {
		network = "tcp4" // with "tcp", 0.0.0.0 would include every IPv6 address
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("target: listen: %w", err)
	}
	l := listener.(*net.TCPListener)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errors.Join(net.ErrClosed, l.Close())
	}
	t.listeners = append(t.listeners, l)
	go t.routineAccept(l)
	return l.Addr(), nil
}

// Addr returns the first address at which the target listens, nil before Listen.
func (t *Target) Addr() net.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.listeners) == 0 {
		return nil
	}
	return t.listeners[0].Addr()
}

// Serve waits until ctx ends and closes the target. Commands in flight have five seconds to
// complete.
func (t *Target) Serve(ctx context.Context) error {
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return t.Close(last)
}

// routineAccept starts a thread for each accepted socket until l is closed.
func (t *Target) routineAccept(l *net.TCPListener) {
	for {
		accepted, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			t.log.Error("target: accept, trying again", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		peer := accepted.RemoteAddr().(*net.TCPAddr).AddrPort()
		fd, err := takeOver(accepted)
		if err == nil {
			err = t.admit(fd, peer)
		}
		if err != nil {
			t.log.Error("target: connection refused", "peer", peer.String(), "err", err)
		}
	}
}

// takeOver returns the socket of c, which then is no longer registered with Go's poller.
func takeOver(c *net.TCPConn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, errors.Join(err, c.Close())
	}
	var failed error
	err = raw.Control(func(old uintptr) {
		if failed = prepare(int(old)); failed == nil {
			fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	return fd, errors.Join(err, failed, c.Close())
}

// admit starts a connection on a stream socket that does not block, or closes
// the socket when the limit of connections is reached.
func (t *Target) admit(fd int, peer netip.AddrPort) error {
	c, err := newConn(t, fd, peer)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || !t.makeSpace(peer.Addr()) {
		c.closeSocket()
		return fmt.Errorf("%d connections of %d are open", len(t.conns), t.maxConns)
	}
	t.accepted++
	c.number = t.accepted
	t.conns[c] = struct{}{}
	t.group.Add(1)
	go c.routineServe()
	return nil
}
