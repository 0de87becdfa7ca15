package posixshim

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/microfs"
)

// What shim/wire.h says of paths that lead out of the mount (NV_OUTSIDE), and
// of a partition that another process has and serves (NV_REDIRECT).
const (
	pathOutside  = -4096
	pathRedirect = -4097
	pathGone     = -4098 // NV_GONE: this process is ending
	fileTooLarge = -4099 // NV_FILE_TOO_LARGE: EFBIG, with a signal

	maxErrno = 4096 // errors are below it
)

// A server makes the calls of other processes of the rank: forked children,
// programs that they execute, and whoever else found that this process has the
// partition. Each of their connections makes one call at a time.
type server struct {
	self atomic.Pointer[identity]

	// leaving is set when the process ends and nobody has files of it: nobody
	// is to get any. mu is held for reading while somebody does.
	mu      sync.RWMutex
	leaving atomic.Bool

	// failed holds, by handle, the errors of closes that were not reported yet.
	failed sync.Map

	// unreported holds, by handle, when sharings ended that nobody has asked about
	// since, for askTime. connections and calls count who may ask, and what is not
	// answered.
	unreported         sync.Map
	askTime            time.Duration
	connections, calls atomic.Int32

	peerMappings atomic.Int32 // mappings that other processes have

	callersMu sync.Mutex
	callers   map[*connection]struct{}
}

// identity is what others know a process by.
type identity struct {
	once     sync.Once
	number   uint64
	err      error
	listen   atomic.Pointer[os.File]
	accepted chan struct{} // closed when no connection is accepted any more
}

// identity returns that of this process, which may not listen yet.
func (s *server) identity() *identity {
	if s.self.Load() == nil {
		s.self.CompareAndSwap(nil, &identity{accepted: make(chan struct{})})
	}
	return s.self.Load()
}

// Serve begins to serve, and returns the number that other processes know this
// one by. Calls after the first return the same. It is called before a child is
// made: what that one does shows in the next look at a mount for reading.
func (p *Process) Serve() (int, error) {
	for _, m := range p.mounts {
		m.stale.Store(true)
	}
	p.server.leaving.Store(false) // it goes on after all
	number, err := p.serve()
	return int(number), err
}

func (p *Process) serve() (number uint64, err error) {
	s := p.server.identity()
	s.once.Do(func() {
		var b [8]byte
		if _, s.err = rand.Read(b[:]); s.err != nil {
			return
		}
		number := binary.NativeEndian.Uint64(b[:]) >> 2 // results are positive
		fd, err := listenAt(&unix.SockaddrUnix{Name: serverName(number)}, unix.SOMAXCONN)
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
		if s.err = err; err != nil {
			return
		}
		listen := os.NewFile(uintptr(fd), serverName(number))
		s.number = number
		s.listen.Store(listen)
		go p.accept(listen, nil, s.accepted)
	})
	return s.number, s.err
}

// Address is the number as others read it, in hexadecimal digits. Serving begins.
func (p *Process) Address() (string, error) {
	number, err := p.serve()
	return fmt.Sprintf("%016x", number), err
}

// acceptPause is how long a server that is out of descriptors waits.
const acceptPause = 20 * time.Millisecond

// accept takes connections, until the socket is closed, or its deadline is over: then it closes ended. A process
// that has no descriptor left tells who comes, by way of one that it keeps for that: they
// may wait for each other. Those who come ask for what h has left, if that is not nil.
func (p *Process) accept(listen *os.File, h *predecessor, ended chan<- struct{}) {
	defer close(ended)
	raw, err := listen.SyscallConn()
	spare := spareDescriptor()
	for err == nil {
		var fd int
		var failed error
		err = raw.Read(func(on uintptr) bool {
			p.server.connections.Add(1) // before it can ask, or answerAll can miss it, which counts them
			if fd, failed = acceptOne(int(on)); failed != nil {
				p.server.connections.Add(-1)
			}
			if (failed == unix.EMFILE || failed == unix.ENFILE) && spare >= 0 {
				_ = ownfd.Close(spare)
				reject(int(on), failed.(unix.Errno))
				spare = spareDescriptor()
			}
			return failed != unix.EAGAIN
		})
		switch {
		case err != nil:
		case failed != nil:
			time.Sleep(acceptPause)
		case !samePeer(fd):
			p.server.connections.Add(-1)
			_ = ownfd.Close(fd)
		default:
			p.serveConnection(p.server.enter(os.NewFile(uintptr(fd), listen.Name()), h))
		}
	}
	if spare >= 0 {
		_ = ownfd.Close(spare)
	}
}

func acceptOne(on int) (int, error) {
	return ownfd.Open(func() (int, error) {
		fd, _, err := unix.Accept4(on, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return fd, err
	})
}

// reject answers the first request of a connection with an errno and closes the connection.
func reject(on int, errno unix.Errno) {
	fd, err := acceptOne(on)
	if err != nil {
		return
	}
	head, _ := new(message).answer(-int64(errno), replyLast)
	_, _ = unix.SendmsgN(fd, head, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	_ = ownfd.Close(fd)
}

func spareDescriptor() int {
	fd, err := ownfd.Open(func() (int, error) { return unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1
	}
	return fd
}

// samePeer reports whether the other end is a process of this user, or root.
func samePeer(fd int) bool {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (int(cred.Uid) == os.Geteuid() || cred.Uid == 0)
}

// reply makes the call of m and sends what comes of it.
func (p *Process) reply(to syscall.RawConn, m *message) error {
	p.Drain()
	result, descriptor := p.perform(m)
	err := m.send(to, result, 0, descriptor)
	if descriptor != 0 {
		err = errors.Join(err, ownfd.Close(descriptor))
	}
	return err
}

// perform makes a call. The descriptor that it returns, if it is not 0, goes to
// the other process and is closed here.
func (p *Process) perform(m *message) (result int64, descriptor int) {
	var n int
	var err error
	if m.call == callOpen {
		p.server.mu.RLock()
		defer p.server.mu.RUnlock()
		if p.server.leaving.Load() {
			return pathGone, 0
		}
	}
	switch {
	case m.call == callRelease:
		err = p.releaseForPeer(m.handle(), m.process)
	case m.call == callMap:
		n, descriptor, err = p.mapForPeer(m)
	case m.call == callUnmap:
		err = p.unmapForPeer(m, m.mapped())
	default:
		n, err = p.dispatch(m)
	}
	if m.call == callOpen && err == nil {
		// What Open has counted is the sharing from now on.
		h := Handle(n)
		p.openedFor(m.predecessor, h)
		descriptor, err = p.Share(h)
		err = errors.Join(err, p.releaseHandle(h))
	}
	var escape *microfs.EscapeError
	var elsewhere *RedirectError
	switch {
	case err == nil:
		return int64(n), descriptor
	case errors.As(err, &escape) && len(escape.Path) < maxPath:
		m.reply = []byte(escape.Path)
		return pathOutside, 0
	case errors.As(err, &elsewhere):
		m.reply = []byte(elsewhere.Address)
		return pathRedirect, 0
	case errors.Is(err, errFinished) && m.byPath:
		return pathGone, 0
	case errors.Is(err, microfs.ErrFileTooLarge):
		return fileTooLarge, 0
	}
	return -int64(p.Errno(err)), 0
}

// releaseForPeer is told by another process that it has closed a descriptor of
// the open file. process is 0 if it has had no record locks.
func (p *Process) releaseForPeer(h Handle, process int) error {
	defer p.server.unreported.Delete(h)
	f, err := p.files.get(h)
	if err != nil { // the watch was faster
		if late, ok := p.server.failed.LoadAndDelete(h); ok {
			return late.(error)
		}
		return nil
	}
	p.locks.closed(f, process)
	return errors.Join(p.closeShared(f), f.unwritten())
}

// An RedirectError says that another process of the rank has the partition
// and serves whoever asks it. It is syscall.EBUSY to those who cannot.
type RedirectError struct {
	Address string // its Address
	Err     error  // why this process cannot have the partition
}

func (e *RedirectError) Error() string { return e.Err.Error() }

// Unwrap returns why this process cannot have the partition.
func (e *RedirectError) Unwrap() error { return e.Err }
