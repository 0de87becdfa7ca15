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

// What the shim cannot see is written to a descriptor too: by the streams that the
// C library keeps, and with them std::cout, by static programs, by system calls made
// directly. The socket that stands for a file open for writing is therefore connected
// to one of the server's, which writes what comes there to the file, at the shared
// offset or at its end. Every call first waits for what was written so before it
// (Drain), so that the order is that of the calls.

// A carrier is the server's end of such a socket.
type carrier struct {
	file  *openFile
	write func([]byte) (int, error)

	mu   sync.Mutex // held from taking bytes until they are in the file
	buf  []byte
	told bool // the user knows that writing has failed
	over bool // another process carries from now on
}

// carryAtOnce is how many bytes are taken from a socket at once.
const carryAtOnce = 256 << 10

// carriers are all those of a process.
type carriers struct {
	mu  sync.Mutex // held to replace the list
	all atomic.Pointer[[]*watch]
}

// changeCarriers replaces the list. Other processes know whether there is one.
func (p *Process) changeCarriers(change func([]*watch) []*watch) {
	c := &p.carriers
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
	if p.Carrying != nil && (before != nil) != (len(now) > 0) {
		p.Carrying(len(now) > 0)
	}
}

func (p *Process) addCarrier(w *watch) {
	p.changeCarriers(func(all []*watch) []*watch { return append(all, w) })
}

func (p *Process) removeCarrier(w *watch) {
	p.changeCarriers(func(all []*watch) []*watch {
		return slices.DeleteFunc(all, func(v *watch) bool { return v == w })
	})
}

// Drain waits until what was written to descriptors past the shim is in the files.
// It is called before each call, which must see that. A process no file of which can be
// written to so pays for a load.
func (p *Process) Drain() {
	if all := p.carriers.all.Load(); all != nil {
		for _, w := range *all {
			p.drain(w)
		}
	}
}

// FinishCarried drains, and closes the files that no process has any more: for another process, which has seen the end of
// those that wrote.
func (p *Process) FinishCarried() {
	all := p.carriers.all.Load()
	if all == nil {
		return
	}
	for _, w := range *all {
		if !p.drain(w) {
			continue
		}
		if err := p.unshare(w.carrier.file, w); err != nil {
			p.logf("closing a file that another process had open: %v", err)
		}
	}
}

// drain does so for one socket. It reports whether that is the end, as carry does.
func (p *Process) drain(w *watch) (end bool) {
	if w.carrier == nil {
		return false
	}
	// One that is closed has been drained.
	if raw, err := w.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { end = p.carry(w.carrier, int(fd)) })
	}
	return end
}

// carry writes what there is in the socket to the file. It reports whether that is
// the end: no process has the other end any more.
func (p *Process) carry(c *carrier, fd int) (end bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	if c.buf == nil {
		c.buf = make([]byte, carryAtOnce)
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

// put writes bytes to the file. Who has written them cannot be told of a failure
// any more: the next fsync or close of the file is, as for a local file whose blocks
// could not be written, and the user.
func (p *Process) put(c *carrier, b []byte) {
	for len(b) > 0 {
		n, err := c.write(b)
		if err == nil && n == 0 {
			err = syscall.EIO
		}
		if err != nil {
			c.file.lost.Store(&err)
			if !c.told { // standard error may be this very file
				c.told = true
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

// watchOver waits until no process has the other end of w any more, and writes what
// comes until then. It is false if another process goes on with that.
func (p *Process) watchOver(w *watch) bool {
	var err error
	if w.carrier == nil {
		var b [1]byte
		_, err = w.Read(b[:])
	} else if raw, e := w.SyscallConn(); e == nil {
		err = raw.Read(func(fd uintptr) bool { return p.carry(w.carrier, int(fd)) })
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// halt makes the goroutine that watches stop, and waits until it has.
func (w *watch) halt() {
	_ = w.SetReadDeadline(past) // one that is closed has stopped
	<-w.stopped
	if c := w.carrier; c != nil {
		c.mu.Lock()
		c.over = true
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
	// Whoever reads what there is nothing to read from fails with EAGAIN, rather than
	// wait, or take it for the end of the file.
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
