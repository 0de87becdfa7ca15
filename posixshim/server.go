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

// Results of calls that are no errno, as in shim/wire.h.
const (
	pathOutside  = -4096 // NV_OUTSIDE
	pathRedirect = -4097 // NV_REDIRECT
	pathGone     = -4098 // NV_GONE: this process is ending
	fileTooLarge = -4099 // NV_FILE_TOO_LARGE

	maxErrno = 4096 // each errno is smaller
)

// A server makes the calls of other processes of the rank: forked children, programs that they execute, and processes that have
// found that this one has the partition. Each connection makes one call at a time.
type server struct {
	self atomic.Pointer[identity]

	// refusesOpens is set when the process ends and no other process has files of it. No process gets a file from then on. mu is
	// held for reading during an open.
	mu           sync.RWMutex
	refusesOpens atomic.Bool

	// closeErrors has, by handle, errors of closing files that no process has got yet.
	closeErrors sync.Map

	// unreported has, by handle, when sharings ended whose result no process has asked for yet. connections counts the processes
	// that may ask, calls the requests that have no reply yet.
	unreported         sync.Map
	closeQueryTime     time.Duration
	connections, calls atomic.Int32

	peerMappings atomic.Int32 // mappings of other processes

	peersMu sync.Mutex
	peers   map[*connection]struct{}
}

// identity is how other processes address a process.
type identity struct {
	once     sync.Once // begins to listen
	number   uint64
	err      error // of that
	listen   atomic.Pointer[os.File]
	accepted chan struct{} // closed when accept has returned
}

// identity returns the identity of this process, which may not listen yet.
func (s *server) identity() *identity {
	if s.self.Load() == nil {
		s.self.CompareAndSwap(nil, &identity{accepted: make(chan struct{})})
	}
	return s.self.Load()
}

// Serve begins to serve, and returns the number by which other processes address this one. Later calls return the same number. It
// is called before a child is made. The child may write to a partition, so mounts for reading are checked before they are used
// again.
func (p *Process) Serve() (int, error) {
	for _, m := range p.mounts {
		m.stale.Store(true)
	}
	p.server.refusesOpens.Store(false) // the program could not be executed, and this process goes on
	if p.Forks != nil {
		p.forks.Do(p.Forks)
	}
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

// Address begins to serve, and returns the number of Serve in hexadecimal digits.
func (p *Process) Address() (string, error) {
	number, err := p.serve()
	return fmt.Sprintf("%016x", number), err
}

// acceptPause is how long a server without free descriptors waits.
const acceptPause = 20 * time.Millisecond

// accept accepts connections until the socket is closed, or its deadline is over. Then it closes ended. If the process has no
// free descriptor, accept closes a spare one and rejects a connection with an error: without an answer, this process and the
// other one might wait for each other. If h is not nil, the connections are to that predecessor.
func (p *Process) accept(listen *os.File, h *predecessor, ended chan<- struct{}) {
	defer close(ended)
	raw, err := listen.SyscallConn()
	spare := spareDescriptor()
	for err == nil {
		var fd int
		var failed error
		err = raw.Read(func(on uintptr) bool {
			p.server.connections.Add(1) // before the connection is accepted, so that answerAll does not miss it
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
			p.serveConnection(p.server.addConnection(os.NewFile(uintptr(fd), listen.Name()), h))
		}
	}
	if spare >= 0 {
		_ = ownfd.Close(spare)
	}
}

// acceptOne accepts a connection, whose descriptor becomes one of the runtime.
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

// reply makes the call of m and sends the reply.
func (p *Process) reply(to syscall.RawConn, m *message) error {
	p.Drain()
	result, descriptor := p.perform(m)
	err := m.send(to, result, 0, descriptor)
	if descriptor != 0 {
		err = errors.Join(err, ownfd.Close(descriptor))
	}
	return err
}

// perform makes a call. If descriptor is not 0, the caller sends it to the other process and closes it.
func (p *Process) perform(m *message) (result int64, descriptor int) {
	var n int
	var err error
	if m.call == callOpen {
		p.server.mu.RLock()
		defer p.server.mu.RUnlock()
		if p.server.refusesOpens.Load() {
			return pathGone, 0
		}
	}
	switch {
	case m.call == callRelease:
		err = p.releaseForPeer(m.handle(), m.process)
	case m.call == callMap:
		n, descriptor, err = p.mapForPeer(m)
	case m.call == callUnmap:
		err = p.unmapForPeer(m, m.mapHandle())
	default:
		n, err = p.dispatch(m)
	}
	if m.call == callOpen && err == nil {
		// Open has made a reference. Share makes the one of the sharing, and that of Open is dropped.
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

// releaseForPeer is called for another process that has closed a descriptor of the open file. process is the process whose record
// locks are released; 0: it has had none.
func (p *Process) releaseForPeer(h Handle, process int) error {
	defer p.server.unreported.Delete(h)
	f, err := p.files.get(h)
	if err != nil { // the goroutine of watchFor has closed the file already
		if late, ok := p.server.closeErrors.LoadAndDelete(h); ok {
			return late.(error)
		}
		return nil
	}
	p.locks.descriptorClosed(f, process)
	return errors.Join(p.closeShared(f), f.takeRelayErr())
}

// A RedirectError says that another process of the rank has the partition, and makes calls for this one. Err wraps syscall.EBUSY.
type RedirectError struct {
	Address string // Process.Address of the other process
	Err     error  // why this process cannot have the partition
}

func (e *RedirectError) Error() string { return e.Err.Error() }

// Unwrap returns why this process cannot have the partition.
func (e *RedirectError) Unwrap() error { return e.Err }
