package processfs

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/owner"
	"nvmecr/internal/ownfd"
	"nvmecr/internal/store"
	"nvmecr/tree"
	"nvmecr/tree/wire"
)

// dialIndex connects this process to the index of its job's tree, for which it writes the partition of that number.
func (o *Opener) dialIndex(partition uint32) (*tree.Client, error) {
	cred, err := store.Cred()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	s, err := o.awaitIndex(time.Now().Add(o.Config.Timeout))
	if err != nil {
		return nil, err
	}
	hello := wire.Hello{Format: tree.Format, Run: o.Config.Run, Partition: partition, PID: uint32(os.Getpid()), Host: host, Cred: cred}
	client, err := tree.Connect(s, hello, o.Config.Timeout)
	if err == nil {
		client.Redial = o.awaitIndex
	}
	return client, err
}

// redialPause is between two attempts to reach the index.
const redialPause = 20 * time.Millisecond

// awaitIndex connects to the index. Where that was killed it waits for the one that `nvmecr run` starts in its place: on the host of that, since
// elsewhere the socket waits.
func (o *Opener) awaitIndex(limit time.Time) (io.ReadWriteCloser, error) {
	for {
		s, err := o.reachIndex()
		if err == nil {
			return s, nil
		}
		if time.Now().After(limit) || !owner.OfRun(store.LockGroup(o.Config.Run)) {
			return nil, fmt.Errorf("the index of the job's files, in nvmecr serve on the host of nvmecr run, cannot be reached: %v: %w", err, unix.EIO)
		}
		time.Sleep(redialPause)
	}
}

// reachIndex connects to the index, which is on this host, or at one of the addresses that nvmecr run has given.
func (o *Opener) reachIndex() (stream, error) {
	fd, err := owner.DialIndex(store.LockGroup(o.Config.Run))
	if err == nil {
		return stream(fd), nil
	}
	secret := wire.Secret(o.Config.IndexSecret)
	for _, address := range o.Config.Index {
		s, e := dialTCP(address, o.Config.Timeout)
		if e == nil {
			if e = secret.Prove(s); e == nil {
				return s, s.SetDeadline(time.Time{})
			}
			_ = s.Close()
		}
		err = errors.Join(err, fmt.Errorf("%s: %w", address, e))
	}
	return -1, err
}

// dialTCP connects to an address, on the calling thread. Later reads and writes are bounded by the time-out, too.
func dialTCP(address string, timeout time.Duration) (stream, error) {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return -1, err
	}
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()})
	if a.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	s := stream(ownfd.Hold(fd))
	err = errors.Join(s.SetDeadline(time.Now().Add(timeout)), unix.SetsockoptInt(int(s), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1))
	if err == nil {
		_, err = restarting(func() (int, error) { return 0, unix.Connect(int(s), to) })
	}
	if err != nil {
		return -1, errors.Join(err, s.Close())
	}
	return s, nil
}

// A stream is a connected socket whose reads and writes block the calling thread: the runtime lives in an application, which may have
// many threads, and few of its own.
type stream int

func (s stream) Read(b []byte) (int, error) {
	n, err := restarting(func() (int, error) { return unix.Read(int(s), b) })
	if err == nil && n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

func (s stream) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		// No SIGPIPE: the application may have a handler for it.
		m, err = restarting(func() (int, error) {
			return unix.SendmsgN(int(s), b[n:], nil, nil, unix.MSG_NOSIGNAL)
		})
		n += max(m, 0)
	}
	return n, err
}

// SetDeadline bounds each read and write that follows by the time that is left.
func (s stream) SetDeadline(t time.Time) error {
	limit := unix.Timeval{}
	if !t.IsZero() {
		limit = unix.NsecToTimeval(max(time.Until(t), time.Millisecond).Nanoseconds())
	}
	return errors.Join(unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(int(s), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// Idle says whether there is nothing to read, nor an end.
func (s stream) Idle() bool {
	n, err := restarting(func() (int, error) { return unix.Poll([]unix.PollFd{{Fd: int32(s), Events: unix.POLLIN}}, 0) })
	return err == nil && n == 0
}

func (s stream) Close() error { return ownfd.Close(int(s)) }

// restarting is a system call that is made again where a signal has ended it.
func restarting(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		switch err {
		case unix.EINTR:
		case unix.EAGAIN:
			return max(n, 0), os.ErrDeadlineExceeded
		default:
			return max(n, 0), err
		}
	}
}
