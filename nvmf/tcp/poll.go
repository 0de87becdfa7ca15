package tcp

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// Waiting. A blocked thread takes 20 to 30 microseconds to wake, a poll of
// the socket a third of one: where the answer comes soon and the core has
// nothing else to do, polling wins. With more ranks than cores it steals the
// core from whoever would answer. pace tells the two apart by what polling
// brought lately.

const (
	maxSpins = 1000 // about 400 microseconds
	minSpins = 8
	// probeEvery is how many fruitless spins it takes for a full one.
	probeEvery = 32
	// checkEvery is how many turns pass between looks at the clock while
	// there is something to do.
	checkEvery = 1024
)

// pace decides how long to poll before blocking, and when to give up.
type pace struct {
	limit  int // polls before blocking
	idle   int // polls since something came
	misses int // times in vain
	turns  int

	// Since completions was the number of completions the clock runs
	// towards deadline.
	completions uint64
	deadline    time.Time
}

func (p *pace) init() {
	p.limit = maxSpins
	if runtime.NumCPU() == 1 {
		p.limit = minSpins
	}
}

// came notes that polling brought something.
func (p *pace) came() {
	if p.idle > minSpins {
		p.limit = min(maxSpins, max(2*p.limit, 2*p.idle))
	}
	p.idle = 0
}

// missed notes that polling was in vain.
func (p *pace) missed() {
	p.idle = 0
	p.misses++
	p.limit = max(minSpins, p.limit/2)
	if p.misses%probeEvery == 0 && runtime.NumCPU() > 1 {
		p.limit = maxSpins
	}
}

// begin starts the clock for a wait.
func (p *pace) begin() { p.deadline = time.Time{} }

// expired reports whether no command completed for the connection's timeout,
// and how much of it is left. The clock starts at the first call after begin
// or after a completion.
func (c *conn) expired() (left time.Duration, expired bool) {
	p := &c.pace
	now := time.Now()
	if p.deadline.IsZero() || p.completions != c.stats.Commands {
		p.completions, p.deadline = c.stats.Commands, now.Add(c.timeout)
	}
	left = p.deadline.Sub(now)
	return left, left <= 0
}

// turn sends and receives what is possible, and blocks when nothing has been
// for a while.
func (c *conn) turn() {
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
	if p.idle++; p.idle < p.limit || c.err != nil {
		return
	}
	p.missed()
	c.block()
}

func (c *conn) checkTime() {
	if _, over := c.expired(); over && c.err == nil {
		c.lose(c.timeoutError())
	}
}

func (c *conn) timeoutError() error {
	return fmt.Errorf("no command completed for %s, %d in flight: %w", c.timeout, c.busy, unix.ETIMEDOUT)
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
	events := int16(unix.POLLIN)
	if c.send.pending() {
		events |= unix.POLLOUT
	}
	c.stats.Wakeups++
	pollFD(c.fd, events, left)
}

// wait runs the connection until all of cmds are done.
func (c *conn) wait(cmds []*nvmf.Command) {
	c.pace.begin()
	for _, cmd := range cmds {
		for !cmd.Done() && c.err == nil {
			c.turn()
		}
	}
}

// advance returns p + n.
func advance(p *byte, n int) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(p), n)) }
