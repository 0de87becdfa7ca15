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

// Some writes to a descriptor bypass the shim: those of the C library's own streams, and with them std::cout, those of static
// programs, and direct system calls. The socket of a file that is open for writing is therefore connected to a socket of the
// server. The server writes to the file what it receives there, at the shared offset or at the end of the file. Every call first
// drains these sockets (Drain), so that writes and calls keep their order.

// A relay is the server's end of such a socket.
type relay struct {
	file  *openFile
	write func([]byte) (int, error)

	mu         sync.Mutex // held from taking bytes until they are in the file
	buf        []byte
	reported   bool // an error of writing has been printed
	handedOver bool // the successor relays from now on
}

// relayChunk is how many bytes are received at once.
const relayChunk = 256 << 10

// relays has the relays of a process.
type relays struct {
	mu  sync.Mutex // held while the list is replaced; the list itself does not change
	all atomic.Pointer[[]*watch]
}

// changeRelays replaces the list. Other processes are told whether it is empty (Process.Relaying).
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

// Drain writes to the files the data that is in the sockets. It is called before each call, which has to see the data. For a
// process without relays it is one load.
func (p *Process) Drain() {
	if all := p.relays.all.Load(); all != nil {
		for _, w := range *all {
			p.drain(w)
		}
	}
}

// FinishRelayed is Drain, and closes the files that no process has open any more. It is called for another process that has seen
// the writers end.
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

// drain is Drain for one socket. It reports whether no process has the other end any more.
func (p *Process) drain(w *watch) (end bool) {
	if w.relay == nil {
		return false
	}
	// A socket that has been closed has been drained before.
	if raw, err := w.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { end = p.relay(w.relay, int(fd)) })
	}
	return end
}

// relay writes to the file the data that is in the socket. It reports whether no process has the other end any more.
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
			p.writeRelayed(c, c.buf[:n])
		}
	}
}

// writeRelayed writes data to the file. The program that has written the data cannot get an error any more. So the next fsync or
// close of the file returns it, as after a failed write-back of a local file, and a line is printed.
func (p *Process) writeRelayed(c *relay, b []byte) {
	for len(b) > 0 {
		n, err := c.write(b)
		if err == nil && n == 0 {
			err = syscall.EIO
		}
		if err != nil {
			c.file.relayErr.Store(&err)
			if !c.reported { // once, because standard error may be this file
				c.reported = true
				p.logf("%s: %d bytes that a program wrote to its output are lost: %v", c.file.path, len(b), err)
			}
			return
		}
		b = b[n:]
	}
}

// takeRelayErr returns and clears the error with which relayed data was lost.
func (f *openFile) takeRelayErr() error {
	if err := f.relayErr.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// awaitHangup waits until no process has the other end of w any more, and relays data until then. It returns false if halt has
// stopped it.
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

// halt stops the goroutine of watchFor, and waits until it has stopped.
func (w *watch) halt() {
	_ = w.SetReadDeadline(past) // fails if the file is closed, and then the goroutine has stopped
	<-w.stopped
	if c := w.relay; c != nil {
		c.mu.Lock()
		c.handedOver = true
		c.mu.Unlock()
	}
}

// relayPair makes two connected sockets. The first has the name, the second is the owner's end.
func relayPair(name *unix.SockaddrUnix) (socket int, w *os.File, err error) {
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
	// A program without this library that reads from the socket gets EAGAIN. It would otherwise block, or see the end of a file.
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

// aboveStandard moves a new descriptor to a number above 2. It gets a lower one if the application has closed a standard
// descriptor. To the shim, 0 is no descriptor.
func aboveStandard(fd int) (int, error) {
	if fd > 2 {
		return fd, nil
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return moved, errors.Join(err, unix.Close(fd))
}
