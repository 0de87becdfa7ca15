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

// turn polls the queue pair once for cmd, and sends due retries and waiting commands.
// After polls without success it sleeps.
func (q *Queue) turn(cmd *nvmf.Command) {
	q.mu.Lock()
	came, moved := q.reap(), false // another goroutine may have ended the queue pair
	if q.err == nil && !cmd.Done() {
		r := C.driver_poll(q.c, C.uint32_t(q.wanted(cmd)), C.uint32_t(q.pace.limit.Microseconds()))
		if moved = r > 0; r < 0 {
			q.broken(r)
		}
		came = q.reap() || came
		q.start(q.resume())
		came = q.reap() || came
	}
	var nap time.Duration
	switch {
	case came:
		q.pace.came()
	case q.expired():
		q.lose(&nvmf.TimeoutError{After: q.dev.opts.CommandTimeout, Busy: q.busy()})
		q.reap()
	case !moved:
		nap = q.pace.nothing()
	}
	socket := q.socket
	q.mu.Unlock()
	if nap > 0 {
		rest(socket, nap)
	}
}

// rest sleeps until data arrives, or for nap. The time is limited, since data that SPDK
// could not send may wait for a free slot. A sleep of another length does no harm; it
// happens if the socket was closed meanwhile.
func rest(socket int, nap time.Duration) {
	t := unix.NsecToTimespec(nap.Nanoseconds())
	if socket < 0 {
		_ = unix.Nanosleep(&t, nil)
		return
	}
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, &t, nil)
}

// wanted returns the slot whose completion ends the poll: that of cmd, or any if another
// completion also lets the queue continue.
func (q *Queue) wanted(cmd *nvmf.Command) uint32 {
	if i := cmd.Tag; q.waiting == nil && len(q.resting) == 0 && i < uint32(len(q.inflight)) && q.inflight[i].cmd == cmd {
		return i
	}
	return uint32(len(q.inflight))
}

// busy returns the number of commands that the controller has.
func (q *Queue) busy() int { return len(q.inflight) - len(q.free) - len(q.resting) }

// overdue reports whether a retry is due but was not sent, for lack of memory.
func (q *Queue) overdue(now time.Time) bool {
	return slices.ContainsFunc(q.resting, func(i uint32) bool { return q.inflight[i].retry.Due().Before(now) })
}

// expired reports whether no command was answered for the command time-out. The time-out
// starts with the first poll without an answer, and starts again while there is no command.
func (q *Queue) expired() bool {
	now := time.Now()
	if q.busy() == 0 && q.waiting == nil && !q.overdue(now) || q.pace.deadline.IsZero() {
		q.pace.deadline = now.Add(q.dev.opts.CommandTimeout)
	}
	return now.After(q.pace.deadline)
}

// resume puts the slots whose retry is due at the beginning of todo, and returns their
// number.
func (q *Queue) resume() int {
	if len(q.resting) == 0 {
		return 0
	}
	now, n := time.Now(), 0
	still := q.resting[:0]
	for _, i := range q.resting {
		if q.inflight[i].retry.Due().After(now) || !q.again(i) {
			still = append(still, i)
			continue
		}
		q.todo[n] = C.uint32_t(i)
		n++
	}
	q.resting = still
	return n
}

// again prepares a slot for a retry. It fails if there is no memory for the data.
func (q *Queue) again(i uint32) bool {
	f := &q.inflight[i]
	if !f.registered { // the slot has not changed
		return true
	}
	ready := q.fill(i, f.cmd) // registered memory was deregistered
	f.registered = f.registered || !ready
	return ready
}

// Polling is the fastest way to wait as long as there are enough cores. Every poll
// moves data, even if it completes no command. On an oversubscribed machine the target
// may need the core, so a thread yields it after polls without success. It also yields
// the core when nothing has completed for a long time.
const (
	fullSpin  = 200 * time.Microsecond
	shortSpin = 4 * time.Microsecond // when oversubscribed
	// After fewSpins polls without success a thread sleeps. When oversubscribed, it
	// yields its core up to fewYields times before it sleeps.
	fewSpins  = 100
	fewYields = 32
	// reviewEvery is the number of waits after which Oversubscribed is called again.
	reviewEvery = 64
	firstNap    = 20 * time.Microsecond
	lastNap     = 500 * time.Microsecond
)

// pace decides how long to poll and how long to sleep.
type pace struct {
	oversubscribed func() bool
	limit          time.Duration // how long to poll before nothing is called
	waits          int           // number of waits since limit became short
	emptyPolls     int           // number of polls without success in this wait
	nap            time.Duration // the last sleep
	deadline       time.Time     // when the connection is given up; zero: not started yet
}

func (p *pace) init() {
	p.oversubscribed = initiator.Oversubscribed
	p.oversubscribed() // opens its file now rather than in a wait
	if p.limit = fullSpin; initiator.Processors() == 1 {
		p.oversubscribed, p.limit = func() bool { return true }, shortSpin
	}
}

// begin starts a wait.
func (p *pace) begin() {
	p.came()
	if p.limit == shortSpin {
		if p.waits++; p.waits >= reviewEvery {
			if p.waits = 0; !p.oversubscribed() {
				p.limit = fullSpin
			}
		}
	}
}

// came records that polling has found completions.
func (p *pace) came() { p.emptyPolls, p.nap, p.deadline = 0, 0, time.Time{} }

// nothing records a poll without success, and returns how long to sleep.
func (p *pace) nothing() time.Duration {
	p.emptyPolls++
	switch {
	case p.limit == fullSpin && p.oversubscribed():
		p.limit, p.waits, p.emptyPolls = shortSpin, 0, 0
		return 0
	case p.limit == fullSpin && p.emptyPolls < fewSpins:
		return 0
	case p.limit == shortSpin && p.emptyPolls < fewYields:
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
		return 0
	}
	p.nap = min(max(firstNap, 2*p.nap), lastNap)
	return p.nap
}
