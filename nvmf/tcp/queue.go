package tcp

import (
	"context"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// A Queue is an I/O queue pair on its own connection. It implements
// nvmf.Queue and has one owner.
type Queue struct {
	dev  *Device
	ctl  *controller
	conn *conn
	qid  uint16
	want int // the depth that OpenQueue was called with
	pair *Queue

	nsid   uint32
	closed bool
}

var _ nvmf.Queue = (*Queue)(nil)

// Submit starts commands; see nvmf.Queue.
func (q *Queue) Submit(cmds []*nvmf.Command) {
	for _, cmd := range cmds {
		cmd.Begin()
		if err := q.check(cmd); err != nil {
			cmd.Finish(err)
			continue
		}
		q.conn.submit(cmd, q.nsid)
	}
	q.conn.flush()
}

func (q *Queue) check(cmd *nvmf.Command) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	return initiator.Check(cmd, &q.dev.identity, maxDSMRanges)
}

// Wait runs the queue until cmds are done; see nvmf.Queue.
func (q *Queue) Wait(cmds []*nvmf.Command) error {
	if q.pair != nil {
		q.conn.beside = q.pair.conn
	}
	q.conn.wait(cmds)
	q.conn.beside = nil
	return nvmf.FirstError(cmds)
}

// Pair makes Wait send and receive for another queue of the same owner, too. So the target of the other queue gets the data that it
// asks for while the owner waits for this queue. Pair ignores queues of other drivers.
func (q *Queue) Pair(other nvmf.Queue) { q.pair, _ = other.(*Queue) }

// Stats returns what the queue has done, reconnections included. Only its
// owner may call it.
func (q *Queue) Stats() Stats { return q.conn.stats }

// Close ends the queue; see nvmf.Queue. A second Close does nothing.
func (q *Queue) Close() error {
	if q.closed {
		return nil
	}
	q.closed = true
	q.conn.close()
	q.ctl.forget(q.qid)
	return nil
}

// submit starts a command that was checked, or lets it wait for a slot.
func (c *conn) submit(cmd *nvmf.Command, nsid uint32) {
	switch {
	case c.err != nil:
		cmd.Finish(c.err)
	case len(c.free) > 0 && c.waiting == nil:
		c.begin(cmd, nsid)
	default:
		if c.waiting == nil {
			c.waiting = cmd
		} else {
			c.waitingEnd.Next = cmd
		}
		c.waitingEnd, cmd.Tag = cmd, nsid
	}
}

// startWaiting gives free slots to the commands that wait.
func (c *conn) startWaiting() {
	for c.waiting != nil && len(c.free) > 0 {
		cmd := c.waiting
		c.waiting, cmd.Next = cmd.Next, nil
		c.begin(cmd, cmd.Tag)
	}
}

// begin gives a command a slot, and queues its capsule.
func (c *conn) begin(cmd *nvmf.Command, nsid uint32) {
	s, cid := c.start(cmd, uint8(cmd.Opcode), nsid)
	switch cmd.Opcode {
	case nvmf.Write:
		flags := uint32(0)
		if cmd.FUA {
			flags = nvme.FUA
		}
		s.sqe.SetRange(uint64(cmd.LBA), uint32(cmd.Blocks), flags)
		s.data, s.total, s.write = cmd.Data, uint32(cmd.Length()), true
	case nvmf.Read:
		s.sqe.SetRange(uint64(cmd.LBA), uint32(cmd.Blocks), 0)
		s.data, s.total = cmd.Data, uint32(cmd.Length())
	case nvmf.Deallocate:
		s.deallocate(cmd)
	}
	c.ship(s, cid)
}

// deallocate puts the ranges of a Deallocate into aux.
func (s *slot) deallocate(cmd *nvmf.Command) {
	n := 0
	for at, left := uint64(cmd.LBA), uint64(cmd.Blocks); left > 0; n++ {
		blocks := min(left, initiator.MaxRange)
		(*nvme.DSMRange)(s.aux[n*nvme.DSMRangeSize:]).Set(at, uint32(blocks))
		at, left = at+blocks, left-blocks
	}
	s.sqe.SetDSM(n, nvme.DSMDeallocate)
	s.auxData[0] = s.aux[:n*nvme.DSMRangeSize]
	s.data, s.total, s.write = s.auxData[:], uint32(n*nvme.DSMRangeSize), true
}

// OpenQueue opens an I/O queue of up to depth commands in flight; see
// nvmf.Device.
func (d *Device) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q := &Queue{dev: d, want: depth, nsid: d.id.NSID}
	if err := initiator.Connect(ctx, func() error { return d.attach(ctx, q) }); err != nil {
		return nil, fmt.Errorf("opening a queue to %s: %w", d.id, err)
	}
	return q, nil
}

// Stats counts what a queue has done since it was opened.
type Stats struct {
	Commands   uint64 // commands completed
	BytesRead  uint64
	BytesWrite uint64
	Reconnects uint64
	Retries    uint64 // commands sent again after a transient status
	Wakeups    uint64 // number of times that the owner has blocked
}
