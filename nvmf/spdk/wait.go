//go:build spdk

package spdk

// #include "driver.h"
import "C"

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
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
	came, moved := q.harvest(), false // another goroutine may have ended the queue pair
	if q.err == nil && !cmd.Done() {
		r := C.driver_poll(q.c, C.uint32_t(q.wanted(cmd)), C.uint32_t(q.pace.limit.Microseconds()))
		if moved = r > 0; r < 0 {
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
	case !moved:
		nap = q.pace.nothing()
	}
	socket := q.socket
	q.mu.Unlock()
	if nap > 0 {
		rest(socket, nap)
	}
}

// rest sleeps until something comes, or for so long: data that could not be sent
// may wait for room. Without a socket, or when that is closed meanwhile, less or
// more is no harm.
func rest(socket int, nap time.Duration) {
	t := unix.NsecToTimespec(nap.Nanoseconds())
	if socket < 0 {
		_ = unix.Nanosleep(&t, nil)
		return
	}
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, &t, nil)
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

// overdue reports whether a slot has rested enough and goes on all the same: there
// is no memory for it.
func (q *Queue) overdue(now time.Time) bool {
	return slices.ContainsFunc(q.resting, func(i uint32) bool { return q.flights[i].repetition.Due().Before(now) })
}

// expired reports whether no command was answered for the command time-out. The
// clock starts when nothing comes, and stands while there is none.
func (q *Queue) expired() bool {
	now := time.Now()
	if q.busy() == 0 && q.waiting == nil && !q.overdue(now) || q.pace.deadline.IsZero() {
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
		if q.flights[i].repetition.Due().After(now) || !q.again(i) {
			still = append(still, i)
			continue
		}
		q.todo[n] = C.uint32_t(i)
		n++
	}
	q.resting = still
	return n
}

// again makes a slot ready to be sent once more. It fails if there is no memory
// for its data.
func (q *Queue) again(i uint32) bool {
	f := &q.flights[i]
	if !f.lent { // all is as it was
		return true
	}
	ready := q.fill(i, f.cmd) // what was lent was taken back
	f.lent = f.lent || !ready
	return ready
}

// Polling takes a core, which is the fastest way while there are cores enough:
// data moves on with every poll, also when no command gets done. In a crowd
// whoever is to answer may need it, so a thread that has polled in vain leaves it
// then; it does so anyway when nothing has come for long.
const (
	fullSpin  = 200 * time.Microsecond
	shortSpin = 4 * time.Microsecond // in a crowd
	// So many spins in vain: until nothing is expected soon, and in a crowd
	// until letting others go first is not enough.
	fewSpins  = 100
	fewYields = 32
	// So many waits pass between looks at the crowd that there was.
	reviewEvery = 64
	firstNap    = 20 * time.Microsecond
	lastNap     = 500 * time.Microsecond
)

// pace decides how long to poll, and how long not to.
type pace struct {
	crowd    func() bool
	limit    time.Duration // to poll for before nothing is called
	waits    int           // since limit became short
	vain     int           // spins in this wait that brought nothing
	nap      time.Duration // the last one
	deadline time.Time     // when the connection is given up; zero: not counted yet
}

func (p *pace) init() {
	p.crowd = initiator.Crowded
	p.crowd() // opens its file, not in the middle of a wait
	if p.limit = fullSpin; initiator.Processors() == 1 {
		p.crowd, p.limit = func() bool { return true }, shortSpin
	}
}

// begin starts a wait.
func (p *pace) begin() {
	p.came()
	if p.limit == shortSpin {
		if p.waits++; p.waits >= reviewEvery {
			if p.waits = 0; !p.crowd() {
				p.limit = fullSpin
			}
		}
	}
}

// came notes that polling brought something.
func (p *pace) came() { p.vain, p.nap, p.deadline = 0, 0, time.Time{} }

// nothing notes that it did not, and returns how long to leave the core alone.
func (p *pace) nothing() time.Duration {
	p.vain++
	switch {
	case p.limit == fullSpin && p.crowd():
		p.limit, p.waits, p.vain = shortSpin, 0, 0
		return 0
	case p.limit == fullSpin && p.vain < fewSpins:
		return 0
	case p.limit == shortSpin && p.vain < fewYields:
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
		return 0
	}
	p.nap = min(max(firstNap, 2*p.nap), lastNap)
	return p.nap
}
