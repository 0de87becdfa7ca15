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

// Disk is a device in memory that records its commands, and can return to an earlier
// state. The cost of both depends only on the number of bytes written. All methods but
// Bytes are safe for concurrent use. Bytes must not be used while I/O is in progress.
type Disk struct {
	// Pause, if not nil, is called by every Wait while its commands are in flight. It
	// must be set before the first I/O.
	Pause func()

	identity nvmf.Identity

	mu     sync.Mutex // guards the following fields
	data   []byte
	undo   []saved
	old    []byte           // the old contents of the ranges in undo, in order
	trace  *blocktest.Trace // nil when not recording
	copies []byte           // memory for the data of the trace
	lastID int
	closed bool
}

// saved is a range of the disk whose contents before a write are in Disk.old.
type saved struct{ at, length int }

var _ nvmf.Device = (*Disk)(nil)

// NewDisk returns a disk of size bytes. volatile makes its identity report a volatile
// write cache; History determines which data that cache may lose.
func NewDisk(size, lba nvmf.Bytes, volatile bool) *Disk {
	return &Disk{
		data: make([]byte, size),
		identity: nvmf.Identity{
			UUID: uuid.UUID{15: 1}, LBASize: lba, Blocks: nvmf.LBA(size / lba), MaxTransfer: nvmf.MiB,
			OptimalTransfer: 128 * nvmf.KiB, VolatileWriteCache: volatile, CanDeallocate: true, Private: true,
		},
	}
}

// Bytes returns the contents of the disk, without a copy.
func (d *Disk) Bytes() []byte { return d.data }

// Mark returns the current state for Rollback.
func (d *Disk) Mark() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.undo)
}

// Rollback undoes all writes since mark.
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

// Keep makes all writes so far permanent. Earlier marks become invalid.
func (d *Disk) Keep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.undo, d.old = d.undo[:0], d.old[:0]
}

// Record starts a new trace. It reuses the memory of the previous trace.
func (d *Disk) Record() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.trace == nil {
		d.trace = new(blocktest.Trace)
	}
	d.trace.Events, d.copies = d.trace.Events[:0], d.copies[:0]
}

// Stop ends the recording and returns the trace, which is valid until the next Record.
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

// Identity returns the identity made from the arguments of NewDisk.
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

// Close makes later calls of OpenQueue fail.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// diskQueue executes commands in Submit and completes them in Wait. So all commands
// submitted before a Wait are in flight at the same time.
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
		return nil // reads change nothing, and would only make the trace longer
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

// save stores n bytes for Rollback.
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
