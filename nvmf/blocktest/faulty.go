package blocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"nvmecr/nvmf"
)

// Faulty is a device that wraps another one and injects faults. Without faults it
// behaves like the wrapped device. All its methods are safe for concurrent use. A test
// sets a fault before the I/O that the fault is for.
//
// The device has three states:
//
//	up            commands are executed
//	disconnected  queues that were opened before return ErrConnectionLost until
//	              they are Reset; Release executes writes that were in flight
//	off           the power is off: commands return ErrConnectionLost, and
//	              OpenQueue and Reset fail, until PowerOn
type Faulty struct {
	inner    nvmf.Device
	identity nvmf.Identity

	mu     sync.Mutex // guards the following fields, and the queue of inner
	queue  nvmf.Queue // queue of inner, on which all commands are executed
	counts map[nvmf.Opcode]int
	faults []*fault
	random *rand.Rand // source of the order of execution; nil executes in Submit
	off    bool
	epoch  int // number of disconnections; a queue of an earlier epoch is disconnected
	queues []*faultyQueue
	late   []lateWrite
	cache  *cache // nil without a volatile write cache
	trace  *Trace // nil when not recording
	lastID int
}

var _ nvmf.Device = (*Faulty)(nil)

// A fault happens when the command of its kind that brings countdown to zero is submitted.
type fault struct {
	op        nvmf.Opcode
	countdown int
	err       error // the command fails with this, if not nil
	cut       bool  // power fails after the first torn bytes of this write
	torn      int
	lose      bool // the connection is lost with this command in flight
	drop      bool // the write is acknowledged and not executed
	elsewhere bool // the write is acknowledged and executed at to
	to        nvmf.LBA
}

type lateWrite struct {
	lba  nvmf.LBA
	data []byte
}

// NewFaulty wraps a device. Close of the result closes the wrapped device.
func NewFaulty(inner nvmf.Device) (*Faulty, error) {
	q, err := inner.OpenQueue(context.Background(), 16)
	if err != nil {
		return nil, fmt.Errorf("faulty device: %w", err)
	}
	return &Faulty{inner: inner, identity: *inner.Identity(), queue: q, counts: map[nvmf.Opcode]int{}}, nil
}

// Count returns how many commands of a kind were submitted. Commands that failed
// validation are not counted.
func (f *Faulty) Count(op nvmf.Opcode) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[op]
}

// FailAt makes the nth command of kind op from now (1 is the next) complete
// with err and without effect.
func (f *Faulty) FailAt(op nvmf.Opcode, n int, err error) {
	f.add(&fault{op: op, countdown: n, err: err})
}

// CutAt turns the power off when the nth write from now is submitted. Commands that
// were submitted before are executed. Of this write the first torn bytes are
// written. Later commands have no effect. With a volatile cache all unflushed data
// is lost as well. torn may exceed the write's length.
func (f *Faulty) CutAt(n, torn int) {
	f.add(&fault{op: nvmf.Write, countdown: n, cut: true, torn: torn})
}

// DisconnectAt loses the connection when the nth command of kind op from now is
// submitted. This command and all others in flight complete with
// ErrConnectionLost. Writes and deallocations among them are executed by Release, or
// never.
func (f *Faulty) DisconnectAt(op nvmf.Opcode, n int) {
	f.add(&fault{op: op, countdown: n, lose: true})
}

// DropAt makes the device acknowledge the nth write from now without executing it.
func (f *Faulty) DropAt(n int) {
	f.add(&fault{op: nvmf.Write, countdown: n, drop: true})
}

// MisdirectAt makes the device acknowledge the nth write from now and execute it at
// another address. Blocks that would be beyond the end of the device are dropped.
func (f *Faulty) MisdirectAt(n int, to nvmf.LBA) {
	f.add(&fault{op: nvmf.Write, countdown: n, elsewhere: true, to: to})
}

// Rot changes the contents of a block of the wrapped device.
func (f *Faulty) Rot(lba nvmf.LBA, change func([]byte)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := make([]byte, f.identity.LBASize)
	if err := f.run(nvmf.Read, lba, b); err != nil {
		return err
	}
	change(b)
	return f.run(nvmf.Write, lba, b)
}

// Heal removes the faults that have not happened yet.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

func (f *Faulty) add(x *fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, x)
}

// Shuffle makes commands wait in their queues until a Wait. They are executed in an
// order that depends on seed.
func (f *Faulty) Shuffle(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.random = rand.New(rand.NewPCG(seed, 1))
}

// UseVolatileCache adds a volatile write cache, which the identity reports.
func (f *Faulty) UseVolatileCache() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache = newCache(f.identity.LBASize)
	f.identity.VolatileWriteCache = true
}

// Record starts a new trace of all commands and completions.
func (f *Faulty) Record() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = &Trace{}
}

// Recorded returns a copy of the trace so far, or nil without Record.
func (f *Faulty) Recorded() *Trace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trace.clone()
}

// Disconnect breaks the connection now.
func (f *Faulty) Disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disconnect()
}

func (f *Faulty) disconnect() {
	f.epoch++
	for _, q := range f.queues {
		for _, p := range q.pending {
			if b := f.changes(p.c); b != nil {
				f.late = append(f.late, lateWrite{p.c.LBA, b})
			}
			f.finish(p, nvmf.ErrConnectionLost)
		}
		q.pending = nil
	}
}

// Release executes the writes and deallocations that were in flight when the connection was
// lost, in order of submission, and returns their number.
func (f *Faulty) Release() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.late)
	for _, w := range f.late {
		if err := f.store(w.lba, w.data, false); err != nil {
			return 0, err
		}
	}
	f.late = nil
	return n, nil
}

// Crash turns the power off now. Of each write in flight, nothing, all or a number of
// first bytes reach the device. Each block written since the last flush has its durable
// version, or any later one. seed determines the choice.
func (f *Faulty) Crash(seed uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	random := rand.New(rand.NewPCG(seed, 2))
	for _, q := range f.queues {
		for _, p := range q.pending {
			b := f.changes(p.c)
			if b == nil {
				continue
			}
			torn := [3]int{0, len(b), random.IntN(len(b) + 1)}[random.IntN(3)]
			if err := f.tear(p.c.LBA, b, torn); err != nil {
				return err
			}
		}
	}
	return f.powerOff(random)
}

// powerOff ends all commands in flight, and loses the contents of the cache.
func (f *Faulty) powerOff(random *rand.Rand) error {
	f.off = true
	f.disconnect()
	f.late = nil
	if f.cache == nil {
		return nil
	}
	return f.cache.lose(random, func(lba nvmf.LBA, b []byte) error { return f.run(nvmf.Write, lba, b) })
}

// Kill ends the process that has opened the queues so far. These queues are closed, and nothing of their commands in
// flight reaches the device. A volatile cache keeps what it has.
func (f *Faulty) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queues {
		q.close()
	}
	f.queues = nil
}

// PowerOn turns the power on after Crash or CutAt: queues can be opened and Reset again.
func (f *Faulty) PowerOn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = false
}

// Identity returns the identity of the wrapped device, with VolatileWriteCache if a cache is used.
func (f *Faulty) Identity() *nvmf.Identity { return &f.identity }

// OpenQueue fails with nvmf.ErrUnreachable while the power is off.
func (f *Faulty) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue == nil {
		return nil, nvmf.ErrClosed
	}
	if f.off {
		return nil, nvmf.ErrUnreachable
	}
	q := &faultyQueue{device: f, epoch: f.epoch, depth: depth}
	f.queues = append(f.queues, q)
	return q, nil
}

// Close closes the wrapped device.
func (f *Faulty) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue == nil {
		return nil
	}
	q := f.queue
	f.queue = nil
	return errors.Join(q.Close(), f.inner.Close())
}

// run executes one command on the wrapped device.
func (f *Faulty) run(op nvmf.Opcode, lba nvmf.LBA, b []byte) error {
	if f.queue == nil {
		return nvmf.ErrClosed
	}
	limit := int(f.identity.MaxTransfer)
	for {
		part := b[:min(limit, len(b))]
		c := nvmf.Command{Opcode: op, LBA: lba, Blocks: nvmf.LBA(len(part)) / nvmf.LBA(f.identity.LBASize), Data: [][]byte{part}}
		cmds := []*nvmf.Command{&c}
		f.queue.Submit(cmds)
		if err := f.queue.Wait(cmds); err != nil {
			return err
		}
		b, lba = b[len(part):], lba+c.Blocks
		if len(b) == 0 {
			return nil
		}
	}
}

// store writes b, through the cache if there is one.
func (f *Faulty) store(lba nvmf.LBA, b []byte, fua bool) error {
	if f.cache != nil {
		old := make([]byte, len(b))
		if err := f.run(nvmf.Read, lba, old); err != nil {
			return err
		}
		f.cache.store(lba, old, b, fua)
	}
	return f.run(nvmf.Write, lba, b)
}

// tear writes the first torn bytes of b, and keeps the old bytes after them.
func (f *Faulty) tear(lba nvmf.LBA, b []byte, torn int) error {
	if torn <= 0 {
		return nil
	}
	if torn < len(b) {
		old := make([]byte, len(b))
		if err := f.run(nvmf.Read, lba, old); err != nil {
			return err
		}
		copy(b[torn:], old[torn:])
	}
	return f.store(lba, b, false)
}

// changes returns the contents of a command's blocks after the command: zeros for
// a deallocation, nil if the command changes nothing.
func (f *Faulty) changes(c *nvmf.Command) []byte {
	switch c.Opcode {
	case nvmf.Write:
		return joined(c)
	case nvmf.Deallocate:
		return make([]byte, int(c.Blocks)*int(f.identity.LBASize))
	}
	return nil
}

// joined returns a copy of a command's data in one piece.
func joined(c *nvmf.Command) []byte {
	b := make([]byte, 0, c.Length())
	for _, d := range c.Data {
		b = append(b, d...)
	}
	return b
}
