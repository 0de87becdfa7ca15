//go:build spdk

package spdk

// #include "driver.h"
import "C"

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// Wait runs the queue until cmds are done; see nvmf.Queue.
func (q *Queue) Wait(cmds []*nvmf.Command) error {
	q.pace.begin()
	for _, cmd := range cmds {
		for !cmd.Done() {
			q.turn(cmd)
		}
	}
	return nvmf.FirstError(cmds)
}

// turn polls for cmd, and does what is due.
func (q *Queue) turn(cmd *nvmf.Command) {
	q.mu.Lock()
	came := q.harvest() // another goroutine may have ended the queue pair
	if q.err == nil && !cmd.Done() {
		spin := q.pace.spin()
		if r := C.driver_poll(q.c, C.uint32_t(q.wanted(cmd)), C.uint32_t(spin.Microseconds())); r < 0 {
			q.broken(r)
		}
		came = q.harvest() || came
		q.start(q.rouse())
		came = q.harvest() || came
	}
	var nap time.Duration
	switch {
	case came:
		q.pace.came()
	case q.expired():
		q.lose(&nvmf.TimeoutError{After: q.dev.opts.CommandTimeout, Busy: q.busy()})
		q.harvest()
	default:
		nap = q.pace.nothing()
	}
	q.mu.Unlock()
	if nap > 0 {
		t := unix.NsecToTimespec(nap.Nanoseconds())
		_ = unix.Nanosleep(&t, nil) // less is no harm
	}
}

// wanted is the slot whose end is waited for: that of cmd, or, where the end
// of another one would let us go on as well, any.
func (q *Queue) wanted(cmd *nvmf.Command) uint32 {
	if i := cmd.Tag; q.waiting == nil && len(q.resting) == 0 && i < uint32(len(q.flights)) && q.flights[i].cmd == cmd {
		return i
	}
	return uint32(len(q.flights))
}

// busy is how many commands the controller has.
func (q *Queue) busy() int { return len(q.flights) - len(q.free) - len(q.resting) }

// expired reports whether no command was answered for the command time-out. The
// clock starts when nothing comes, and stands while the controller has none.
func (q *Queue) expired() bool {
	now := time.Now()
	if q.busy() == 0 || q.pace.deadline.IsZero() {
		q.pace.deadline = now.Add(q.dev.opts.CommandTimeout)
	}
	return now.After(q.pace.deadline)
}

// rouse makes the slots that have rested enough the first of todo, and returns
// how many they are.
func (q *Queue) rouse() int {
	if len(q.resting) == 0 {
		return 0
	}
	now, n := time.Now(), 0
	still := q.resting[:0]
	for _, i := range q.resting {
		if q.flights[i].repetition.Due().After(now) {
			still = append(still, i)
			continue
		}
		q.todo[n] = C.uint32_t(i)
		n++
	}
	q.resting = still
	return n
}

// Polling takes a core. Where answers come while it does that, it is the
// fastest way; where they do not, somebody else may need the core to give them.
const (
	firstSpin = 200 * time.Microsecond
	leastSpin = 4 * time.Microsecond
	firstNap  = 20 * time.Microsecond
	lastNap   = 500 * time.Microsecond
)

// pace decides how long to poll, and how long not to.
type pace struct {
	most     time.Duration // to poll for before a nap
	limit    time.Duration // the same, by what polling brought lately
	rest     time.Duration // the next nap; 0: none so far in this wait
	deadline time.Time     // when the connection is given up; zero: not counted yet
}

func (p *pace) init() {
	if p.most = firstSpin; runtime.NumCPU() == 1 {
		p.most = leastSpin
	}
	p.limit = p.most
}

// begin starts a wait.
func (p *pace) begin() { p.rest, p.deadline = 0, time.Time{} }

// spin is how long to poll now: after a nap only for what has come meanwhile.
func (p *pace) spin() time.Duration {
	if p.rest > 0 {
		return 0
	}
	return p.limit
}

// came notes that polling brought something.
func (p *pace) came() {
	if p.rest == 0 {
		p.limit = min(p.most, 2*p.limit)
	}
	p.begin()
}

// nothing notes that it did not, and returns how long to leave the core alone.
func (p *pace) nothing() time.Duration {
	if p.rest == 0 {
		p.limit = max(leastSpin, p.limit/2)
		p.rest = firstNap
	} else {
		p.rest = min(2*p.rest, lastNap)
	}
	return p.rest
}
