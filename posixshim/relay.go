package posixshim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// Some writes to a descriptor bypass the shim: those of the C library's own streams, and
// with them std::cout, those of static programs, and direct system calls.
// The socket that stands for a file open for writing is therefore connected
// to a socket of the server, which relays the data to the file, at the shared
// offset or at its end. Every call first drains these sockets
// (Drain), so that the order of the calls is kept.

// A relay is the server's end of such a socket.
type relay struct {
	file  *openFile
	write func([]byte) (int, error)

	mu         sync.Mutex // held from taking bytes until they are in the file
	buf        []byte
	reported   bool // the user knows that writing has failed
	handedOver bool // another process relays from now on
}

// relayChunk is how many bytes are taken from a socket at once.
const relayChunk = 256 << 10

// relays are all those of a process.
type relays struct {
	mu  sync.Mutex // held to replace the list
	all atomic.Pointer[[]*watch]
}

// changeRelays replaces the list. Other processes know whether there is one.
func (p *Process) changeRelays(change func([]*watch) []*watch) {
	c := &p.relays
	c.mu.Lock()
	defer c.mu.Unlock()
	var now []*watch
	before := c.all.Load()
	if before != nil {
		now = slices.Clone(*before)
	}
	if now = change(now); len(now) == 0 {
		c.all.Store(nil)
	} else {
		c.all.Store(&now)
	}
	if p.Relaying != nil && (before != nil) != (len(now) > 0) {
		p.Relaying(len(now) > 0)
	}
}

func (p *Process) addRelay(w *watch) {
	p.changeRelays(func(all []*watch) []*watch { return append(all, w) })
}

func (p *Process) removeRelay(w *watch) {
	p.changeRelays(func(all []*watch) []*watch {
		return slices.DeleteFunc(all, func(v *watch) bool { return v == w })
	})
}

// Drain waits until what was written to descriptors past the shim is in the files.
// It is called before each call, which must see that. A process no file of which can be
// written to so pays for a load.
func (p *Process) Drain() {
	if all := p.relays.all.Load(); all != nil {
		for _, w := range *all {
			p.drain(w)
		}
	}
}

// FinishRelayed drains, and closes the files that no process has open any more. Another process calls it that has seen the end
// of the writers.
func (p *Process) FinishRelayed() {
	all := p.relays.all.Load()
	if all == nil {
		return
	}
	for _, w := range *all {
		if !p.drain(w) {
			continue
		}
		if err := p.unshare(w.relay.file, w); err != nil {
			p.logf("closing a file that another process had open: %v", err)
		}
	}
}

// drain does so for one socket. It reports whether that is the end, as relay does.
func (p *Process) drain(w *watch) (end bool) {
	if w.relay == nil {
		return false
	}
	// One that is closed has been drained.
	if raw, err := w.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { end = p.relay(w.relay, int(fd)) })
	}
	return end
}

// relay writes what there is in the socket to the file. It reports whether that is
// the end: no process has the other end any more.
func (p *Process) relay(c *relay, fd int) (end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handedOver {
		return false
	}
	if c.buf == nil {
		c.buf = make([]byte, relayChunk)
	}
	for {
		n, _, err := unix.Recvfrom(fd, c.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		case n <= 0 || err != nil:
			return true
		default:
			p.put(c, c.buf[:n])
		}
	}
}

// put writes data to the file. The writer of the data cannot be told of a failure
// any more. The next fsync or close of the file returns the error, as for a local file whose blocks
// could not be written, and the user gets a line.
func (p *Process) put(c *relay, b []byte) {
	for len(b) > 0 {
		n, err := c.write(b)
		if err == nil && n == 0 {
			err = syscall.EIO
		}
		if err != nil {
			c.file.lost.Store(&err)
			if !c.reported { // standard error may be this very file
				c.reported = true
				p.logf("%s: %d bytes that a program wrote to its output are lost: %v", c.file.path, len(b), err)
			}
			return
		}
		b = b[n:]
	}
}

// unwritten returns, once, why bytes that were written to the file past the shim are
// not in it.
func (f *openFile) unwritten() error {
	if err := f.lost.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// awaitHangup waits until no process has the other end of w any more, and writes what
// comes until then. It is false if another process goes on with that.
func (p *Process) awaitHangup(w *watch) bool {
	var err error
	if w.relay == nil {
		var b [1]byte
		_, err = w.Read(b[:])
	} else if raw, e := w.SyscallConn(); e == nil {
		err = raw.Read(func(fd uintptr) bool { return p.relay(w.relay, int(fd)) })
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// halt makes the goroutine that watches stop, and waits until it has.
func (w *watch) halt() {
	_ = w.SetReadDeadline(past) // one that is closed has stopped
	<-w.stopped
	if c := w.relay; c != nil {
		c.mu.Lock()
		c.handedOver = true
		c.mu.Unlock()
	}
}

// connected makes two connected sockets, the first of which has a name.
func connected(name *unix.SockaddrUnix) (socket int, w *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	for i := range pair {
		if pair[i], err = aboveStandard(pair[i]); err != nil {
			return 0, nil, errors.Join(err, unix.Close(pair[1-i]))
		}
		pair[i] = ownfd.Hold(pair[i])
	}
	// A read of the socket fails with EAGAIN: it neither
	// waits, nor returns 0, which would be the end of the file.
	err = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 1})
	if err == nil {
		err = unix.Bind(pair[0], name)
	}
	if err == nil {
		err = unix.SetNonblock(pair[1], true)
	}
	if err != nil {
		return 0, nil, errors.Join(fmt.Errorf("naming a socket: %w", err), ownfd.Close(pair[0]), ownfd.Close(pair[1]))
	}
	return pair[0], os.NewFile(uintptr(pair[1]), name.Name), nil
}

// aboveStandard moves a new descriptor away from 0 to 2, which the application has
// closed then: 0 is none to the shim.
func aboveStandard(fd int) (int, error) {
	if fd > 2 {
		return fd, nil
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return moved, errors.Join(err, unix.Close(fd))
}
