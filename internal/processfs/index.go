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

// dialIndex connects this process, which writes the given partition, to the index of its job's tree.
func (o *Opener) dialIndex(partition uint32) (*tree.Client, error) {
	cred, err := store.Cred()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	hello := wire.Hello{Format: tree.Format, Run: o.Config.Run, Partition: partition, PID: uint32(os.Getpid()), Host: host, Cred: cred}
	limit := time.Now().Add(o.Config.Timeout)
	for try := 1; ; try++ {
		s, err := o.awaitIndex(limit)
		if err != nil {
			return nil, err
		}
		client, err := tree.Connect(s, hello, o.Config.Timeout)
		if err == nil {
			client.Redial = o.awaitIndex
		}
		if !errors.Is(err, wire.ErrGone) || try == helloTries || time.Now().After(limit) {
			return client, err
		}
	}
}

// helloTries is the number of attempts to introduce the process to an index that is killed before it answers.
const helloTries = 3

// redialPause is the pause between two attempts to reach the index.
const redialPause = 20 * time.Millisecond

// awaitIndex connects to the index. If the index was killed, it waits for the successor that `nvmecr run` starts. This is needed only
// on the same host, since connections of other hosts wait in the listening socket.
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

// sharing is a connection to an index on this host, with shared memory.
type sharing struct {
	*stream
	window []byte
}

// Window returns the shared memory, or nil.
func (s *sharing) Window() []byte { return s.window }

func (s *sharing) Close() error {
	err := owner.CloseWindow(s.window)
	s.window = nil
	return errors.Join(err, s.stream.Close())
}

// reachIndex connects to the index, which is on this host, or at one of the addresses that nvmecr run has given.
func (o *Opener) reachIndex() (io.ReadWriteCloser, error) {
	fd, window, err := owner.DialIndex(store.LockGroup(o.Config.Run), wire.MaxData, o.Config.Timeout)
	if err == nil {
		return &sharing{&stream{fd: fd}, window}, nil
	}
	secret := wire.Secret(o.Config.IndexSecret)
	for _, address := range o.Config.Index {
		s, e := dialTCP(address, o.Config.Timeout)
		if e == nil {
			if e = secret.Prove(s); e == nil {
				return s, nil
			}
			_ = s.Close()
		}
		err = errors.Join(err, fmt.Errorf("%s: %w", address, e))
	}
	return nil, err
}

// dialTCP connects to an address, on the calling thread. Later reads and writes are bounded by the time-out, too.
func dialTCP(address string, timeout time.Duration) (*stream, error) {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()})
	if a.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &stream{fd: ownfd.Hold(fd)}
	err = errors.Join(s.SetTimeout(timeout), unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1))
	if err == nil {
		_, err = s.within(unix.POLLOUT, func() (int, error) { return 0, unix.Connect(s.fd, to) })
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// A stream is a connected socket whose reads and writes block the calling thread. The runtime shares a process with an application that
// may have many threads, and has few threads of its own.
type stream struct {
	fd      int
	timeout time.Duration // time-out of each read and write; 0: none
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.within(unix.POLLIN, func() (int, error) { return unix.Read(s.fd, b) })
	if err == nil && n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

func (s *stream) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		// No SIGPIPE: the application may have a handler for it.
		m, err = s.within(unix.POLLOUT, func() (int, error) {
			return unix.SendmsgN(s.fd, b[n:], nil, nil, unix.MSG_NOSIGNAL)
		})
		n += max(m, 0)
	}
	return n, err
}

// SetTimeout sets the time-out of later reads and writes.
func (s *stream) SetTimeout(timeout time.Duration) error {
	s.timeout = timeout
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	return errors.Join(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// Idle reports whether the connection is open and has no input.
func (s *stream) Idle() bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return err == nil && n == 0
		}
	}
}

func (s *stream) Close() error { return ownfd.Close(s.fd) }

// within makes a system call, and repeats it after a signal. The kernel would restart its time-out each time, so within waits for the
// rest of the time itself.
func (s *stream) within(events int16, call func() (int, error)) (int, error) {
	begin := time.Now()
	for {
		n, err := call()
		switch err {
		case unix.EINTR:
			if err := s.wait(events, begin); err != nil {
				return 0, err
			}
		case unix.EAGAIN:
			return max(n, 0), os.ErrDeadlineExceeded
		default:
			return max(n, 0), err
		}
	}
}

// wait waits until the socket is ready, for the rest of a time-out that began at begin.
func (s *stream) wait(events int16, begin time.Time) error {
	for {
		left := -1
		if s.timeout > 0 {
			left = int(max(0, s.timeout-time.Since(begin)).Milliseconds())
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, left)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return os.ErrDeadlineExceeded
		default:
			return nil
		}
	}
}
