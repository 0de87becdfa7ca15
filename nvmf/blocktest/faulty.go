package blocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"nvmecr/nvmf"
)

// Faulty is a device that behaves like the one it wraps until it is told
// otherwise. All its methods are safe for concurrent use; faults are set
// before or between the I/O they are meant for.
//
// Three states, and how they are left:
//
//	up            commands execute
//	disconnected  queues opened before answer ErrConnectionLost until they are
//	              Reset; writes that were in flight may land with Release
//	off           power is gone: everything answers ErrConnectionLost and
//	              opening and Reset fail, until PowerOn
type Faulty struct {
	inner    nvmf.Device
	identity nvmf.Identity

	mu     sync.Mutex // guards what follows, and inner's queue
	queue  nvmf.Queue // on inner; everything executes through it
	counts map[nvmf.Opcode]int
	faults []*fault
	random *rand.Rand // order of execution; nil executes in Submit
	off    bool
	epoch  int // number of disconnections; a queue of an older one is lost
	queues []*faultyQueue
	late   []lateWrite
	cache  *cache // nil without a volatile write cache
	trace  *Trace // nil when not recording
	lastID int
}

var _ nvmf.Device = (*Faulty)(nil)

// fault strikes when the command of its kind that brings countdown to zero is submitted.
type fault struct {
	op        nvmf.Opcode
	countdown int
	err       error // the command fails with this, if not nil
	cut       bool  // power fails after the first torn bytes of this write
	torn      int
	lose      bool // the connection is lost with this command in flight
	drop      bool // the write is acknowledged and not done
	elsewhere bool // the write is acknowledged and done at to
	to        nvmf.LBA
}

type lateWrite struct {
	lba  nvmf.LBA
	data []byte
}

// NewFaulty wraps a device. Closing the result closes it.
func NewFaulty(inner nvmf.Device) (*Faulty, error) {
	q, err := inner.OpenQueue(context.Background(), 16)
	if err != nil {
		return nil, fmt.Errorf("faulty device: %w", err)
	}
	return &Faulty{inner: inner, identity: *inner.Identity(), queue: q, counts: map[nvmf.Opcode]int{}}, nil
}

// Count returns how many commands of a kind were submitted, refused ones not
// included.
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

// CutAt turns the power off when the nth write from now is submitted: what was
// submitted before has its effect, of this write the first torn bytes, and
// nothing after it; with a volatile cache everything unflushed is lost as well.
// torn may exceed the write's length.
func (f *Faulty) CutAt(n, torn int) {
	f.add(&fault{op: nvmf.Write, countdown: n, cut: true, torn: torn})
}

// DisconnectAt loses the connection when the nth command of kind op from now
// is submitted: it and all in flight complete with ErrConnectionLost. If they
// are writes or deallocations they land only with Release, or never.
func (f *Faulty) DisconnectAt(op nvmf.Opcode, n int) {
	f.add(&fault{op: op, countdown: n, lose: true})
}

// DropAt makes the device acknowledge the nth write from now and not do it.
func (f *Faulty) DropAt(n int) {
	f.add(&fault{op: nvmf.Write, countdown: n, drop: true})
}

// MisdirectAt makes the device do the nth write from now at another place, as
// far as it fits the device there, and acknowledge it.
func (f *Faulty) MisdirectAt(n int, to nvmf.LBA) {
	f.add(&fault{op: nvmf.Write, countdown: n, elsewhere: true, to: to})
}

// Rot changes what a block of the device inside holds.
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

// Heal forgets the faults that have not struck yet.
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

// Shuffle makes commands wait in their queues and execute in an order that
// depends on seed, no earlier than some Wait.
func (f *Faulty) Shuffle(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.random = rand.New(rand.NewPCG(seed, 1))
}

// UseVolatileCache gives the device a volatile write cache, from now on and in
// its identity.
func (f *Faulty) UseVolatileCache() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache = newCache(f.identity.LBASize)
	f.identity.VolatileWriteCache = true
}

// Record starts a trace of everything that happens, or a new one.
func (f *Faulty) Record() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = &Trace{}
}

// Recorded returns the trace so far, nil without Record.
func (f *Faulty) Recorded() *Trace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trace.clone()
}

// Disconnect loses the connection now.
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

// Release lets the writes and deallocations land that were in flight when the connection was
// lost, in order of submission, and returns how many those were.
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

// Crash turns the power off now. Of each write in flight nothing, all or the
// first bytes reach the device, and each block written since the last flush
// keeps any of the versions it had since, as seed chooses.
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

// powerOff ends everything in flight and loses what the cache held.
func (f *Faulty) powerOff(random *rand.Rand) error {
	f.off = true
	f.disconnect()
	f.late = nil
	if f.cache == nil {
		return nil
	}
	return f.cache.lose(random, func(lba nvmf.LBA, b []byte) error { return f.run(nvmf.Write, lba, b) })
}

// PowerOn ends what Crash and CutAt did: queues can be opened and Reset again.
func (f *Faulty) PowerOn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = false
}

// Identity returns that of the device inside, and the cache.
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

// Close closes the device inside.
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

// run executes one command on the device inside.
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

// tear writes the first torn bytes of b and keeps what was behind them.
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

// changes returns what a command leaves in its blocks: zeros where they are
// deallocated, nil if it changes nothing.
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
