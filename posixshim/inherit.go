package posixshim

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// A process shares an open file with other processes by a descriptor that stands for
// the file: a unix socket with a name made of the server's number and the handle. Forked
// children and executed programs inherit the socket, and it can be duplicated and sent. A process with this library
// reads the name of the socket (getsockname) and knows which file of which process it is.
// A program without this library can write to the socket if the file is open for writing (relay.go). Otherwise the
// socket only listens, and a write is ENOTCONN. A read is EINVAL or EAGAIN,
// and opening the socket by its path in /proc is ENXIO.
//
// The owner has the other end of the socket. The kernel hangs it up
// when the last descriptor of the socket in any process is closed:
// then the other processes have closed the open file.

// watch is that end.
type watch struct {
	*os.File
	relay *relay // if the file is open for writing

	end sync.Once
	err error // of the end, once that is done

	// foreign is set when the owner's own descriptors are plain again: only
	// others have the socket, and the next child gets another one.
	foreign atomic.Bool
	over    atomic.Bool
	older   *watch // which is foreign

	stopped chan struct{} // closed when the goroutine that waits for the end has returned
}

// sharedName is the name of an open file's socket, and serverName that of the
// server's. shim/remote/socketname.c and shim/remote/remote.c know them too.
// The part behind the handle is random, so no other process can bind the name first.
func sharedName(server uint64, h Handle) string {
	return fmt.Sprintf("@nvmecr:%016x:%016x:%s", server, uint64(h), rand.Text())
}
func serverName(server uint64) string { return fmt.Sprintf("@nvmecr:%016x", server) }

// Share returns a new descriptor that stands for the open file in other
// processes, or 0 if it has been shared and still is. The caller puts it in
// the place of the file's descriptors and closes it (ownfd).
func (p *Process) Share(h Handle) (int, error) {
	f, err := p.files.get(h)
	if err != nil || f.shared() {
		return 0, err
	}
	if err := p.Retain(h); err != nil {
		return 0, err
	}
	socket, w, err := p.newSharedSocket(f)
	if w != nil {
		w.stopped = make(chan struct{})
	}
	if err == nil && !f.share(w) { // another thread shares it
		err = errors.Join(ownfd.CloseFile(w.File), ownfd.Close(socket))
		socket = 0
		return 0, errors.Join(err, p.releaseHandle(h))
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("sharing an open file with a child: %w", err), p.releaseHandle(h))
	}
	if w.relay != nil {
		p.addRelay(w)
	}
	p.watchFor(f, w)
	return socket, nil
}

// watchFor waits for the end of a sharing, on a goroutine of its own.
func (p *Process) watchFor(f *openFile, w *watch) {
	go func() {
		defer close(w.stopped)
		p.Guard("the end of a sharing", func() {
			if !p.awaitHangup(w) {
				return
			}
			if err := p.unshare(f, w); err != nil {
				p.logf("closing a file that another process had open: %v", err)
			}
		})
	}()
}

// shared says that the process's own descriptors of the open file stand for it
// in others too.
func (f *openFile) shared() bool { return f.watch.Load().own() }

func (w *watch) own() bool { return w != nil && !w.foreign.Load() }

// share makes w the newest watch, unless there is one of the process's own.
func (f *openFile) share(w *watch) bool {
	for {
		w.older = f.watch.Load()
		if w.older.own() {
			return false
		}
		if f.watch.CompareAndSwap(w.older, w) {
			return true
		}
	}
}

// newSharedSocket makes the socket of an open file, and the connection to it.
func (p *Process) newSharedSocket(f *openFile) (int, *watch, error) {
	number, err := p.serve()
	if err != nil {
		return 0, nil, err
	}
	name := &unix.SockaddrUnix{Name: sharedName(number, f.handle)}
	if f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY {
		socket, end, err := connected(name)
		write := func(b []byte) (int, error) { return p.Write(f.handle, b, NoLimit) }
		return socket, &watch{File: end, relay: &relay{file: f, write: write}}, err
	}
	socket, err := listenAt(name, 0)
	if err != nil {
		return 0, nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, errors.Join(err, ownfd.Close(socket))
	}
	fd = ownfd.Hold(fd)
	if err := unix.Connect(fd, name); err != nil {
		return 0, nil, errors.Join(err, ownfd.Close(fd), ownfd.Close(socket))
	}
	return socket, &watch{File: os.NewFile(uintptr(fd), name.Name)}, nil
}

// listenAt makes a socket that listens at a name. It is the runtime's: a child
// that is forked meanwhile closes its copy: no other code would.
func listenAt(name unix.Sockaddr, backlog int) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if fd, err = aboveStandard(fd); err != nil {
		return 0, err
	}
	fd = ownfd.Hold(fd)
	if err = unix.Bind(fd, name); err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return 0, errors.Join(err, ownfd.Close(fd))
	}
	return fd, nil
}

// unshare ends the sharing that w watches, once: the open file has one
// reference less. A concurrent call waits until that is done, and returns
// the same error.
func (p *Process) unshare(f *openFile, w *watch) error {
	w.end.Do(func() {
		p.drain(w)
		p.removeRelay(w)
		p.server.ended(f.handle)
		closed := ownfd.CloseFile(w.File)
		last, err := p.drop(f)
		w.err = errors.Join(closed, err)
		if last {
			return
		}
		// It may be shared again.
		w.over.Store(true)
		for v := f.watch.Load(); v != nil && v.over.Load(); v = f.watch.Load() {
			f.watch.CompareAndSwap(v, v.older)
		}
	})
	return w.err
}

// closeShared ends the sharing of an open file of which no process has a descriptor
// any more. The process that closed the last descriptor gets the error.
func (p *Process) closeShared(f *openFile) error {
	ended, err := p.closeHungUp(f)
	if ended {
		p.server.failed.Delete(f.handle) // the caller has heard of it
		p.server.unreported.Delete(f.handle)
	}
	return err
}

func (p *Process) closeHungUp(f *openFile) (ended bool, err error) {
	for w := f.watch.Load(); w != nil; w = w.older {
		if w.ended() {
			ended = true
			err = errors.Join(err, p.unshare(f, w))
		}
	}
	return ended, err
}

// ended says that the last descriptor of the other end has been closed.
func (w *watch) ended() bool {
	raw, err := w.SyscallConn()
	if err != nil {
		return true
	}
	fds := []unix.PollFd{{}}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, _ = unix.Poll(fds, 0)
	})
	return err != nil || fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// ChooseNumber is told that the application is about to give a number of its choice to a descriptor, or if begins is 0 that it has.
func (p *Process) ChooseNumber(begins int) error {
	ownfd.Choose(begins != 0)
	return nil
}

// Alone is told that the process ends, or if ends is 0 executes a program, and that no descriptor of this process stands for an open file in
// others any more. It returns how many files others have nevertheless.
func (p *Process) Alone(ends int) (int, error) {
	if ends != 0 && p.Ending != nil {
		p.Ending()
	}
	p.files.each(func(f *openFile) {
		if w := f.watch.Load(); w != nil {
			w.foreign.Store(true)
		}
	})
	left := p.sharedFiles()
	if left == 0 {
		p.server.answerAll()
	}
	return left, nil
}

// askTime is how long after it has closed the last descriptor of an open file
// another process may ask what came of that. It is counted in naps: on a busy machine,
// where the other one has to wait for a processor, so has this one, and naps take longer.
const (
	askTime  = time.Second
	askPause = time.Millisecond
)

// ended notes that a sharing has ended, and forgets those whose time for questions is over.
func (s *server) ended(h Handle) {
	s.unreported.Range(func(old, at any) bool {
		if time.Since(at.(time.Time)) > 60*s.askTime {
			s.unreported.Delete(old)
		}
		return true
	})
	s.unreported.Store(h, time.Now())
}

// answerAll waits until no process is about to ask, or waits for an answer: a process without
// an answer takes this one for killed.
func (s *server) answerAll() {
	since := time.Now().Add(-s.askTime)
	for naps := time.Duration(0); naps*askPause < s.askTime && s.hasUnreported(since); naps++ {
		time.Sleep(askPause)
	}
}

// hasUnreported says whether a process may still ask about a sharing that has ended since then, or waits for an
// answer. It looks at requests before calls: a request becomes a call before it is answered.
func (s *server) hasUnreported(since time.Time) (owes bool) {
	if hasPending(s.identity().listen.Load()) || s.connections.Load() > 0 {
		s.unreported.Range(func(_, at any) bool {
			owes = at.(time.Time).After(since)
			return !owes
		})
	}
	return owes || s.calls.Load() > 0
}

// hasPending says whether a connection waits to be accepted.
func hasPending(listen *os.File) bool {
	if listen == nil {
		return false
	}
	raw, err := listen.SyscallConn()
	if err != nil {
		return false
	}
	fds := []unix.PollFd{{Events: unix.POLLIN}}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, _ = unix.Poll(fds, 0)
	})
	return err == nil && fds[0].Revents&unix.POLLIN != 0
}

func (p *Process) sharedFiles() (left int) {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	left = int(p.server.peerMappings.Load())
	p.files.each(func(f *openFile) {
		_, _ = p.closeHungUp(f) // what fails is said by who watches
		if w := f.watch.Load(); w != nil && !w.ended() {
			left++
		}
	})
	p.server.leaving.Store(left == 0)
	return left
}
