package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/nvmf"
)

var _ nvmf.MirroredQueue = (*Queue)(nil)

// A transfer is a command in flight, and what it is on the sides.
type transfer struct {
	sub  [2]nvmf.Command
	list [2][1]*nvmf.Command // of sub, for the queues
	on   [2]bool             // sub was submitted
	from int                 // the side that a read is from
}

// Queue runs the queues of the sides.
type Queue struct {
	dev       *Device
	sides     [2]nvmf.Queue // nil: not used
	transfers []*transfer   // by Command.Tag
	free      []uint32
	batch     [2][]*nvmf.Command
	first     int     // the side that is read from
	down      [2]bool // its connection was lost
	strict    bool    // no other one is read; see ReadFrom
	healing   bool    // since the last Reset

	look     nvmf.Command // at the state of the side that is not read
	lookList [1]*nvmf.Command
	lookData [stateSize]byte
	closed   bool
}

// A pairer is a queue that goes on while its owner waits for another one: a target that is ready for data does not wait for the other target's answer.
type pairer interface{ Pair(other nvmf.Queue) }

// OpenQueue opens a queue on each side; see nvmf.Device.
func (d *Device) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.closed.Load() {
		return nil, nvmf.ErrClosed
	}
	q := &Queue{dev: d}
	if from := d.from.Load(); from != none {
		q.first, q.strict = int(from), true
	}
	err := d.each(ctx, func(s int) (err error) {
		q.sides[s], err = d.sides[s].OpenQueue(ctx, depth)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	q.lookList[0] = &q.look
	for s := range q.sides {
		if p, ok := q.sides[s].(pairer); ok && q.sides[1-s] != nil {
			p.Pair(q.sides[1-s])
		}
	}
	return q, nil
}

// uses reports whether a side counts, and this queue has it.
func (q *Queue) uses(s int) bool { return q.sides[s] != nil && q.dev.uses(s) }

// source returns the side to read from.
func (q *Queue) source() int {
	if q.uses(q.first) {
		return q.first
	}
	return 1 - q.first
}

// Submit starts commands on the sides; see nvmf.Queue.
func (q *Queue) Submit(cmds []*nvmf.Command) {
	q.batch[0], q.batch[1] = q.batch[0][:0], q.batch[1][:0]
	for _, c := range cmds {
		c.Begin()
		if err := q.check(c); err != nil {
			c.Finish(err)
			continue
		}
		t := q.take(c)
		if c.Opcode == nvmf.Read {
			t.from = q.source()
			q.add(t, c, t.from)
			continue
		}
		q.healing = false
		for s := range q.sides {
			if q.uses(s) {
				q.add(t, c, s)
			}
		}
	}
	q.send()
}

func (q *Queue) check(c *nvmf.Command) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	if err := c.Check(&q.dev.identity); err != nil {
		return err
	}
	if c.Opcode == nvmf.Deallocate && !q.dev.identity.CanDeallocate {
		return fmt.Errorf("%s: %w", c.Opcode, nvmf.ErrUnsupported)
	}
	if c.Opcode != nvmf.Read && q.dev.owed.Load() != nil {
		return q.dev.record()
	}
	return nil
}

// take returns an idle transfer, which the command names from then on.
func (q *Queue) take(c *nvmf.Command) *transfer {
	if len(q.free) == 0 {
		q.free = append(q.free, uint32(len(q.transfers)))
		t := &transfer{}
		t.list[0][0], t.list[1][0] = &t.sub[0], &t.sub[1]
		q.transfers = append(q.transfers, t)
	}
	last := len(q.free) - 1
	c.Tag, q.free = q.free[last], q.free[:last]
	t := q.transfers[c.Tag]
	t.on = [2]bool{}
	return t
}

// add puts the command of a side into the batch of its queue.
func (q *Queue) add(t *transfer, c *nvmf.Command, s int) {
	t.sub[s] = nvmf.Command{Opcode: c.Opcode, FUA: c.FUA, LBA: c.LBA, Blocks: c.Blocks, Data: c.Data}
	if c.Opcode != nvmf.Flush {
		t.sub[s].LBA += nvmf.LBA(q.dev.side(s).start() / q.dev.identity.LBASize)
	}
	t.on[s] = true
	q.batch[s] = append(q.batch[s], &t.sub[s])
}

func (q *Queue) send() {
	for s, batch := range q.batch {
		if len(batch) > 0 {
			q.sides[s].Submit(batch)
		}
	}
}

// Wait runs the queues of both sides until cmds are done; see nvmf.Queue.
func (q *Queue) Wait(cmds []*nvmf.Command) error {
	reads := false
	for _, c := range cmds {
		if !c.Done() {
			q.complete(q.transfers[c.Tag])
			reads = reads || c.Opcode == nvmf.Read
		}
	}
	var unseen error
	if reads && q.dev.o.ReadOnly {
		unseen = q.follow(cmds)
	}
	for _, c := range cmds {
		if c.Done() {
			continue
		}
		err := q.outcome(c, q.transfers[c.Tag])
		if err == nil && c.Opcode == nvmf.Read {
			err = unseen
		}
		q.free = append(q.free, c.Tag)
		c.Finish(err)
	}
	return nvmf.FirstError(cmds)
}

// complete waits until a command has ended on each side where it is.
func (q *Queue) complete(t *transfer) {
	for s := range q.sides {
		if !t.on[s] {
			continue
		}
		_ = q.sides[s].Wait(t.list[s][:]) // each has its own error
		if errors.Is(t.sub[s].Err, nvmf.ErrConnectionLost) {
			q.down[s] = true
		}
	}
}

// outcome returns how a completed command ended.
func (q *Queue) outcome(c *nvmf.Command, t *transfer) error {
	if c.Opcode == nvmf.Read {
		return q.read(c, t)
	}
	var err error
	for s := range t.on {
		if !t.on[s] || !q.dev.uses(s) {
			continue // what a side has that was given up does not matter
		}
		if e := t.sub[s].Err; e != nil && (err == nil || errors.Is(e, nvmf.ErrConnectionLost)) {
			err = e
		}
	}
	return err
}

// read is outcome for a read: what is damaged on one side is read from the other one, and what is to be healed written there.
func (q *Queue) read(c *nvmf.Command, t *transfer) error {
	err, other := t.sub[t.from].Err, 1-t.from
	if damaged(err) && q.uses(other) && !q.strict {
		first := err
		if err = q.again(c, t, other); err != nil {
			if errors.Is(err, nvmf.ErrConnectionLost) {
				return err // the other side may have it
			}
			return first
		}
		other = t.from
		t.from = 1 - other
	}
	if err != nil || !q.uses(other) || !q.healing && !q.dev.healing.Load() {
		return err
	}
	w := nvmf.Command{Opcode: nvmf.Write, LBA: c.LBA, Blocks: c.Blocks, Data: c.Data}
	return q.again(&w, t, other)
}

// again executes a command on one side. The next Reset finds the data that is lost with the connection.
func (q *Queue) again(c *nvmf.Command, t *transfer, s int) error {
	q.batch[0], q.batch[1] = q.batch[0][:0], q.batch[1][:0]
	q.add(t, c, s)
	q.send()
	_ = q.sides[s].Wait(t.list[s][:]) // it has its own error
	err := t.sub[s].Err
	q.down[s] = q.down[s] || errors.Is(err, nvmf.ErrConnectionLost)
	return err
}

// ReadOther reads from the side that reads are not from; see nvmf.MirroredQueue.
func (q *Queue) ReadOther(c *nvmf.Command) error {
	c.Begin()
	err, other := q.check(c), 1-q.source()
	if err == nil && (q.strict || !q.uses(other)) {
		err = ErrOneSide
	}
	if err == nil {
		err = q.again(c, q.take(c), other)
		q.free = append(q.free, c.Tag)
	}
	c.Finish(err)
	return err
}

// saysAlone reads whether a side has a record that it is used alone.
func (q *Queue) saysAlone(s int) (bool, error) {
	q.look = q.dev.side(s).stateCommand(q.lookData[:])
	q.sides[s].Submit(q.lookList[:])
	if err := q.sides[s].Wait(q.lookList[:]); err != nil {
		q.down[s] = q.down[s] || errors.Is(err, nvmf.ErrConnectionLost)
		return false, err
	}
	st, err := decode(q.lookData[:], s)
	return st != nil && st.mode == alone && st.mirror == q.dev.mirror, err
}

// Look checks whether another process has lost a side which this process still reaches. The device then uses the other side alone, and
// reports that.
func (q *Queue) Look() error {
	for s := range q.sides {
		if !q.uses(0) || !q.uses(1) {
			break
		}
		if is, err := q.saysAlone(s); err != nil {
			return err
		} else if is {
			q.dev.goOn(s, errElsewhere)
		}
	}
	return nil
}

// follow looks whether the side that was not read has gone on alone since, and reads there if so. The error is for all reads.
func (q *Queue) follow(cmds []*nvmf.Command) error {
	other := 1 - q.source()
	if !q.uses(other) {
		return nil
	}
	if is, err := q.saysAlone(other); err != nil || !is {
		return err
	}
	q.dev.alone.Store(int32(other))
	q.batch[0], q.batch[1] = q.batch[0][:0], q.batch[1][:0]
	for _, c := range cmds {
		if !c.Done() && c.Opcode == nvmf.Read {
			t := q.transfers[c.Tag]
			t.from = other
			q.add(t, c, other)
		}
	}
	q.send()
	return q.sides[other].Wait(q.batch[other])
}

// Reset brings back what was lost; see nvmf.Queue. A side that does not come within Options.Patience while the other one is there is
// given up.
func (q *Queue) Reset(ctx context.Context) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	for s := range q.sides {
		if !q.uses(1 - s) {
			return q.sides[s].Reset(ctx)
		}
	}
	errs := q.resetBoth(ctx)
	switch {
	case errs[0] != nil && errs[1] != nil:
		return errors.Join(errs[:]...)
	case errs[0] != nil:
		return q.dev.lose(0, errs[0])
	case errs[1] != nil:
		return q.dev.lose(1, errs[1])
	}
	// What one has missed, or lost with its cache, it gets from the other one. Until it has everything, the other one stays the one that is read.
	if q.down[0] != q.down[1] && !q.healing && !q.strict {
		q.first = 0
		if q.down[0] {
			q.first = 1
		}
	}
	q.healing = !q.dev.o.ReadOnly && (q.healing || q.down[0] || q.down[1])
	q.down = [2]bool{}
	return nil
}

// resetBoth resets both queues at once, so that one that is gone takes no time from the other one.
func (q *Queue) resetBoth(ctx context.Context) (errs [2]error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type outcome struct {
		side int
		err  error
	}
	done := make(chan outcome, len(q.sides))
	for s, side := range q.sides {
		go func() { done <- outcome{s, side.Reset(ctx)} }()
	}
	first := <-done
	if first.err == nil {
		defer time.AfterFunc(q.dev.o.Patience, func() { cancel(errPatience) }).Stop()
	}
	second := <-done
	errs[first.side], errs[second.side] = first.err, second.err
	return errs
}

// Close ends the queues of both sides; see nvmf.Queue.
func (q *Queue) Close() error {
	q.closed = true
	var errs [2]error
	for s, side := range q.sides {
		if side != nil {
			errs[s] = side.Close()
		}
	}
	return errors.Join(errs[:]...)
}
