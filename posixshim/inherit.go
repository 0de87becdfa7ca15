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

// A process shares an open file with other processes by a unix socket, whose name has the number of the server and the handle of
// the file. Forked children and executed programs inherit the socket, and it can be duplicated and sent. A process with this
// library reads the name (getsockname) and knows which file of which process it is. A program without this library can write to
// the socket if the file is open for writing (relay.go). Otherwise the socket only listens, and write fails with ENOTCONN. read
// fails with EINVAL or EAGAIN, and opening the socket by its path in /proc fails with ENXIO.
//
// The owner has the other end of the socket. The kernel hangs up that end when the last descriptor of the socket in any process is
// closed. Then the other processes have closed the open file, and the sharing ends.

// watch is the owner's end.
type watch struct {
	*os.File
	relay *relay // if the file is open for writing

	end sync.Once // ends the sharing
	err error     // the result of that

	// detached says that the owner has no descriptor of the socket any more: only other processes have. If the file is shared
	// again, it gets another socket.
	detached atomic.Bool
	finished atomic.Bool
	older    *watch // the sharing before, which is detached

	stopped chan struct{} // closed when the goroutine that waits for the end has returned
}

// sharedName returns the name of an open file's socket, and serverName the address of a server. shim/remote/socketname.c and
// shim/remote/remote.c parse and make the same names. The last part of sharedName is random, so that no other process can bind
// the name first.
func sharedName(server uint64, h Handle) string {
	return fmt.Sprintf("@nvmecr:%016x:%016x:%s", server, uint64(h), rand.Text())
}
func serverName(server uint64) string { return fmt.Sprintf("@nvmecr:%016x", server) }

// Share returns a new socket of the open file; 0 if the file's descriptors are its socket already. The caller duplicates the
// socket onto the descriptors of the file and closes it (ownfd).
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
	if err == nil && !f.share(w) { // another thread has shared it
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

// watchFor starts a goroutine that waits for the end of a sharing.
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

// shared says whether the process's own descriptors of the open file are its socket.
func (f *openFile) shared() bool { return f.watch.Load().attached() }

func (w *watch) attached() bool { return w != nil && !w.detached.Load() }

// share makes w the newest watch, unless there is one that is attached.
func (f *openFile) share(w *watch) bool {
	for {
		w.older = f.watch.Load()
		if w.older.attached() {
			return false
		}
		if f.watch.CompareAndSwap(w.older, w) {
			return true
		}
	}
}

// newSharedSocket makes the socket of an open file, and the owner's end of it.
func (p *Process) newSharedSocket(f *openFile) (int, *watch, error) {
	number, err := p.serve()
	if err != nil {
		return 0, nil, err
	}
	name := &unix.SockaddrUnix{Name: sharedName(number, f.handle)}
	if f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY {
		socket, end, err := relayPair(name)
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

// listenAt makes a socket that listens at a name. It is registered as a descriptor of the runtime (ownfd), so that a child that is
// forked meanwhile closes its copy.
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

// unshare ends the sharing that w watches, and drops its reference of the open file. It does so once: a concurrent call waits for
// that, and returns the same error.
func (p *Process) unshare(f *openFile, w *watch) error {
	w.end.Do(func() {
		p.drain(w)
		p.removeRelay(w)
		p.server.ended(f.handle)
		closed := ownfd.CloseFile(w.File)
		last, err := p.unref(f)
		w.err = errors.Join(closed, err)
		if last {
			return
		}
		// The file is still open and may be shared again: unlink w from the list.
		w.finished.Store(true)
		for v := f.watch.Load(); v != nil && v.finished.Load(); v = f.watch.Load() {
			f.watch.CompareAndSwap(v, v.older)
		}
	})
	return w.err
}

// closeShared ends those sharings of an open file whose last descriptor has been closed, and returns the error to the process
// that has closed it.
func (p *Process) closeShared(f *openFile) error {
	ended, err := p.closeHungUp(f)
	if ended {
		p.server.closeErrors.Delete(f.handle) // the caller gets the error
		p.server.unreported.Delete(f.handle)
	}
	return err
}

// closeHungUp ends the sharings of an open file that have hung up.
func (p *Process) closeHungUp(f *openFile) (ended bool, err error) {
	for w := f.watch.Load(); w != nil; w = w.older {
		if w.ended() {
			ended = true
			err = errors.Join(err, p.unshare(f, w))
		}
	}
	return ended, err
}

// ended says whether the other end has been closed in all processes.
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

// ChooseNumber is called with 1 before the application gives a descriptor a number of its choice, and with 0 after that. In
// between the runtime opens no descriptors.
func (p *Process) ChooseNumber(begins int) error {
	ownfd.Choose(begins != 0)
	return nil
}

// Alone is called before the process ends or, if ends is 0, executes a program, when no descriptor of this process is a socket of
// Share any more. It returns how many open files and mappings other processes have.
func (p *Process) Alone(ends int) (int, error) {
	if ends != 0 && p.Ending != nil {
		p.Ending()
	}
	p.files.each(func(f *openFile) {
		if w := f.watch.Load(); w != nil {
			w.detached.Store(true)
		}
	})
	left := p.sharedFiles()
	if left == 0 {
		p.server.answerAll()
	}
	return left, nil
}

// closeQueryTime is how long a server that ends waits for other processes to ask for the result of closing a file. It is counted in
// sleeps of closeQueryPause: on a busy machine both this process and the other one wait for a processor, and sleeps take longer.
const (
	closeQueryTime  = time.Second
	closeQueryPause = time.Millisecond
)

// ended records that a sharing has ended, and drops old records.
func (s *server) ended(h Handle) {
	s.unreported.Range(func(old, at any) bool {
		if time.Since(at.(time.Time)) > 60*s.closeQueryTime {
			s.unreported.Delete(old)
		}
		return true
	})
	s.unreported.Store(h, time.Now())
}

// answerAll waits until all processes that have closed a file have got the result, for closeQueryTime at most. A process that
// gets no reply believes that this process was killed.
func (s *server) answerAll() {
	since := time.Now().Add(-s.closeQueryTime)
	for sleeps := time.Duration(0); sleeps*closeQueryPause < s.closeQueryTime && s.hasUnreported(since); sleeps++ {
		time.Sleep(closeQueryPause)
	}
}

// hasUnreported says whether a connected process may still ask for the result of a sharing that has ended after since, or waits
// for a reply. It looks at s.unreported before s.calls, because a request is counted in calls before its record is deleted.
func (s *server) hasUnreported(since time.Time) (unreported bool) {
	if hasPending(s.identity().listen.Load()) || s.connections.Load() > 0 {
		s.unreported.Range(func(_, at any) bool {
			unreported = at.(time.Time).After(since)
			return !unreported
		})
	}
	return unreported || s.calls.Load() > 0
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

// sharedFiles returns how many open files and mappings other processes have. If they have none they cannot open any from now on.
func (p *Process) sharedFiles() (left int) {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	left = int(p.server.peerMappings.Load())
	p.files.each(func(f *openFile) {
		_, _ = p.closeHungUp(f) // watchFor prints errors
		if w := f.watch.Load(); w != nil && !w.ended() {
			left++
		}
	})
	p.server.refusesOpens.Store(left == 0)
	return left
}
