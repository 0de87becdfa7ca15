package target

import (
	"context"
	"fmt"
	"sync"

	"nvmecr/nvmf"
)

// device is a Backing over any nvmf.Device. It has no memory of its own: every block is copied.
type device struct {
	d nvmf.Device

	mu   sync.Mutex
	idle []nvmf.Queue // unused queues; a queue has one owner at a time
}

// NewDevice returns a Backing over d, which it closes.
func NewDevice(d nvmf.Device) Backing { return &device{d: d} }

func (b *device) Identity() *nvmf.Identity { return b.d.Identity() }
func (b *device) Memory() []byte           { return nil }

func (b *device) take() (nvmf.Queue, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		q := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return q, nil
	}
	return b.d.OpenQueue(context.Background(), 16)
}

func (b *device) run(c nvmf.Command) error {
	q, err := b.take()
	if err != nil {
		return err
	}
	cmds := []*nvmf.Command{&c}
	q.Submit(cmds)
	err = q.Wait(cmds)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = append(b.idle, q)
	return err
}

// transfer splits p into commands the device takes.
func (b *device) transfer(op nvmf.Opcode, p []byte, offset int64) error {
	id := b.d.Identity()
	lba := int64(id.LBASize)
	if offset%lba != 0 || int64(len(p))%lba != 0 {
		return fmt.Errorf("%s of %d bytes at %d: not whole blocks: %w", op, len(p), offset, nvmf.ErrBadLength)
	}
	for len(p) > 0 {
		part := p[:min(len(p), int(id.MaxTransfer))]
		err := b.run(nvmf.Command{Opcode: op, LBA: nvmf.LBA(offset / lba),
			Blocks: nvmf.LBA(int64(len(part)) / lba), Data: [][]byte{part}})
		if err != nil {
			return err
		}
		p, offset = p[len(part):], offset+int64(len(part))
	}
	return nil
}

func (b *device) ReadAt(p []byte, offset int64) error  { return b.transfer(nvmf.Read, p, offset) }
func (b *device) WriteAt(p []byte, offset int64) error { return b.transfer(nvmf.Write, p, offset) }

func (b *device) Sync(offset, length int64) error {
	return b.run(nvmf.Command{Opcode: nvmf.Flush})
}

func (b *device) Zero(offset, length int64) error {
	zeros := make([]byte, min(length, maxTransfer))
	for length > 0 {
		n := min(length, int64(len(zeros)))
		if err := b.WriteAt(zeros[:n], offset); err != nil {
			return err
		}
		offset, length = offset+n, length-n
	}
	return nil
}

func (b *device) Deallocate(offset, length int64) error {
	lba := int64(b.d.Identity().LBASize)
	return b.run(nvmf.Command{Opcode: nvmf.Deallocate, LBA: nvmf.LBA(offset / lba), Blocks: nvmf.LBA(length / lba)})
}

func (b *device) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.idle {
		if err := q.Close(); err != nil {
			return err
		}
	}
	return b.d.Close()
}
