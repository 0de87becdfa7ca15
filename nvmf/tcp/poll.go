package tcp

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// A blocked thread takes 20 to 30 microseconds to wake up, and a poll of the socket a
// third of a microsecond. So polling is faster if the answer comes soon and the core
// has nothing else to do. On an oversubscribed machine polling takes the core from the
// target, which then answers later. pace distinguishes the two cases by the recent
// success of polling, and by whether the thread is being preempted.

const (
	maxSpins = 1000 // about 400 microseconds
	minSpins = 8
	// A spin with a longer time for each poll was interrupted: the core has other
	// work, and blocking would have been as fast.
	maxPollTime = 2 * time.Microsecond
	// After firstProbe spins without success, one spin of maxSpins probes whether
	// polling is faster now. Each probe without success doubles the number of spins
	// until the next one, up to lastProbe.
	firstProbe = 32
	lastProbe  = 4096
	// Every reviewEvery waits the owner checks whether its thread was preempted since
	// the last review, and whether more threads are runnable than there are cores.
	// If both are true, other threads need the core, and the owner polls little for
	// firstRest to lastRest reviews, or until there are idle cores. Each rest in a row
	// is twice as long as the one before.
	reviewEvery = 64
	// The owner also checks after each lookEvery polls without success, which take 40
	// to 80 us. So a new process need not wait for its first review.
	lookEvery = 256
	preempted = 2
	firstRest = 4
	lastRest  = 256
	// checkEvery is the number of turns between checks of the time-out while data keeps
	// arriving.
	checkEvery = 1024
)

// pace decides how long to poll before blocking, and when to give up.
type pace struct {
	limit  int       // polls before blocking
	idle   int       // polls since data arrived
	began  time.Time // when idle was minSpins
	misses int       // spins without success since the last probe
	probe  int       // misses until the next probe
	turns  int

	waits    int
	switches int64 // involuntary context switches of the thread at the last review
	rest     int   // reviews until polling is tried again
	nextRest int

	// oversubscribed reports whether there are more runnable threads than cores.
	oversubscribed func() bool

	// deadline is the end of the time-out, which began when the connection had
	// received answers responses.
	answers  uint64
	deadline time.Time
}

func (p *pace) init() {
	p.limit, p.probe, p.oversubscribed = maxSpins, firstProbe, initiator.Oversubscribed
	p.oversubscribed() // opens the file that it reads now, not in the middle of a wait
	if initiator.Processors() == 1 {
		p.limit, p.probe, p.rest = minSpins, math.MaxInt, math.MaxInt
	}
}

// review checks, every reviewEvery calls, whether other threads need the core.
func (p *pace) review() {
	if p.waits++; p.waits%reviewEvery != 0 || p.rest == math.MaxInt {
		return
	}
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return
	}
	n := u.Nivcsw - p.switches // wrong if the owner runs on another thread now, which does no harm
	p.switches = u.Nivcsw
	p.adapt(n >= preempted)
}

// adapt changes the polling time. preempted says that the thread was preempted, or has
// polled for long without success.
func (p *pace) adapt(preempted bool) {
	switch {
	case p.rest > 0:
		if p.rest--; p.rest == 0 || !p.oversubscribed() {
			p.rest, p.limit = 0, maxSpins
		}
	case preempted && p.oversubscribed():
		p.nextRest = min(max(firstRest, 2*p.nextRest), lastRest)
		p.rest, p.limit = p.nextRest, minSpins
	default: // not preempted, or cores are idle again
		p.nextRest /= 2
	}
}

// came records that polling has found data.
func (p *pace) came() {
	if p.idle > minSpins && p.rest == 0 {
		if time.Since(p.began) > time.Duration(p.idle)*maxPollTime {
			p.limit = max(minSpins, p.limit/2)
		} else {
			p.limit = min(maxSpins, max(2*p.limit, 2*p.idle))
			p.probe = firstProbe
		}
	}
	p.idle = 0
}

// polled records that a poll has found no data, and reports whether to block.
func (p *pace) polled() bool {
	if p.idle++; p.idle == minSpins {
		p.began = time.Now()
	}
	if p.idle%lookEvery == 0 && p.rest == 0 {
		p.adapt(true)
	}
	if p.idle < p.limit {
		return false
	}
	p.idle = 0
	p.limit = max(minSpins, p.limit/2)
	if p.misses++; p.misses >= p.probe && p.rest == 0 {
		p.misses, p.limit = 0, maxSpins
		p.probe = min(2*p.probe, lastProbe)
	}
	return true
}

// begin starts the clock for a wait.
func (p *pace) begin() {
	p.deadline = time.Time{}
	p.review()
}

// expired reports whether no command was answered for the connection's timeout, and
// how much time is left. The timeout starts with the first call after begin or after
// an answer. It starts again with each call while all commands wait for their retry.
func (c *conn) expired() (left time.Duration, expired bool) {
	p := &c.pace
	now := time.Now()
	if p.deadline.IsZero() || p.answers != c.answers || c.busy > 0 && c.busy == len(c.resting) {
		p.answers, p.deadline = c.answers, now.Add(c.timeout)
	}
	left = p.deadline.Sub(now)
	return left, left <= 0
}

// turn sends and receives once without waiting. It blocks after enough polls without
// success.
func (c *conn) turn() {
	c.resume(0)
	if c.send.pending() {
		c.flush()
	}
	if c.err != nil {
		return
	}
	p := &c.pace
	if c.receive() {
		p.came()
		if c.err == nil && c.send.pending() {
			c.flush()
		}
		if p.turns++; p.turns%checkEvery == 0 {
			c.checkTime()
		}
		return
	}
	if c.err == nil && p.polled() {
		c.block()
	}
}

func (c *conn) checkTime() {
	if _, over := c.expired(); over && c.err == nil {
		c.lose(c.timeoutError())
	}
}

func (c *conn) timeoutError() error {
	return &nvmf.TimeoutError{After: c.timeout, Busy: c.busy}
}

// block waits in the kernel. After the timeout the connection is lost only if there is
// no data to receive either, since this process may have been stopped meanwhile.
func (c *conn) block() {
	left, over := c.expired()
	if over {
		if !c.receive() && c.err == nil {
			c.lose(c.timeoutError())
		}
		return
	}
	left = c.resume(left)
	events := int16(unix.POLLIN)
	if c.send.pending() {
		events |= unix.POLLOUT
	}
	c.stats.Wakeups++
	poll(left, unix.PollFd{Fd: int32(c.fd), Events: events}, c.beside.awaited())
}

// exchange sends and receives once without waiting.
func (c *conn) exchange() {
	if c.send.pending() {
		c.flush()
	}
	if c.err == nil && c.receive() && c.err == nil && c.send.pending() {
		c.flush()
	}
}

// waits reports whether the connection, which may be nil, has commands in flight.
func (c *conn) waits() bool { return c != nil && c.err == nil && c.busy > 0 }

// awaited returns the poll(2) entry with which another connection also waits for this one.
func (c *conn) awaited() unix.PollFd {
	if !c.waits() {
		return unix.PollFd{Fd: -1}
	}
	p := unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN}
	if c.send.pending() {
		p.Events |= unix.POLLOUT
	}
	return p
}

// wait runs the connection until all of cmds are done.
func (c *conn) wait(cmds []*nvmf.Command) {
	c.pace.begin()
	for _, cmd := range cmds {
		for !cmd.Done() && c.err == nil {
			c.turn()
			if c.beside.waits() {
				c.beside.exchange()
			}
		}
	}
}

// advance returns p + n.
func advance(p *byte, n int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(p), n)) }
