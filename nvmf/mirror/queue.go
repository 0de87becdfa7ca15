package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/nvmf"
)

var _ nvmf.MirroredQueue = (*Queue)(nil)

// A transfer is a command in flight, with its commands for the two sides.
type transfer struct {
	sub  [2]nvmf.Command
	list [2][1]*nvmf.Command // pointers to sub, as queues take them
	on   [2]bool             // sub was submitted
	from int                 // the side that a read uses
}

// Queue runs the queues of the sides.
type Queue struct {
	dev       *Device
	sides     [2]nvmf.Queue // nil: not used
	transfers []*transfer   // by Command.Tag
	free      []uint32
	batch     [2][]*nvmf.Command
	first     int     // the side that reads use
	down      [2]bool // its connection was lost
	strict    bool    // reads use no other side; see ReadFrom
	healing   bool    // reads heal; set by Reset and Level, cleared by the next write

	look     nvmf.Command // reads the state of a side
	lookList [1]*nvmf.Command
	lookData [stateSize]byte
	closed   bool
}

// A pairer is a queue that also runs while its owner waits for the paired queue. So a target that is ready for data gets it before the
// other target has answered.
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

// uses reports whether the device uses a side, and this queue is connected to it.
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

// take returns an idle transfer, and puts its index into the command's Tag.
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

// add adds the command for a side to the batch of that side.
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

// complete waits until a command has ended on each side that it was submitted to.
func (q *Queue) complete(t *transfer) {
	for s := range q.sides {
		if !t.on[s] {
			continue
		}
		_ = q.sides[s].Wait(t.list[s][:]) // the error is in t.sub[s].Err
		if errors.Is(t.sub[s].Err, nvmf.ErrConnectionLost) {
			q.down[s] = true
		}
	}
}

// outcome returns the error of a completed command, or nil.
func (q *Queue) outcome(c *nvmf.Command, t *transfer) error {
	if c.Opcode == nvmf.Read {
		return q.read(c, t)
	}
	var err error
	for s := range t.on {
		if !t.on[s] || !q.dev.uses(s) {
			continue // errors of a side that was given up do not count
		}
		if e := t.sub[s].Err; e != nil && (err == nil || errors.Is(e, nvmf.ErrConnectionLost)) {
			err = e
		}
	}
	return err
}

// read is outcome for a read. After a media error it reads the other side. If reads heal, it writes the data to the side that was not
// read.
func (q *Queue) read(c *nvmf.Command, t *transfer) error {
	err, other := t.sub[t.from].Err, 1-t.from
	if damaged(err) && q.uses(other) && !q.strict {
		first := err
		if err = q.again(c, t, other); err != nil {
			if errors.Is(err, nvmf.ErrConnectionLost) {
				return err // the other side may have the data: the owner may repeat the read
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

// again executes a command on one side. After a lost connection it sets down, so that the next Reset lets reads restore the data of
// that side.
func (q *Queue) again(c *nvmf.Command, t *transfer, s int) error {
	q.batch[0], q.batch[1] = q.batch[0][:0], q.batch[1][:0]
	q.add(t, c, s)
	q.send()
	_ = q.sides[s].Wait(t.list[s][:]) // the error is in t.sub[s].Err
	err := t.sub[s].Err
	q.down[s] = q.down[s] || errors.Is(err, nvmf.ErrConnectionLost)
	return err
}

// ReadOther reads from the side that Submit does not read from; see nvmf.MirroredQueue.
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

// saysAlone reads the state of a side, and reports whether the side is used alone.
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

// follow checks whether the side that was not read is used alone now, by another process. If so, follow repeats the reads on that side.
// An error counts for all reads.
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

// Reset reconnects to the sides; see nvmf.Queue. A side that cannot be reached within Options.Patience after the other one is given
// up.
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
	// The side whose connection was lost may lack writes, which it missed or lost with its cache. Reads use the other side, and heal.
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

// resetBoth resets both queues at the same time, so that an unreachable side does not delay the other one.
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
