package crash

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

// Disk is a device in memory that records what it is asked and can go back in
// time, both at the cost of the bytes written. All methods are safe for
// concurrent use; Bytes is for when no I/O is going on.
type Disk struct {
	// Pause, if not nil, is called by every Wait while its commands are in
	// flight. To be set before the first I/O.
	Pause func()

	identity nvmf.Identity

	mu     sync.Mutex // guards what follows
	data   []byte
	undo   []saved
	old    []byte           // bytes that undo refers to, in order
	trace  *blocktest.Trace // nil when not recording
	copies []byte           // what the trace's data lies in
	lastID int
	closed bool
}

// saved is a range of the disk as it was before a write.
type saved struct{ at, length int }

var _ nvmf.Device = (*Disk)(nil)

// NewDisk makes a disk of size bytes. volatile says that it reports a volatile
// write cache: what that may lose is History's matter.
func NewDisk(size, lba nvmf.Bytes, volatile bool) *Disk {
	return &Disk{
		data: make([]byte, size),
		identity: nvmf.Identity{
			UUID: uuid.UUID{15: 1}, LBASize: lba, Blocks: nvmf.LBA(size / lba), MaxTransfer: nvmf.MiB,
			OptimalTransfer: 128 * nvmf.KiB, VolatileWriteCache: volatile, CanDeallocate: true, Private: true,
		},
	}
}

// Bytes is the content itself.
func (d *Disk) Bytes() []byte { return d.data }

// Mark returns a point in time for Rollback.
func (d *Disk) Mark() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.undo)
}

// Rollback undoes every write since mark.
func (d *Disk) Rollback(mark int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.undo) > mark {
		s := d.undo[len(d.undo)-1]
		from := len(d.old) - s.length
		copy(d.data[s.at:], d.old[from:])
		d.undo, d.old = d.undo[:len(d.undo)-1], d.old[:from]
	}
}

// Keep makes everything written so far permanent: marks from before are void.
func (d *Disk) Keep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.undo, d.old = d.undo[:0], d.old[:0]
}

// Record starts a new trace. The memory of the one before is used again.
func (d *Disk) Record() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trace == nil {
		d.trace = new(blocktest.Trace)
	}
	d.trace.Events, d.copies = d.trace.Events[:0], d.copies[:0]
}

// Stop ends the recording; the trace stays as it is.
func (d *Disk) Stop() *blocktest.Trace {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trace
	d.trace = nil
	return t
}

// Events returns how many events the trace has.
func (d *Disk) Events() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.trace.Events)
}

// Identity returns what NewDisk was told.
func (d *Disk) Identity() *nvmf.Identity { return &d.identity }

// OpenQueue returns a queue of any depth.
func (d *Disk) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nvmf.ErrClosed
	}
	return &diskQueue{disk: d}, ctx.Err()
}

// Close makes OpenQueue fail.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// diskQueue executes in Submit and completes in Wait, so that everything
// submitted before a Wait is in flight together.
type diskQueue struct {
	disk    *Disk
	pending []inFlight
	closed  bool
}

type inFlight struct {
	c   *nvmf.Command
	id  int
	err error
}

func (q *diskQueue) Submit(cmds []*nvmf.Command) {
	d := q.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cmds {
		c.Begin()
		err := c.Check(&d.identity)
		if q.closed {
			err = nvmf.ErrClosed
		}
		if err != nil {
			c.Finish(err)
			continue
		}
		d.lastID++
		q.pending = append(q.pending, inFlight{c, d.lastID, d.execute(c)})
	}
}

func (d *Disk) execute(c *nvmf.Command) error {
	at := int(c.LBA) * int(d.identity.LBASize)
	n := int(c.Blocks) * int(d.identity.LBASize)
	e := blocktest.Event{ID: d.lastID, Opcode: c.Opcode, LBA: c.LBA, Blocks: c.Blocks, FUA: c.FUA}
	switch c.Opcode {
	case nvmf.Read:
		for _, b := range c.Data {
			at += copy(b, d.data[at:])
		}
		return nil // reads change nothing, a trace is shorter without them
	case nvmf.Deallocate:
		d.save(at, n)
		clear(d.data[at : at+n])
	case nvmf.Write:
		d.save(at, n)
		for _, b := range c.Data {
			at += copy(d.data[at:], b)
		}
		if d.trace != nil {
			d.copies = append(d.copies, d.data[at-n:at]...)
			e.Data = d.copies[len(d.copies)-n : len(d.copies) : len(d.copies)]
		}
	case nvmf.Flush:
	default:
		return &nvmf.StatusError{Opcode: c.Opcode, LBA: c.LBA, SC: 0x01, DNR: true}
	}
	if d.trace != nil {
		d.trace.Events = append(d.trace.Events, e)
	}
	return nil
}

// save keeps n bytes for Rollback.
func (d *Disk) save(at, n int) {
	d.undo = append(d.undo, saved{at, n})
	d.old = append(d.old, d.data[at:at+n]...)
}

func (q *diskQueue) Wait(cmds []*nvmf.Command) error {
	d := q.disk
	if d.Pause != nil {
		d.Pause()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range cmds {
		if c.Done() {
			continue
		}
		i := slices.IndexFunc(q.pending, func(f inFlight) bool { return f.c == c })
		if i < 0 {
			return fmt.Errorf("%s at LBA %d was not submitted to this queue", c.Opcode, c.LBA)
		}
		q.complete(q.pending[i])
		q.pending = slices.Delete(q.pending, i, i+1)
	}
	return nvmf.FirstError(cmds)
}

func (q *diskQueue) complete(f inFlight) {
	c, d := f.c, q.disk
	if d.trace != nil && c.Opcode != nvmf.Read {
		d.trace.Events = append(d.trace.Events, blocktest.Event{
			ID: f.id, Completed: true, Opcode: c.Opcode, LBA: c.LBA, Blocks: c.Blocks, FUA: c.FUA, Err: f.err,
		})
	}
	c.Finish(f.err)
}

func (q *diskQueue) Reset(ctx context.Context) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	return ctx.Err()
}

func (q *diskQueue) Close() error {
	for _, f := range q.pending {
		f.c.Finish(nvmf.ErrConnectionLost)
	}
	q.pending, q.closed = nil, true
	return nil
}
