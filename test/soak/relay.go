package main

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// A relay forwards connections to a target. It can cut and stall them. When one end closes, the other end first gets all data sent
// before: data of a killed rank may arrive late.
type relay struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	conns   map[*link]bool
	stalled chan struct{} // closed at the end of the stall; nil without a stall
	all     sync.WaitGroup
}

// A link is one connection through a relay.
type link struct {
	ends [2]*net.TCPConn
	mu   sync.Mutex
	// fuse counts down the bytes of a direction until the link is cut.
	fuse [2]int64      // -1: none
	held chan struct{} // closed when the link continues; nil if it is not held
}

func newRelay() (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, conns: map[*link]bool{}}
	r.all.Go(r.accept)
	return r, nil
}

// pass sets the target.
func (r *relay) pass(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

func (r *relay) port() string {
	_, port, _ := net.SplitHostPort(r.listener.Addr().String()) // it is one
	return port
}

func (r *relay) close() {
	r.listener.Close()
	r.cut(-1)
	r.all.Wait()
}

func (r *relay) accept() {
	for {
		host, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.all.Go(func() { r.connect(host.(*net.TCPConn)) })
	}
}

func (r *relay) connect(host *net.TCPConn) {
	r.mu.Lock()
	address := r.target
	r.mu.Unlock()
	target, err := net.Dial("tcp", address)
	if err != nil {
		_ = host.SetLinger(0)
		host.Close()
		return
	}
	l := &link{ends: [2]*net.TCPConn{host, target.(*net.TCPConn)}, fuse: [2]int64{-1, -1}}
	r.mu.Lock()
	r.conns[l] = true
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.copy(l, 0) })
	both.Go(func() { r.copy(l, 1) })
	both.Wait()
	r.mu.Lock()
	delete(r.conns, l)
	r.mu.Unlock()
	l.cut()
}

// copy passes on what ends[from] sends until it closes or the link is cut.
func (r *relay) copy(l *link, from int) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.ends[from].Read(buf)
		r.await()
		l.await()
		n, injected := l.burn(from, n)
		if _, e := l.ends[1-from].Write(buf[:n]); e != nil || injected || err != nil && err != io.EOF {
			l.cut()
			return
		}
		if err != nil {
			_ = l.ends[1-from].CloseWrite() // fails if closed already
			return
		}
	}
}

// await waits while the relay is stalled.
func (r *relay) await() {
	r.mu.Lock()
	stalled := r.stalled
	r.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
}

// await waits while the link is held.
func (l *link) await() {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held != nil {
		<-held
	}
}

// burn returns how many of n bytes may still pass.
func (l *link) burn(from, n int) (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fuse[from] < 0 {
		return n, false
	}
	n = int(min(int64(n), l.fuse[from]))
	l.fuse[from] -= int64(n)
	return n, l.fuse[from] == 0
}

// cut resets both ends.
func (l *link) cut() {
	for _, c := range l.ends {
		_ = c.SetLinger(0)
		c.Close()
	}
}

func (r *relay) links() []*link {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*link
	for l := range r.conns {
		all = append(all, l)
	}
	return all
}

// cut resets n connections, all if n is negative, and returns their number.
func (r *relay) cut(n int) int {
	all := r.links()
	if n >= 0 && n < len(all) {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:n]
	}
	for _, l := range all {
		l.cut()
	}
	return len(all)
}

// cutAfter resets each connection after up to n more bytes in one of the directions, perhaps in the middle of a PDU.
func (r *relay) cutAfter(random *rand.Rand, n int64) int {
	all := r.links()
	for _, l := range all {
		l.mu.Lock()
		l.fuse[random.IntN(2)] = 1 + random.Int64N(n)
		l.mu.Unlock()
	}
	return len(all)
}

// stall delays all data for a time.
func (r *relay) stall(d time.Duration) {
	over := make(chan struct{})
	r.mu.Lock()
	before := r.stalled
	r.stalled = over
	r.mu.Unlock()
	if before != nil {
		<-before
	}
	time.Sleep(d)
	r.mu.Lock()
	if r.stalled == over {
		r.stalled = nil
	}
	r.mu.Unlock()
	close(over)
}

// hold holds the present links, and no later ones, until release is called.
func (r *relay) hold() (release func()) {
	over := make(chan struct{})
	for _, l := range r.links() {
		l.mu.Lock()
		if l.held == nil {
			l.held = over
		}
		l.mu.Unlock()
	}
	return func() {
		for _, l := range r.links() {
			l.mu.Lock()
			if l.held == over {
				l.held = nil
			}
			l.mu.Unlock()
		}
		close(over)
	}
}
