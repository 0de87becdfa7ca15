package target

import (
	"fmt"
	"sync/atomic"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// MinRate is the lowest limit of a namespace. With less, the commands of a full queue would take so
// long that the host takes them for lost.
const MinRate = nvmf.MiB

// limitBurst is the time for which an unused rate can be made up for later. It also covers a thread
// that sleeps longer than it asked for.
const limitBurst = 20 * time.Millisecond

// limitDebt is the longest that a connection waits for what it and others have taken. If many
// connections share a low limit, one command of each can take longer. Then the limit is exceeded,
// because a host takes the connection for lost if its commands are delayed for longer.
const limitDebt = 8 * time.Second

// limit is a token bucket for the bytes that a namespace's reads and writes move. A command is
// never refused and never waits itself. It may take the bucket below zero, and then its connection
// takes no further command until the bucket has filled up to zero. The thread of the connection
// does everything else meanwhile. A new connection to the namespace first waits for what others
// have taken, or a host could evade the limit with a new connection for each command.
type limit struct {
	rate uint64 // bytes per second
	// paid is the instant until which the bytes moved so far use up the rate.
	paid atomic.Int64
}

// epoch is the zero of instants, which are in nanoseconds.
var epoch = time.Now()

func now() int64 { return int64(time.Since(epoch)) }

func checkRate(rate nvmf.Bytes) error {
	if rate != 0 && rate < MinRate {
		return fmt.Errorf("a limit of %s per second is too low, %s is the least: %w", rate, MinRate, nvmf.ErrUnsupported)
	}
	return nil
}

// newLimit returns nil for no limit.
func newLimit(rate nvmf.Bytes) *limit {
	if rate == 0 {
		return nil
	}
	return &limit{rate: uint64(rate)}
}

// take takes n bytes, at most maxTransfer, and returns when they are paid for.
// With MinRate that is a second more than before, with any other rate less; it
// is never later than limitDebt from now.
func (l *limit) take(n uint32) int64 {
	cost := int64(uint64(n) * uint64(time.Second) / l.rate)
	for {
		paid := l.paid.Load()
		instant := now()
		next := min(max(paid, instant-int64(limitBurst))+cost, instant+int64(limitDebt))
		if l.paid.CompareAndSwap(paid, next) {
			return next
		}
	}
}

// pause is the state of a connection that a limit keeps from taking commands. It belongs to its
// thread.
type pause struct {
	at    *namespace
	limit *limit // nil: there is no pause
	until int64
}

// charge takes the bytes of a command from the limit of its namespace. Without a limit it costs one
// atomic load.
func (c *conn) charge(m *command, n uint32) {
	l := m.at.limit.Load()
	if l == nil || n == 0 {
		return
	}
	if until := l.take(n); until > now() {
		c.pause = pause{m.at.namespace, l, until}
	}
}

// queued reports whether a command is the connection's first for its namespace and has to wait for
// what has been taken from the limit by now. It does not wait for what others take later: from now
// on the connection shares the limit with them.
func (c *conn) queued(sqe *nvme.SQE) bool {
	if c.qid == 0 || c.barred || sqe.Opcode() == nvme.AdminFabrics || c.attachment(sqe.NSID()) != nil {
		return false
	}
	a := c.attach(sqe.NSID())
	if a == nil {
		return false // the command will fail because of it
	}
	if l := a.limit.Load(); l != nil {
		c.pause = pause{a.namespace, l, l.paid.Load()}
	}
	return c.paused()
}

// paused reports whether the next command has to wait. A pause ends when its limit is changed or
// its namespace is removed.
func (c *conn) paused() bool {
	p := &c.pause
	if p.limit == nil {
		return false
	}
	if p.at.limit.Load() == p.limit && !p.at.removed.Load() && now() < p.until {
		return true
	}
	*p = pause{}
	return false
}

// left returns the length of the pause that remains, in milliseconds, rounded up: -1 if there is
// none.
func (p *pause) left() int {
	if p.limit == nil {
		return -1
	}
	const ms = int64(time.Millisecond)
	return int(max(0, (p.until-now()+ms-1)/ms))
}

// SetRate limits a namespace to rate bytes per second, 0 for no limit. It
// holds for the next command of every host.
func (t *Target) SetRate(nqn string, nsid uint32, rate nvmf.Bytes) error {
	if err := checkRate(rate); err != nil {
		return fmt.Errorf("target: namespace %d of %s: %w", nsid, nqn, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sub := t.subsystems[nqn]
	if sub == nil {
		return fmt.Errorf("target: no subsystem %s: %w", nqn, nvmf.ErrNoSubsystem)
	}
	n := (*sub.namespaces.Load())[nsid]
	if n == nil {
		return fmt.Errorf("target: subsystem %s has no namespace %d: %w", nqn, nsid, nvmf.ErrNoNamespace)
	}
	n.limit.Store(newLimit(rate))
	t.wakeAll()
	return nil
}
