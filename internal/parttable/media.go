package parttable

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"nvmecr/nvmf"
)

// A Range is a part of a namespace. Start and Length are multiples of 4096.
type Range struct{ Start, Length nvmf.Bytes }

// Read returns the newest valid copy of the table.
//
// Errors: ErrNoTable, ErrForeign, ErrVersion, ErrCorrupt, or the device's.
func Read(ctx context.Context, dev nvmf.Device) (*Table, error) {
	m, err := open(ctx, dev)
	if err != nil {
		return nil, err
	}
	defer m.close()
	// Another process may write the table between the reads of its parts. The apparent damage is gone at the next attempt.
	for try := 1; ; try++ {
		t, err := m.newest(ctx)
		if try == 3 || !errors.Is(err, ErrForeign) && !errors.Is(err, ErrCorrupt) {
			return t, err
		}
	}
}

// Current reports whether t still is the table of the namespace, by reading one block through the caller's queue. It is false if that
// block is damaged.
func (t *Table) Current(dev nvmf.Device, q nvmf.Queue) bool {
	m := &media{dev, q}
	b := make([]byte, headerSize)
	if m.transfer(nvmf.Read, 0, b) != nil {
		return false
	}
	now, _, err := decodeHeader(b, 0)
	return err == nil && now.Generation == t.Generation && now.Sequence == t.Sequence
}

// Begin prepares a namespace for a table, whatever its content: it writes the formatting mark, then zeros the rest of the head, except
// for the run record, and the ranges in also. When it returns these are durable. An existing table is lost.
func Begin(ctx context.Context, dev nvmf.Device, also []Range) error {
	m, err := open(ctx, dev)
	if err != nil {
		return err
	}
	defer m.close()
	return m.begin(also)
}

// Wipe leaves the head of the namespace blank, without a run record.
func Wipe(ctx context.Context, dev nvmf.Device) error {
	m, err := open(ctx, dev)
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.begin([]Range{{RunRecordOffset(0), RunRecordSize}, {RunRecordOffset(1), RunRecordSize}}); err != nil {
		return err
	}
	if err := m.write(0, make([]byte, headerSize)); err != nil {
		return err
	}
	return m.flush()
}

// Write makes t the table of the namespace. If the namespace had no table, Begin has been called. Write sets t.Sequence and t.Written.
// When it returns the table is durable; a crash before that leaves the old table or the new one.
func Write(ctx context.Context, dev nvmf.Device, t *Table) error {
	if err := t.validate(t.version(), dev.Identity().Capacity()); err != nil {
		return fmt.Errorf("partition table: %w", err)
	}
	if !t.HasRunRecord() {
		return fmt.Errorf("partition table: %d partitions, at most %d leave space for the run record", len(t.Entries), MaxEntries)
	}
	m, err := open(ctx, dev)
	if err != nil {
		return err
	}
	defer m.close()
	c, err := m.copies(ctx)
	if err != nil {
		return err
	}
	t.Sequence, t.Written = 1, time.Now().UTC()
	first := 1 // slot 0 has the mark
	if c.newest >= 0 {
		t.Sequence = c.table[c.newest].Sequence + 1
		first = 1 - c.newest
	}
	return m.writeSlots(t, first, 1-first)
}

// Extend is Write for a table with new partitions. Before that it zeros the ranges in blank, which are free in the present table, and
// makes that durable.
func Extend(ctx context.Context, dev nvmf.Device, t *Table, blank []Range) error {
	m, err := open(ctx, dev)
	if err != nil {
		return err
	}
	defer m.close()
	for _, r := range blank {
		if err := m.zero(r); err != nil {
			return err
		}
	}
	if err := m.flush(); err != nil {
		return err
	}
	return Write(ctx, dev, t)
}

// Repair rewrites a damaged or outdated copy of the table from the newest valid one. It reports whether that was necessary.
func Repair(ctx context.Context, dev nvmf.Device) (repaired bool, err error) {
	m, err := open(ctx, dev)
	if err != nil {
		return false, err
	}
	defer m.close()
	c, err := m.copies(ctx)
	if err != nil || c.newest < 0 {
		return false, err
	}
	other := 1 - c.newest
	if t := c.table[other]; t != nil && t.Sequence == c.table[c.newest].Sequence {
		return false, nil
	}
	return true, m.writeSlots(c.table[c.newest], other)
}

// NewGeneration returns a random generation.
func NewGeneration() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("random number for a generation: %w", err)
		}
		if g := binary.LittleEndian.Uint64(b[:]); g != 0 {
			return g, nil
		}
	}
}

// copies is the content of the two slots.
type copies struct {
	header [2][]byte
	table  [2]*Table // nil for an invalid copy
	err    [2]error  // why the copy is invalid
	newest int       // slot of the newest valid copy, or -1
}

// media reads and writes the table through a queue of its own.
type media struct {
	dev nvmf.Device
	q   nvmf.Queue
}

func open(ctx context.Context, dev nvmf.Device) (*media, error) {
	if c := dev.Identity().Capacity(); c < HeadSize {
		return nil, fmt.Errorf("namespace of %s is too small for a partition table (%s)", c, HeadSize)
	}
	q, err := dev.OpenQueue(ctx, 8)
	if err != nil {
		return nil, &nvmf.NoQueueError{Cause: err}
	}
	return &media{dev: dev, q: q}, nil
}

// close closes the queue. Its error does not matter, since written data is durable already.
func (m *media) close() { _ = m.q.Close() }

// newest returns the newest valid copy, or the reason why there is none.
func (m *media) newest(ctx context.Context) (*Table, error) {
	c, err := m.copies(ctx)
	if err != nil {
		return nil, err
	}
	if c.newest < 0 {
		return nil, m.invalidReason(ctx, c)
	}
	return c.table[c.newest], nil
}

// copies reads both slots.
func (m *media) copies(ctx context.Context) (*copies, error) {
	c := &copies{newest: -1}
	for slot := range c.table {
		at := nvmf.Bytes(slot) * slotSize
		header, err := m.read(ctx, at, headerSize)
		if err != nil {
			return nil, err
		}
		c.header[slot] = header
		t, n, err := decodeHeader(header, slot)
		if err == nil {
			var b []byte
			if b, err = m.read(ctx, at+headerSize, (nvmf.Bytes(n) * entrySize).AlignUp(4096)); err != nil {
				return nil, err
			}
			err = decodeEntries(t, header, b, n, m.dev.Identity().Capacity())
		}
		if err != nil {
			c.err[slot] = err
			continue
		}
		c.table[slot] = t
		if c.newest < 0 || t.Sequence > c.table[c.newest].Sequence {
			c.newest = slot
		}
	}
	if c.table[0] == nil && c.newest >= 0 {
		return c, m.overwritten(ctx)
	}
	return c, nil
}

// overwritten is called if slot 1 is valid and slot 0 is not. It returns an error if slot 0 was overwritten by another file system.
func (m *media) overwritten(ctx context.Context) error {
	head, err := m.read(ctx, 0, nvmf.Bytes(signatureSpan).AlignUp(4096))
	if err != nil {
		return err
	}
	if what := foreign(head); what != "" {
		return foreignError(what)
	}
	return nil
}

// invalidReason returns the reason why there is no valid copy.
func (m *media) invalidReason(ctx context.Context, c *copies) error {
	switch {
	case isMark(c.header[0]):
		return ErrNoTable
	case errors.Is(c.err[0], errVersion) || errors.Is(c.err[1], errVersion):
		return fmt.Errorf("%w (slot 0: %w, slot 1: %w); use the nvmecr that wrote it", ErrVersion, c.err[0], c.err[1])
	case !errors.Is(c.err[0], errNoMagic) || !errors.Is(c.err[1], errNoMagic):
		return fmt.Errorf("%w (slot 0: %w, slot 1: %w); its checkpoints cannot be found, start over with --fresh", ErrCorrupt, c.err[0], c.err[1])
	}
	head, err := m.read(ctx, 0, HeadSize)
	if err != nil {
		return err
	}
	for _, fill := range []byte{0x00, 0xff} {
		if isBlank(head, fill) {
			return ErrNoTable
		}
	}
	what := foreign(head)
	if what == "" {
		what = "no known kind"
	}
	return foreignError(what)
}

func foreignError(what string) error {
	return fmt.Errorf("%w: %s; use another target, or overwrite it with --fresh", ErrForeign, what)
}

// begin implements Begin.
func (m *media) begin(also []Range) error {
	block := make([]byte, headerSize)
	copy(block, mark)
	if err := m.write(0, block); err != nil {
		return err
	}
	if err := m.flush(); err != nil {
		return err
	}
	// Slot by slot: a command that lands late, over a table, costs one copy.
	rest := []Range{{headerSize, RunRecordOffset(0) - headerSize}, {slotSize, RunRecordOffset(1) - slotSize}}
	for _, r := range append(rest, also...) {
		if err := m.zero(r); err != nil {
			return err
		}
	}
	return m.flush()
}

// writeSlots writes the copies of t in the order given, each durable before
// the next is touched.
func (m *media) writeSlots(t *Table, slots ...int) error {
	for _, slot := range slots {
		if err := m.write(nvmf.Bytes(slot)*slotSize, encode(t, slot)); err != nil {
			return err
		}
		if err := m.flush(); err != nil {
			return err
		}
	}
	return nil
}

// read returns n bytes at offset at. A read whose connection was lost is
// repeated until ctx ends.
func (m *media) read(ctx context.Context, at, n nvmf.Bytes) ([]byte, error) {
	b := make([]byte, n)
	for {
		err := m.transfer(nvmf.Read, at, b)
		if !errors.Is(err, nvmf.ErrConnectionLost) {
			return b, err
		}
		if e := m.q.Reset(ctx); e != nil {
			return nil, fmt.Errorf("%w: %w", err, e)
		}
	}
}

// write is not repeated if the connection is lost: the lost command may still be executed, after a later write.
func (m *media) write(at nvmf.Bytes, b []byte) error { return m.transfer(nvmf.Write, at, b) }

func (m *media) zero(r Range) error {
	zeros := make([]byte, min(r.Length, slotSize))
	for r.Length > 0 {
		n := min(r.Length, slotSize)
		if err := m.write(r.Start, zeros[:n]); err != nil {
			return err
		}
		r.Start, r.Length = r.Start+n, r.Length-n
	}
	return nil
}

// transfer transfers b by sequential commands of at most MaxTransfer. Speed does not matter here, and the order of writes is obvious.
func (m *media) transfer(op nvmf.Opcode, at nvmf.Bytes, b []byte) error {
	id := m.dev.Identity()
	for len(b) > 0 {
		n := min(nvmf.Bytes(len(b)), id.MaxTransfer)
		cmd := &nvmf.Command{Opcode: op, LBA: nvmf.LBA(at / id.LBASize), Blocks: nvmf.LBA(n / id.LBASize), Data: [][]byte{b[:n]}}
		if err := m.run(cmd); err != nil {
			return err
		}
		at, b = at+n, b[n:]
	}
	return nil
}

// flush makes what was written durable.
func (m *media) flush() error {
	if !m.dev.Identity().VolatileWriteCache {
		return nil
	}
	return m.run(&nvmf.Command{Opcode: nvmf.Flush})
}

func (m *media) run(cmd *nvmf.Command) error {
	cmds := []*nvmf.Command{cmd}
	m.q.Submit(cmds)
	return m.q.Wait(cmds)
}
