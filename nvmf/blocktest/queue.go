package blocktest

import (
	"context"
	"fmt"
	"slices"

	"nvmecr/nvmf"
)

// faultyQueue is a queue of a Faulty. Its fields are guarded by the device's lock.
type faultyQueue struct {
	device  *Faulty
	epoch   int
	depth   int
	closed  bool
	pending []pending // submitted and not yet executed, in order
}

type pending struct {
	c  *nvmf.Command
	id int // ID in the trace
}

func (q *faultyQueue) Submit(cmds []*nvmf.Command) {
	f := q.device
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range cmds {
		c.Begin()
		if err := q.refuse(c); err != nil {
			c.Finish(err)
			continue
		}
		p := f.admit(c)
		q.pending = append(q.pending, p)
		if !f.strike(q, p) && f.random == nil {
			q.execute(len(q.pending) - 1)
		}
	}
}

func (q *faultyQueue) refuse(c *nvmf.Command) error {
	switch {
	case q.closed || q.device.queue == nil:
		return nvmf.ErrClosed
	case q.device.off || q.epoch != q.device.epoch:
		return nvmf.ErrConnectionLost
	}
	return c.Check(&q.device.identity)
}

// admit counts and records a command.
func (f *Faulty) admit(c *nvmf.Command) pending {
	f.counts[c.Opcode]++
	f.lastID++
	f.trace.submitted(f.lastID, c)
	return pending{c, f.lastID}
}

// strike applies the fault that is due with p, the last pending command of q. It
// reports whether p is complete.
func (f *Faulty) strike(q *faultyQueue, p pending) bool {
	var due *fault
	f.faults = slices.DeleteFunc(f.faults, func(x *fault) bool {
		if x.op != p.c.Opcode {
			return false
		}
		x.countdown--
		if x.countdown == 0 && due == nil {
			due = x
		}
		return x.countdown <= 0
	})
	switch {
	case due == nil:
		return false
	case due.lose:
		f.disconnect()
	case due.cut:
		for len(q.pending) > 1 {
			q.execute(0)
		}
		err := f.tear(p.c.LBA, joined(p.c), due.torn)
		if e := f.powerOff(nil); err == nil {
			err = e
		}
		if err != nil {
			p.c.Err = fmt.Errorf("faulty device cannot tear a write: %w", err)
		}
	default:
		q.pending = q.pending[:len(q.pending)-1]
		err := due.err
		if due.elsewhere {
			b := joined(p.c)
			left := (f.identity.Blocks - due.to) * nvmf.LBA(f.identity.LBASize)
			err = f.store(due.to, b[:min(nvmf.LBA(len(b)), left)], p.c.FUA)
		}
		f.finish(p, err)
	}
	return true
}

// execute executes the ith pending command on the wrapped device.
func (q *faultyQueue) execute(i int) {
	f, p := q.device, q.pending[i]
	q.pending = slices.Delete(q.pending, i, i+1)
	f.finish(p, f.perform(p.c))
}

func (f *Faulty) perform(c *nvmf.Command) error {
	switch c.Opcode {
	case nvmf.Write:
		return f.store(c.LBA, joined(c), c.FUA)
	case nvmf.Deallocate:
		return f.store(c.LBA, f.changes(c), false)
	case nvmf.Read:
		b := make([]byte, c.Length())
		err := f.run(nvmf.Read, c.LBA, b)
		for _, d := range c.Data {
			b = b[copy(d, b):]
		}
		return err
	}
	// The wrapped device executes all other commands.
	x := nvmf.Command{Opcode: c.Opcode, LBA: c.LBA, Blocks: c.Blocks, Data: c.Data}
	cmds := []*nvmf.Command{&x}
	f.queue.Submit(cmds)
	err := f.queue.Wait(cmds)
	if f.cache != nil && err == nil && c.Opcode == nvmf.Flush {
		f.cache.flush()
	}
	return err
}

func (f *Faulty) finish(p pending, err error) {
	f.trace.completed(p.id, p.c, err)
	p.c.Finish(err)
}

func (q *faultyQueue) Wait(cmds []*nvmf.Command) error {
	f := q.device
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range cmds {
		for !c.Done() {
			if len(q.pending) == 0 {
				return fmt.Errorf("faulty device: %s at LBA %d was not submitted to this queue", c.Opcode, c.LBA)
			}
			i := 0
			if f.random != nil {
				i = f.random.IntN(min(len(q.pending), max(1, q.depth)))
			}
			q.execute(i)
		}
	}
	return nvmf.FirstError(cmds)
}

func (q *faultyQueue) Reset(ctx context.Context) error {
	f := q.device
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case q.closed:
		return nvmf.ErrClosed
	case f.off:
		return fmt.Errorf("faulty device is off: %w", nvmf.ErrUnreachable)
	}
	q.epoch = f.epoch
	return ctx.Err()
}

func (q *faultyQueue) Close() error {
	f := q.device
	f.mu.Lock()
	defer f.mu.Unlock()
	q.close()
	f.queues = slices.DeleteFunc(f.queues, func(x *faultyQueue) bool { return x == q })
	return nil
}

// close is Close for a caller that holds the device's lock and removes the queue from the device's list.
func (q *faultyQueue) close() {
	for _, p := range q.pending {
		q.device.finish(p, nvmf.ErrConnectionLost)
	}
	q.pending, q.closed = nil, true
}
