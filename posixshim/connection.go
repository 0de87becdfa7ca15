package posixshim

import (
	"bufio"
	"errors"
	"os"
	"sync"
	"time"

	"nvmecr/internal/ownfd"
)

// A connection is the connection of another process, and its state.
type connection struct {
	conn *os.File
	m    message
	done chan struct{} // closed when the goroutine of serveConnection has returned
	idle bool          // set before that: no request was being received or made, so the connection can be handed over

	mu   sync.Mutex // guards busy and stop
	busy bool       // a request is being received, made or answered
	stop bool       // the goroutine is to return before the next request
}

// addConnection adds a connection. If h is not nil, the connection is to that predecessor.
func (s *server) addConnection(conn *os.File, h *predecessor) *connection {
	c := &connection{conn: conn, m: message{predecessor: h}, done: make(chan struct{})}
	s.peersMu.Lock()
	defer s.peersMu.Unlock()
	if s.peers == nil {
		s.peers = make(map[*connection]struct{})
	}
	s.peers[c] = struct{}{}
	h.acquire()
	return c
}

// serveConnection starts a goroutine that serves a connection until the other end closes it or sends a bad request, or until halt.
func (p *Process) serveConnection(c *connection) {
	go func() {
		defer close(c.done)
		defer p.server.connections.Add(-1)
		p.Guard("a call of another process", func() { // after a panic the other process finds the connection closed
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

// closeConnection drops the mappings and the record locks of a connection that has ended, unless it is handed over.
func (p *Process) closeConnection(c *connection) {
	if c.idle {
		return
	}
	if err := p.unmapAllForPeer(&c.m); err != nil {
		p.logf("a file that another process had mapped: %v", err)
	}
	p.locks.processEnded(c.m.process)
	p.server.peersMu.Lock()
	delete(p.server.peers, c)
	p.server.peersMu.Unlock()
	_ = ownfd.CloseFile(c.conn) // no process is left to get the error
	p.releasePredecessor(c.m.predecessor)
}

// await waits for the next request; false: there is none, or halt has stopped the connection.
func (c *connection) await(in *bufio.Reader) bool {
	if stop := c.set(false); stop {
		c.idle = in.Buffered() == 0 // a peer that has sent a request without waiting for the reply cannot be handed over
		return false
	}
	_, err := in.Peek(1)
	if stop := c.set(err == nil); stop && errors.Is(err, os.ErrDeadlineExceeded) {
		c.idle = true
	}
	return err == nil
}

// set sets c.busy and returns c.stop.
func (c *connection) set(busy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = busy
	if busy && c.stop { // the request came before the deadline, and is received as a whole
		_ = c.conn.SetReadDeadline(time.Time{})
	}
	return c.stop
}

// past is a deadline that ends a read at once.
var past = time.Unix(1, 0)

// halt stops a connection before its next request.
func (c *connection) halt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop = true
	if !c.busy {
		_ = c.conn.SetReadDeadline(past)
	}
}

// haltTime is how long a process that hands over waits for requests that are being received and replies that are being sent. The
// peer may be stopped (SIGSTOP).
const haltTime = 10 * time.Second

// close closes all connections. The process is about to end, and a request that it has read by then gets its reply. One that it has
// not read is reset by the kernel, and the other process makes the call elsewhere. Another thread may have begun to listen since
// finish has closed the listening socket.
func (s *server) close() {
	self := s.identity()
	if listen := self.listen.Load(); listen != nil {
		_ = ownfd.CloseFile(listen) // fails if it is closed already
		<-self.accepted
	}
	for _, c := range s.haltAll(s.closeQueryTime) {
		s.peersMu.Lock()
		delete(s.peers, c)
		s.peersMu.Unlock()
		_ = ownfd.CloseFile(c.conn) // the other process sees that it is closed
	}
}

// haltAll stops all connections and returns those that can be handed over. Every request that was received has got its reply then,
// unless that takes longer than the limit.
func (s *server) haltAll(limit time.Duration) []*connection {
	s.peersMu.Lock()
	var all, left []*connection
	for c := range s.peers {
		all = append(all, c)
	}
	s.peersMu.Unlock()
	for _, c := range all {
		c.halt()
	}
	enough := time.NewTimer(limit)
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
