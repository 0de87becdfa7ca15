package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf/dhchap"
	"nvmecr/nvmf/pdu"
)

// conn is one connection. Connect makes it a queue of a controller.
type conn struct {
	target *Target
	fd     int
	event  int // eventfd that wakes the thread up
	peer   netip.AddrPort
	own    netip.AddrPort // the address that the host has reached
	tls    *tlsHost       // the host that TLS has authenticated; nil without TLS
	done   chan struct{}  // closed when the thread has ended and the socket is closed

	// number counts connections. authenticated says that the host is admitted to a
	// subsystem, evicted that the connection ends to make space for another one.
	// Target.mu guards them.
	number                 uint64
	authenticated, evicted bool

	// of is ctrl for other threads. It is set before the host has authenticated, and stays when the
	// controller has ended. Target.mu guards it.
	of *controller

	mu   sync.Mutex // guards open (the descriptors are valid) and resumed
	open bool
	// resumed has the slots of commands that need not wait for other connections any more.
	resumed []uint16
	signal  atomic.Bool   // set with a wake-up; the thread takes it
	woken   chan struct{} // the same for awaitTurn, which cannot wait for event

	closing atomic.Bool // end when nothing is in flight
	cut     atomic.Bool // end now
	overdue atomic.Bool // end unless the host has been admitted
	traffic atomic.Bool // a command was received since the last tick of the keep-alive timer

	// Everything below belongs to the connection's thread.

	ctrl     *controller // nil until Connect
	barred   bool        // the host has yet to authenticate
	auth     *dhchap.Controller
	refused  bool        // the host has failed to authenticate, and may read the reason until patience ends
	patience *time.Timer // sets overdue
	qid      uint16
	noSQFlow bool   // SQ flow control is disabled
	sqSize   uint16 // entries
	sqHead   uint16

	initialised bool // ICReq was answered
	in          receiver
	out         sender
	slicing     slicing
	ahead       readahead

	commands    []command // a slot for each entry of the queue
	free        []uint16  // indices of slots not in use
	held        []uint16  // slots of Asynchronous Event Requests
	unsentBytes int       // bytes of answers in memory of their own
	attached    map[uint32]*attachment
	recent      *attachment // the last one asked for, nil or in attached
	pause       pause
	leaving     bool // the host asked to disconnect
	alone       bool // at most as many connections are awake as there are cores for
	waits       bool // a namespace is in a file, so that access to its memory may block
}

// connectTimeout is how long a host may take from accept to Connect and, where
// it has to, authentication.
const connectTimeout = 10 * time.Second

func newConn(t *Target, fd int, peer netip.AddrPort) (*conn, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	c := &conn{target: t, fd: fd, event: event, peer: peer, own: local(fd), done: make(chan struct{}), woken: make(chan struct{}, 1), open: true,
		attached: map[uint32]*attachment{}}
	c.in.init(t.inCapsule)
	c.commands, c.free = make([]command, 1), []uint16{0} // for Connect
	c.out.size(1)
	return c, nil
}

// wake makes the thread look at closing, at events and at removed namespaces.
func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open && !c.signal.Swap(true) {
		one := [8]byte{1}
		_, _ = unix.Write(c.event, one[:]) // cannot fail below 2^64 wake-ups
	}
	select {
	case c.woken <- struct{}{}:
	default: // the thread has not taken the wake-up before
	}
}

// hangUp ends the connection at once, after the command that is being executed.
func (c *conn) hangUp() {
	c.cut.Store(true)
	c.wake()
}

func (c *conn) closeSocket() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = false
	_ = unix.Close(c.event)
	_ = unix.Close(c.fd)
}

// errLeft ends a connection without a line in the log: the host has disconnected, or the target
// has.
var errLeft = errors.New("disconnected")

// routineServe is the thread of a connection.
func (c *conn) routineServe() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.patience = time.AfterFunc(c.target.patience, func() {
		c.overdue.Store(true)
		c.wake()
	})
	err := c.serve()
	c.patience.Stop()
	var violation *pdu.Error
	if errors.As(err, &violation) {
		c.terminate(violation)
	}
	if err != nil && !errors.Is(err, errLeft) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		c.target.log.Warn("target: connection ended", "peer", c.peer.String(), "queue", c.qid, "err", err)
	}
	t := c.target
	c.releaseCommands()
	c.detachAll()
	c.closeSocket()
	t.mu.Lock()
	delete(t.conns, c)
	if c.ctrl != nil {
		c.ctrl.drop(c)
	}
	t.mu.Unlock()
	close(c.done)
	t.group.Done()
}

// serve runs the connection from its first byte to its end. A panic ends the connection, not the
// target.
func (c *conn) serve() (err error) {
	defer func() {
		if r := recover(); r != nil {
			c.target.log.Error("target: internal error, please report it", "err", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	if err := c.secure(); err != nil {
		return err
	}
	return c.loop()
}

// spins is the number of times that the loop polls the socket before it sleeps. A poll takes some
// 300 ns, a wake-up 20 to 30 us.
const spins = 400

// loop receives and sends until the connection ends.
func (c *conn) loop() error {
	t := c.target
	t.running.Add(1)
	defer t.running.Add(-1)
	// Beside other busy connections, spinning would only take their processor time. Half of the
	// cores count, because the host may be on this machine.
	cores := int32(max(1, runtime.NumCPU()/2))
	nearby := c.local()
	c.slicing.init(nearby)
	defer c.slicing.end()
	idle := 0
	for {
		moved, err := c.step()
		if err != nil {
			return err
		}
		if moved {
			idle = 0
			if c.signal.Load() {
				if err := c.serveRequests(); err != nil {
					return err
				}
			}
			continue
		}
		c.alone = t.running.Load() <= cores
		if idle++; idle < spins && c.alone && !c.signal.Load() {
			c.ahead.step()
			continue
		}
		if err := c.serveRequests(); err != nil {
			return err
		}
		t.running.Add(-1)
		err = c.sleep()
		c.alone = t.running.Add(1) <= cores
		if err != nil {
			return err
		}
		if nearby && c.alone {
			changeCore(c.fd)
		}
		idle = 0
	}
}

// brief reports whether calls that move data end soon while no other thread waits for the core; see
// socket.go.
func (c *conn) brief() bool { return c.alone && !c.waits }

// step sends what is due and receives once; moved reports whether any bytes moved.
func (c *conn) step() (moved bool, err error) {
	// Completions go out before the next look at the socket, unless the data
	// of a command is coming in: then they go with those that follow it.
	if c.out.pending() && !c.in.inData() {
		if moved, err = c.transmit(); err != nil {
			return moved, err
		}
	}
	if c.leaving && !c.out.pending() {
		return moved, errLeft
	}
	received, err := c.receive()
	if err != nil || received {
		return true, err
	}
	if c.out.pending() {
		sent, err := c.transmit()
		return moved || sent, err
	}
	return moved, nil
}

// serveRequests does what other threads have asked for.
func (c *conn) serveRequests() error {
	if c.signal.Load() {
		var count [8]byte
		_, _ = unix.Read(c.event, count[:]) // empties it; EAGAIN does no harm
		c.signal.Store(false)
		c.serveFences()
	}
	if c.cut.Load() {
		return errLeft
	}
	if c.ctrl == nil && c.overdue.Load() {
		return fmt.Errorf("no Connect within %s: %w", c.target.patience, context.DeadlineExceeded)
	}
	if c.refused && c.overdue.Load() {
		return errLeft
	}
	if c.barred && c.overdue.Load() {
		return fmt.Errorf("host %s did not authenticate within %s: %w", c.ctrl.host.NQN, c.target.patience, context.DeadlineExceeded)
	}
	c.detachRemoved()
	if c.ctrl != nil && c.qid == 0 {
		c.deliverEvents()
	}
	if c.closing.Load() && c.idle() && (c.ctrl == nil || c.ctrl.last(c)) {
		return errLeft
	}
	return nil
}

// idle reports whether no command is in flight and no PDU was received in part.
func (c *conn) idle() bool {
	return !c.out.pending() && !c.in.partial() && len(c.free)+len(c.held) == len(c.commands)
}

// sleep blocks until there is something to do.
func (c *conn) sleep() error {
	fd, events, timeout := c.fd, int16(unix.POLLIN), -1
	if c.out.pending() {
		events |= unix.POLLOUT
	}
	if c.in.stalled {
		events &^= unix.POLLIN
		timeout = c.pause.left()
	}
	if events == 0 {
		fd = -1 // a socket that was reset is always readable and would end the sleep
	}
	return poll(fd, events, c.event, timeout)
}

// terminate sends the TermReq for a violation. It waits a moment for the host to read
// it, since closing a socket with unread data would reset the connection.
func (c *conn) terminate(v *pdu.Error) {
	if !c.out.sent() {
		return // in the middle of another PDU
	}
	var b [pdu.TermReqSize + pdu.MaxTermReqData]byte
	n := pdu.PutTermReq(b[:], false, v, c.in.offending[:c.in.offendingLen])
	if _, err := unix.SendmsgN(c.fd, b[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		return
	}
	if unix.Shutdown(c.fd, unix.SHUT_WR) != nil {
		return
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		n, errno := recv(c.fd, c.in.buffer, false)
		switch {
		case errno == unix.EAGAIN:
			if poll(c.fd, unix.POLLIN, c.event, 100) != nil || c.signal.Load() {
				return
			}
		case errno != 0 || n == 0:
			return
		}
	}
}
