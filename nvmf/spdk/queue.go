//go:build spdk

package spdk

// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// A Queue is an I/O queue pair of SPDK. It implements nvmf.Queue and has one
// owner.
type Queue struct {
	dev *Device
	// mu is held while the queue pair is used, since the device removes the queue pair
	// when the association ends.
	mu  sync.Mutex
	c   *C.struct_driver_queue
	err error // why there is no queue pair; the error wraps nvmf.ErrConnectionLost
	// socket is the socket of the queue pair, or -1.
	socket int

	// The following fields belong to the owner. The first three are in C's memory.
	slots         []C.struct_driver_slot
	todo          []C.uint32_t
	done          []C.uint32_t
	inflight      []flight // by slot
	free          []uint32 // slots without a command, a stack
	resting       []uint32 // slots whose command waits for its retry
	direct        int      // pieces that a command may have; 0: all data is copied
	registrations int      // commands so far whose data was registered with the device
	pace          pace
	closed        bool
	// Commands that wait for a slot, linked by Command.Next.
	waiting, waitingEnd *nvmf.Command
}

var _ nvmf.Queue = (*Queue)(nil)

// A flight is the command of a slot.
type flight struct {
	cmd   *nvmf.Command // nil: the slot is free
	retry initiator.Retry
	// buffer is used instead of the command's memory if SPDK cannot use that.
	buffer     unsafe.Pointer
	size       nvmf.Bytes
	inward     bool // buffer is copied to the command's memory when the command completes
	registered bool // the command's memory is registered with the device until the command is done
}

func newQueue(d *Device, depth int) (*Queue, error) {
	c := C.driver_queue_new(C.uint32_t(depth))
	if c == nil {
		return nil, syscall.ENOMEM
	}
	q := &Queue{dev: d, c: c, socket: -1, inflight: make([]flight, depth),
		slots: unsafe.Slice(c.slot, depth), todo: unsafe.Slice(c.todo, depth), done: unsafe.Slice(c.done, depth)}
	for i := range depth {
		q.free = append(q.free, uint32(depth-1-i))
	}
	q.pace.init()
	return q, nil
}

// release frees the queue's memory.
func (q *Queue) release() {
	for i := range q.inflight {
		q.dealloc(&q.inflight[i])
	}
	C.driver_queue_free(q.c)
	q.c, q.slots, q.todo, q.done, q.closed = nil, nil, nil, nil, true
}

// connect connects a queue pair for the queue. Over a fabric it ends with ctx.
func (q *Queue) connect(ctx context.Context, a *association) error {
	if retired.Load() {
		return fmt.Errorf("%w: %w", nvmf.ErrClosed, ErrUnusable)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	began := time.Now()
	var fresh map[int]string
	var proved bool
	text, err := explained(func() (err syscall.Errno) {
		defer proving(&proved)()
		wait := q.dev.id.Transport == nvmf.PCIe // a drive connects a queue pair at once
		fresh = arrivals(func() { err = errno(C.driver_queue_open(q.c, a.controller, C.uint32_t(q.dev.id.NSID), C.bool(wait))) })
		if err != 0 || wait {
			return err
		}
		return patiently(ctx, a.allSteps(a.timeout), turn, pause, func(us C.uint32_t) syscall.Errno { return errno(C.driver_queue_opening(q.c, us)) })
	})
	if err == syscall.EAGAIN {
		q.disconnect()
	}
	switch err {
	case 0:
		q.err = nil
		var err error
		if q.socket, err = claimSocket(fresh, a.id, q.dev.opts.CongestionControl); err != nil {
			q.lose(err)
			return err
		}
		if q.direct = 0; q.dev.id.Transport == nvmf.TCP || q.c.domain != nil {
			q.direct = int(C.driver_pieces(a.controller))
		}
		return nil
	case syscall.ENOENT:
		return nvmf.ErrNoNamespace
	}
	if strings.Contains(text, "No free I/O queue IDs") {
		return fmt.Errorf("all I/O queues that the target grants are in use: %w", syscall.EBUSY)
	}
	return silent(ctx, refusal(&q.dev.opts, a.id.SubNQN, text, proved), began, a.timeout)
}

// healthy reports whether there is a queue pair, as far as is known.
func (q *Queue) healthy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err == nil
}

// take ends the queue pair. Any goroutine may call it, and the owner notices it in its next
// call.
func (q *Queue) take(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lose(cause)
}

// lose ends the queue pair. The caller holds q.mu.
func (q *Queue) lose(cause error) {
	if q.err != nil || q.c == nil {
		return
	}
	if !errors.Is(cause, nvmf.ErrConnectionLost) {
		cause = fmt.Errorf("%w: %w", nvmf.ErrConnectionLost, cause)
	}
	q.err = cause
	ownfd.Drop(q.socket)
	q.disconnect()
}

// disconnect ends the queue pair. SPDK's messages about that are ignored, since the cause is
// known.
func (q *Queue) disconnect() {
	_, _ = explained(func() struct{} {
		C.driver_queue_close(q.c)
		return struct{}{}
	})
}

// broken ends the queue pair after an error of SPDK.
func (q *Queue) broken(result C.int) {
	q.lose(fmt.Errorf("%w%s", errno(result), behind(&q.c.said[0])))
}

// Close ends the queue; see nvmf.Queue. A second Close does nothing.
func (q *Queue) Close() error {
	if q.closed {
		return nil
	}
	q.take(nvmf.ErrClosed)
	q.dev.detach(q)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reap()
	q.release()
	return nil
}

// Submit starts commands; see nvmf.Queue.
func (q *Queue) Submit(cmds []*nvmf.Command) {
	for _, cmd := range cmds {
		cmd.Begin()
		if err := q.check(cmd); err != nil {
			cmd.Finish(err)
			continue
		}
		q.enqueue(cmd)
	}
	if !q.closed {
		q.mu.Lock()
		q.start(0)
		q.reap()
		q.mu.Unlock()
	}
}

func (q *Queue) check(cmd *nvmf.Command) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	return initiator.Check(cmd, &q.dev.identity, C.DRIVER_RANGES)
}

// enqueue appends a command to those that wait.
func (q *Queue) enqueue(cmd *nvmf.Command) {
	if q.waiting == nil {
		q.waiting = cmd
	} else {
		q.waitingEnd.Next = cmd
	}
	q.waitingEnd = cmd
}

// start gives free slots to the commands that wait, and starts them behind the
// first ready slots of todo. The caller holds q.mu.
func (q *Queue) start(ready int) {
	if q.err != nil {
		return
	}
	again := ready
	for q.waiting != nil && len(q.free) > 0 {
		cmd, i := q.waiting, q.free[len(q.free)-1]
		if !q.fill(i, cmd) {
			if ready == 0 && len(q.free) == len(q.inflight) { // no command in flight will free memory
				q.waiting = cmd.Next
				cmd.Finish(fmt.Errorf("%s of %d bytes: no memory that the device can reach: %w", cmd.Opcode, cmd.Length(), syscall.ENOMEM))
				continue
			}
			break
		}
		q.waiting, cmd.Next = cmd.Next, nil
		q.free = q.free[:len(q.free)-1]
		q.inflight[i].cmd, cmd.Tag = cmd, i
		q.todo[ready] = C.uint32_t(i)
		ready++
	}
	if ready == 0 {
		return
	}
	started := C.driver_submit(q.c, C.uint32_t(ready))
	q.postpone(int(started), again, ready) // also after an error, so that reap ends these commands
	if q.c.result < 0 {
		q.broken(q.c.result)
	}
}

// postpone puts back the commands that SPDK had no space for, until another command is done.
// Commands before again in todo go back to resting, the others to waiting.
func (q *Queue) postpone(from, again, to int) {
	for n := to - 1; n >= from; n-- {
		i := uint32(q.todo[n])
		q.deregister(i)
		if n < again {
			q.resting = append(q.resting, i)
			continue
		}
		cmd := q.inflight[i].cmd
		q.vacate(i)
		if cmd.Next = q.waiting; q.waiting == nil {
			q.waitingEnd = cmd
		}
		q.waiting = cmd
	}
}

// vacate frees a slot.
func (q *Queue) vacate(i uint32) {
	f := &q.inflight[i]
	f.cmd, f.retry, f.registered = nil, initiator.Retry{}, false
	q.free = append(q.free, i)
}

// reap handles the completed slots, and ends all other commands if the queue pair is lost. It
// returns false if there was nothing to do. The caller holds q.mu.
func (q *Queue) reap() bool {
	if q.c.done_count == 0 && q.err == nil {
		return false
	}
	for n := 0; n < int(q.c.done_count); n++ { // a lost connection adds some
		q.landed(uint32(q.done[n]))
	}
	q.c.done_count = 0
	if q.err == nil {
		return true
	}
	for _, i := range q.resting {
		q.finish(i, q.err)
	}
	q.resting = q.resting[:0]
	for q.waiting != nil {
		cmd := q.waiting
		q.waiting = cmd.Next
		cmd.Finish(q.err)
	}
	return true
}

// landed handles the result of a completed slot.
func (q *Queue) landed(i uint32) {
	s, f := &q.slots[i], &q.inflight[i]
	if s.lost {
		if q.err == nil {
			q.lose(fmt.Errorf("%w%s", nvmf.ErrConnectionLost, behind(&q.c.said[0])))
		}
		q.finish(i, q.err)
		return
	}
	status := nvme.Status(s.status)
	if status.Code() == 0 {
		q.unload(i)
		q.finish(i, nil)
		return
	}
	cmd := f.cmd
	err := &nvmf.StatusError{Opcode: cmd.Opcode, LBA: cmd.LBA, SCT: status.SCT(), SC: status.SC(), DNR: status.DNR()}
	if err.Transient() && f.retry.Again(q.dev.opts.CommandTimeout) {
		q.resting = append(q.resting, i)
		return
	}
	q.finish(i, err)
}

func (q *Queue) finish(i uint32, err error) {
	cmd := q.inflight[i].cmd
	q.vacate(i)
	cmd.Finish(err)
}
