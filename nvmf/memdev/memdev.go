// Package memdev implements nvmf.Device in memory of this process. It is used by tests,
// for "mem:SIZE" namespaces, and as a baseline without a network.
//
// The memory is anonymous and sparse: pages that were never written read as zeros and
// occupy no memory, so an empty device of 1 TiB costs nothing. Submit executes commands
// on the calling thread. Concurrent commands of different queues with overlapping LBAs
// may leave the data of either, as on any device.
package memdev

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// Options are the properties that a device reports. The zero value is usable.
type Options struct {
	// UUID of the namespace. If it is zero, the device gets a random UUID.
	UUID uuid.UUID
	// MaxTransfer in bytes, a multiple of the LBA size. 0 means 1 MiB.
	MaxTransfer nvmf.Bytes
	// OptimalTransfer in bytes; 0 means the smaller of 128 KiB and MaxTransfer.
	OptimalTransfer nvmf.Bytes
	// VolatileWriteCache is only reported. The data does not survive the process in any
	// case.
	VolatileWriteCache bool
}

// A Device is a namespace in memory. All methods are safe for concurrent use.
type Device struct {
	identity nvmf.Identity

	mu     sync.Mutex // guards the following fields, but not the bytes of memory
	memory []byte     // nil after it was unmapped
	queues int        // open queues: memory stays mapped until the last is closed
	closed bool
}

var _ nvmf.Device = (*Device)(nil)

// New creates an empty device of size bytes, rounded down to whole logical
// blocks of lbaSize bytes (a power of two from 512 to 4096).
func New(size, lbaSize nvmf.Bytes, o Options) (*Device, error) {
	if lbaSize < 512 || lbaSize > 4096 || lbaSize&(lbaSize-1) != 0 {
		return nil, fmt.Errorf("memory device: LBA size %d is not a power of two from 512 to 4096: %w", uint64(lbaSize), nvmf.ErrUnsupported)
	}
	size = size.AlignDown(lbaSize)
	if size == 0 || size > 1<<46 {
		return nil, fmt.Errorf("memory device: size %s is not between one block of %s and 64 TiB: %w", size, lbaSize, nvmf.ErrUnsupported)
	}
	if o.UUID == uuid.Nil {
		o.UUID = uuid.New()
	}
	if o.MaxTransfer == 0 {
		o.MaxTransfer = nvmf.MiB
	}
	if o.OptimalTransfer == 0 {
		o.OptimalTransfer = min(128*nvmf.KiB, o.MaxTransfer)
	}
	if o.MaxTransfer%lbaSize != 0 || o.OptimalTransfer < lbaSize || o.OptimalTransfer > o.MaxTransfer {
		return nil, fmt.Errorf("memory device: transfers of %s, at most %s, do not fit blocks of %s: %w",
			o.OptimalTransfer, o.MaxTransfer, lbaSize, nvmf.ErrUnsupported)
	}
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory device of %s: %w", size, err)
	}
	return &Device{
		memory: memory,
		identity: nvmf.Identity{
			UUID:               o.UUID,
			LBASize:            lbaSize,
			Blocks:             nvmf.LBA(size / lbaSize),
			MaxTransfer:        o.MaxTransfer,
			OptimalTransfer:    o.OptimalTransfer,
			VolatileWriteCache: o.VolatileWriteCache,
			CanDeallocate:      true,
			Private:            true,
		},
	}, nil
}

// Identity returns the identity made from the arguments of New.
func (d *Device) Identity() *nvmf.Identity { return &d.identity }

// Bytes returns the memory of the device, for tests that inspect or damage it. It
// returns nil after Close.
func (d *Device) Bytes() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.memory
}

// OpenQueue returns a queue of any depth. It fails with nvmf.ErrClosed after Close.
func (d *Device) OpenQueue(ctx context.Context, depth int) (nvmf.Queue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("memory device: %w", nvmf.ErrClosed)
	}
	d.queues++
	return &queue{device: d, memory: d.memory}, nil
}

// Close frees the memory as soon as all queues are closed.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return d.unmapIfIdle()
}

func (d *Device) unmapIfIdle() error {
	if !d.closed || d.queues > 0 || d.memory == nil {
		return nil
	}
	memory := d.memory
	d.memory = nil
	return unix.Munmap(memory)
}

// queue executes commands synchronously. memory is nil after Close.
type queue struct {
	device *Device
	memory []byte
}

func (q *queue) Submit(cmds []*nvmf.Command) {
	for _, c := range cmds {
		c.Begin()
		c.Finish(q.execute(c))
	}
}

func (q *queue) execute(c *nvmf.Command) error {
	if q.memory == nil {
		return nvmf.ErrClosed
	}
	id := &q.device.identity
	if err := c.Check(id); err != nil {
		return err
	}
	start := uint64(c.LBA) * uint64(id.LBASize)
	area := q.memory[start : start+uint64(c.Blocks)*uint64(id.LBASize)]
	switch c.Opcode {
	case nvmf.Flush:
	case nvmf.Write:
		for _, d := range c.Data {
			area = area[copy(area, d):]
		}
	case nvmf.Read:
		for _, d := range c.Data {
			area = area[copy(d, area):]
		}
	case nvmf.Deallocate:
		return q.deallocate(start, start+uint64(len(area)))
	default:
		return &nvmf.StatusError{Opcode: c.Opcode, LBA: c.LBA, SC: 0x01, DNR: true}
	}
	return nil
}

// deallocate returns the whole pages of [start, end) to the system.
func (q *queue) deallocate(start, end uint64) error {
	const page = 4096
	start, end = (start+page-1)&^(page-1), end&^(page-1)
	if start >= end {
		return nil
	}
	if err := unix.Madvise(q.memory[start:end], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("memory device: deallocate: %w", err)
	}
	return nil
}

func (q *queue) Wait(cmds []*nvmf.Command) error { return nvmf.FirstError(cmds) }

func (q *queue) Reset(ctx context.Context) error {
	if q.memory == nil {
		return nvmf.ErrClosed
	}
	return ctx.Err()
}

func (q *queue) Close() error {
	if q.memory == nil {
		return nil
	}
	q.memory = nil
	q.device.mu.Lock()
	defer q.device.mu.Unlock()
	q.device.queues--
	return q.device.unmapIfIdle()
}
