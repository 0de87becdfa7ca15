package posixshim

import (
	"bufio"
	"errors"
	"os"
	"sync"
	"time"

	"nvmecr/internal/ownfd"
)

// A connection is a connection of another process, with its state.
type connection struct {
	conn *os.File
	m    message
	done chan struct{} // closed when its goroutine has returned
	idle bool          // it is between two calls then, and can be handed over

	mu   sync.Mutex
	busy bool // a request comes, is worked on, or is answered
	stop bool // this is the last one
}

// enter notes a connection, whose other end asks for what h has left, if that is not nil.
func (s *server) enter(conn *os.File, h *predecessor) *connection {
	c := &connection{conn: conn, m: message{predecessor: h}, done: make(chan struct{})}
	s.callersMu.Lock()
	defer s.callersMu.Unlock()
	if s.callers == nil {
		s.callers = make(map[*connection]struct{})
	}
	s.callers[c] = struct{}{}
	h.acquire()
	return c
}

// serveConnection serves a connection, on a goroutine of its own, until the other end closes it, or sends what
// is no request, or until halt.
func (p *Process) serveConnection(c *connection) {
	go func() {
		defer close(c.done)
		defer p.server.connections.Add(-1)
		p.Guard("a call of another process", func() { // which finds the connection closed
			defer p.closeConnection(c)
			p.serveRequests(c)
		})
	}()
}

func (p *Process) serveRequests(c *connection) {
	m := &c.m
	raw, err := c.conn.SyscallConn()
	for in := bufio.NewReader(c.conn); err == nil && c.await(in); {
		if err = m.receive(in); err == nil {
			p.server.calls.Add(1)
			err = p.reply(raw, m)
			p.server.calls.Add(-1)
		} else if errors.Is(err, errMessage) {
			err = errors.Join(err, m.send(raw, -int64(p.Errno(err)), replyLast, 0))
		}
	}
}

// closeConnection ends what belongs to a connection that has ended.
func (p *Process) closeConnection(c *connection) {
	if c.idle {
		return
	}
	if err := p.unmapAllForPeer(&c.m); err != nil {
		p.logf("a file that another process had mapped: %v", err)
	}
	p.locks.ended(c.m.process)
	p.server.callersMu.Lock()
	delete(p.server.callers, c)
	p.server.callersMu.Unlock()
	_ = ownfd.CloseFile(c.conn) // no process is left to get the error
	p.releasePredecessor(c.m.predecessor)
}

// await waits for the next request. It is false if there is none, or that is not to be worked on.
func (c *connection) await(in *bufio.Reader) bool {
	if stop := c.set(false); stop {
		c.idle = in.Buffered() == 0 // a peer that does not wait for answers is not served further
		return false
	}
	_, err := in.Peek(1)
	if stop := c.set(err == nil); stop && errors.Is(err, os.ErrDeadlineExceeded) {
		c.idle = true
	}
	return err == nil
}

// set says whether the connection has something to be answered. It returns whether it is to stop.
func (c *connection) set(busy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = busy
	if busy && c.stop { // it came before the deadline, and is to come as a whole
		_ = c.conn.SetReadDeadline(time.Time{})
	}
	return c.stop
}

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// halt makes a connection stop before its next request.
func (c *connection) halt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop = true
	if !c.busy {
		_ = c.conn.SetReadDeadline(past)
	}
}

// haltTime is how long a process that hands over waits for requests and answers that are under way:
// the peer may be stopped (SIGSTOP).
const haltTime = 10 * time.Second

// haltAll halts all connections and returns those that can be handed over. Every request that was
// received has been answered then.
func (s *server) haltAll() []*connection {
	s.callersMu.Lock()
	var all, left []*connection
	for c := range s.callers {
		all = append(all, c)
	}
	s.callersMu.Unlock()
	for _, c := range all {
		c.halt()
	}
	enough := time.NewTimer(haltTime)
	defer enough.Stop()
	for _, c := range all {
		select {
		case <-c.done:
		case <-enough.C:
			for _, c := range all {
				_ = c.conn.SetDeadline(past)
			}
			<-c.done
		}
		if c.idle {
			left = append(left, c)
		}
	}
	return left
}
