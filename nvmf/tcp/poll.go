package tcp

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// Waiting. A blocked thread takes 20 to 30 microseconds to wake, a poll of
// the socket a third of one: where the answer comes soon and the core has
// nothing else to do, polling is faster. On an oversubscribed machine it takes the
// core from the target, which then answers later. pace distinguishes the two cases by
// the recent success of polling, and by whether the thread is being preempted.

const (
	maxSpins = 1000 // about 400 microseconds
	minSpins = 8
	// A spin that took longer than this for each poll was interrupted: the
	// core has other work, and what came would have come to a sleeper too.
	maxPollTime = 2 * time.Microsecond
	// After so many fruitless spins a full one probes whether polling pays
	// by now; each fruitless probe doubles the number.
	firstProbe = 32
	lastProbe  = 4096
	// Every reviewEvery waits the owner looks whether its thread was preempted
	// since, and more threads would run than there are cores: someone else wants
	// this one. If so it hardly polls for a while, from firstRest to lastRest
	// reviews, longer each time in a row, or until there are cores to spare.
	reviewEvery = 64
	// It also looks after so many fruitless polls, which are 40 to 80 us: the first
	// of a new process are not to wait for a review.
	lookEvery = 256
	preempted = 2
	firstRest = 4
	lastRest  = 256
	// checkEvery is how many turns pass between looks at the clock while
	// there is something to do.
	checkEvery = 1024
)

// pace decides how long to poll before blocking, and when to give up.
type pace struct {
	limit  int       // polls before blocking
	idle   int       // polls since something came
	began  time.Time // when idle was minSpins
	misses int       // fruitless spins since the last probe
	probe  int       // misses until the next
	turns  int

	waits    int
	switches int64 // involuntary ones of the thread at the last review
	rest     int   // reviews until polling is tried again
	nextRest int

	// oversubscribed reports whether there are more runnable threads than cores.
	oversubscribed func() bool

	// Since answers was the number of responses the clock runs towards
	// deadline.
	answers  uint64
	deadline time.Time
}

func (p *pace) init() {
	p.limit, p.probe, p.oversubscribed = maxSpins, firstProbe, initiator.Oversubscribed
	p.oversubscribed() // its file is opened with the connection, not in the middle of a wait
	if initiator.Processors() == 1 {
		p.limit, p.probe, p.rest = minSpins, math.MaxInt, math.MaxInt
	}
}

// review looks every so often whether others want the core.
func (p *pace) review() {
	if p.waits++; p.waits%reviewEvery != 0 || p.rest == math.MaxInt {
		return
	}
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return
	}
	n := u.Nivcsw - p.switches // of another thread, if the owner has moved
	p.switches = u.Nivcsw
	p.adapt(n >= preempted)
}

// adapt changes the polling time by whether the thread was preempted, or polled in
// vain for long.
func (p *pace) adapt(preempted bool) {
	switch {
	case p.rest > 0:
		if p.rest--; p.rest == 0 || !p.oversubscribed() {
			p.rest, p.limit = 0, maxSpins
		}
	case preempted && p.oversubscribed():
		p.nextRest = min(max(firstRest, 2*p.nextRest), lastRest)
		p.rest, p.limit = p.nextRest, minSpins
	default: // or it was for a moment only
		p.nextRest /= 2
	}
}

// came notes that polling brought something.
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

// polled notes that polling brought nothing, and reports whether to block.
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

// expired reports whether no command was answered for the connection's timeout,
// and how much of it is left. The clock starts at the first call after begin
// or after an answer, and stands while all commands rest.
func (c *conn) expired() (left time.Duration, expired bool) {
	p := &c.pace
	now := time.Now()
	if p.deadline.IsZero() || p.answers != c.answers || c.busy > 0 && c.busy == len(c.resting) {
		p.answers, p.deadline = c.answers, now.Add(c.timeout)
	}
	left = p.deadline.Sub(now)
	return left, left <= 0
}

// turn sends and receives what is possible, and blocks when nothing has been
// for a while.
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

// block waits in the kernel. What came while this process was stopped counts:
// the time is over only if there is nothing to receive either.
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

// exchange sends and receives what is possible at once.
func (c *conn) exchange() {
	if c.send.pending() {
		c.flush()
	}
	if c.err == nil && c.receive() && c.err == nil && c.send.pending() {
		c.flush()
	}
}

// waits reports whether a connection, which may be nil, has commands that are not done.
func (c *conn) waits() bool { return c != nil && c.err == nil && c.busy > 0 }

// awaited is what to wait for beside another connection.
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
