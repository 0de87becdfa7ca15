package wiretest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"nvmecr/nvmf"
)

// Proxy is the fault-injecting proxy. The zero value is not usable.
type Proxy struct {
	addr string
	done chan struct{} // closed by Close
	wg   sync.WaitGroup

	mu       sync.Mutex // guards the following fields
	thawed   *sync.Cond // signals that frozen became false or closed true
	listener net.Listener
	target   string
	script   Script
	seen     [2]int
	struck   int
	links    map[*link]struct{}
	kept     []*link
	count    int
	frozen   bool
	closed   bool
}

// New listens on a free port of loopback for connections to target, a
// host:port. The caller closes it.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faulty wire: %w", err)
	}
	p := &Proxy{addr: l.Addr().String(), done: make(chan struct{}), listener: l, target: target, links: map[*link]struct{}{}}
	p.thawed = sync.NewCond(&p.mu)
	p.wg.Go(func() { p.accept(l) })
	return p, nil
}

// Addr returns the address of the proxy, host:port.
func (p *Proxy) Addr() string { return p.addr }

// Through returns id with the proxy's address instead of the target's.
func (p *Proxy) Through(id nvmf.TransportID) nvmf.TransportID {
	id.Address, id.Service, _ = net.SplitHostPort(p.addr)
	return id
}

// Script replaces the script and restarts the counts; nil passes all PDUs.
func (p *Proxy) Script(s Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script, p.seen, p.struck = s, [2]int{}, 0
}

// Seen returns how many PDUs of a direction the proxy received since the script was
// set.
func (p *Proxy) Seen(to Direction) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[to]
}

// Struck returns how many PDUs the script injected a fault into since it was set.
func (p *Proxy) Struck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

// Connections returns how many connections were accepted so far.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// SetTarget makes new connections go to another address.
func (p *Proxy) SetTarget(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

// Cut resets all connections, at both ends.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for l := range p.links {
		l.reset()
	}
}

// Down makes the target unreachable: connections are reset, new ones refused.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // wakes the acceptor
		p.listener = nil
	}
	p.cut()
}

// Up ends Down. It fails if another program uses the port now.
func (p *Proxy) Up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp4", p.addr)
	if err != nil {
		return fmt.Errorf("faulty wire: %w", err)
	}
	p.listener = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Freeze stops all forwarding. Connections stay open.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// Thaw ends Freeze.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
	p.thawed.Broadcast()
}

// Release delivers the PDUs that Keep has kept, and waits until the target has
// processed them. It returns how many commands the target completed, including those
// that were in flight before.
func (p *Proxy) Release() int {
	p.mu.Lock()
	kept := p.kept
	p.kept = nil
	p.mu.Unlock()
	n := 0
	for _, l := range kept {
		n += l.deliver()
	}
	return n
}

// Close ends the proxy and all connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
	}
	kept := p.kept
	p.kept = nil
	p.thawed.Broadcast()
	p.mu.Unlock()
	p.Down()
	for _, l := range kept {
		l.reset()
	}
	p.wg.Wait()
}

func (p *Proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Go(func() { p.connect(c.(*net.TCPConn)) })
	}
}

// connect opens the connection to the target for a host's connection, and starts
// forwarding.
func (p *Proxy) connect(host *net.TCPConn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	c, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		abort(host)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener == nil {
		abort(host)
		abort(c.(*net.TCPConn))
		return
	}
	p.count++
	l := newLink(p, p.count, host, c.(*net.TCPConn))
	p.links[l] = struct{}{}
	p.wg.Go(func() { l.pump(ToTarget) })
	p.wg.Go(func() { l.pump(ToHost) })
}

// keepAll keeps the data from the host on every connection.
func (p *Proxy) keepAll() {
	p.mu.Lock()
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	for _, l := range links {
		_ = l.keep(nil) // a connection that has ended has nothing to keep
	}
}

// strand adds l to the connections whose kept bytes Release delivers.
func (p *Proxy) strand(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
	if p.closed {
		l.reset()
		return
	}
	p.kept = append(p.kept, l)
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// decide waits while the proxy is frozen, numbers the PDU, and calls the script.
func (p *Proxy) decide(u *PDU) Action {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.frozen && !p.closed {
		p.thawed.Wait()
	}
	p.seen[u.To]++
	u.N = p.seen[u.To]
	if p.script == nil {
		return Pass
	}
	a := p.script(u)
	if !a.fits(u) {
		return Pass
	}
	p.struck++
	if a.verb == freeze {
		p.frozen = true
		time.AfterFunc(a.wait, p.Thaw)
		for p.frozen && !p.closed {
			p.thawed.Wait()
		}
	}
	return a
}
