package mirror

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/nvmf"
)

// Resync has so many reads of this size in flight, and so many writes.
const (
	resyncDepth = 8
	resyncChunk = nvmf.MiB
)

// ErrNotAlone: there is nothing to copy, or no side is known to be the newer one.
var ErrNotAlone = errors.New("the side is not alone")

// Resync copies what is used of the side from to the side to, and makes both count again. from says that it is alone, and no process writes there
// meanwhile but what is in the first bytes of the mirror, the same again and again. What is interrupted leaves to stale. progress is told how many bytes of how many were copied; it may
// be nil.
func Resync(ctx context.Context, from, to Side, used Used, progress func(done, all nvmf.Bytes)) error {
	st, before, err := compare(ctx, from, to)
	if err != nil {
		return err
	}
	ids := [2]*nvmf.Identity{from.Device.Identity(), to.Device.Identity()}
	if Half(ids[1]) < st.length || ids[0].LBASize != ids[1].LBASize {
		return fmt.Errorf("the mirror has %v in blocks of %v, which do not fit a namespace of %v in blocks of %v: take another one: %w",
			st.length, ids[0].LBASize, ids[1].Capacity(), ids[1].LBASize, nvmf.ErrUnsupported)
	}
	begun := behind(st, before)
	if err := to.write(ctx, begun); err != nil {
		return err
	}
	if used == nil {
		used = NewUsed(st.length)
		used.Add(0, st.length)
	}
	if err := copyUsed(ctx, from, to, used, progress); err != nil {
		return err
	}
	now := &state{both, begun.generation + 1, st.mirror, st.length}
	if err := to.write(ctx, now); err != nil {
		return err
	}
	return from.write(ctx, now)
}

// behind returns the state for a side that lacks data of the other side, which is used alone and has the state st. The state is newer than
// the previous one of the outdated side. That one can be of a later generation than st, if a copy was complete and only this side had
// recorded it.
func behind(st, before *state) *state {
	b := &state{stale, st.generation, st.mirror, st.length}
	if before != nil {
		b.generation = max(b.generation, before.generation+1)
	}
	return b
}

// compare returns the state of a side that is alone, and that of the other one, which may be copied to; nil if that has none.
func compare(ctx context.Context, from, to Side) (st, before *state, err error) {
	if st, err = from.read(ctx); err != nil {
		return nil, nil, err
	}
	if st == nil || st.mode != alone {
		return nil, nil, ErrNotAlone
	}
	before, err = to.read(ctx)
	switch {
	case err != nil:
		return nil, nil, err
	case before != nil && before.mirror != st.mirror:
		return nil, nil, ErrOther
	case before != nil && before.mode == alone:
		return nil, nil, ErrSplit
	}
	return st, before, nil
}

// Outdate records on the side to that it is behind the side from, which is alone: so it does not count any more, also where from is lost. A namespace
// that is part of no mirror is left as it is.
func Outdate(ctx context.Context, from, to Side) error {
	st, before, err := compare(ctx, from, to)
	if err != nil || before == nil || before.mode == stale {
		return err
	}
	return to.write(ctx, behind(st, before))
}

// copyUsed copies the bytes, and makes them durable.
func copyUsed(ctx context.Context, from, to Side, used Used, progress func(done, all nvmf.Bytes)) (err error) {
	c := &copier{
		chunk: min(resyncChunk, from.Device.Identity().MaxTransfer, to.Device.Identity().MaxTransfer),
		lba:   from.Device.Identity().LBASize, left: used,
	}
	for s, side := range []Side{from, to} {
		q, err := side.Device.OpenQueue(ctx, resyncDepth)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, q.Close()) }()
		c.queues[s], c.starts[s] = q, side.start()
	}
	if err := c.run(ctx, progress); err != nil {
		return err
	}
	flush := []*nvmf.Command{{Opcode: nvmf.Flush}}
	c.queues[1].Submit(flush)
	return c.queues[1].Wait(flush)
}

// A copier cuts what is to be copied into commands. While some of them read, the ones before write.
type copier struct {
	queues     [2]nvmf.Queue // from, to
	starts     [2]nvmf.Bytes
	chunk, lba nvmf.Bytes
	left       Used       // beginning with the MiB that at is in
	at         nvmf.Bytes // what was not read yet
	moves      [2 * resyncDepth]move
}

// A move is a part that is copied, and the memory for it.
type move struct {
	read, write [1]*nvmf.Command // nil: not used yet
	buf         []byte
}

// run copies. Every command has ended when it returns.
func (c *copier) run(ctx context.Context, progress func(done, all nvmf.Bytes)) error {
	defer c.drain()
	done, all := nvmf.Bytes(0), c.left.bytes()
	for n := 0; done < all; n++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		wrote, err := c.wait(1, c.moves[n%len(c.moves)].write[:])
		if err != nil {
			return err
		}
		if done += wrote; wrote > 0 && progress != nil {
			progress(done, all)
		}
		c.read(&c.moves[n%len(c.moves)])
		if err := c.write(&c.moves[(n+resyncDepth)%len(c.moves)]); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for a command of a queue, if there is one, and returns how many bytes it has moved.
func (c *copier) wait(queue int, cmd []*nvmf.Command) (nvmf.Bytes, error) {
	if cmd[0] == nil {
		return 0, nil
	}
	err := c.queues[queue].Wait(cmd)
	return cmd[0].Length(), err
}

// read begins to read the next part.
func (c *copier) read(m *move) {
	m.read[0], m.write[0] = nil, nil
	for len(c.left) > 0 && !c.left[0] {
		c.at, c.left = c.at+align, c.left[1:]
	}
	if len(c.left) == 0 {
		return
	}
	if m.buf == nil {
		m.buf = make([]byte, c.chunk)
	}
	n := min(c.chunk, align-c.at%align)
	m.read[0] = &nvmf.Command{Opcode: nvmf.Read, LBA: nvmf.LBA((c.starts[0] + c.at) / c.lba), Blocks: nvmf.LBA(n / c.lba), Data: [][]byte{m.buf[:n]}}
	c.queues[0].Submit(m.read[:])
	if c.at += n; c.at%align == 0 {
		c.left = c.left[1:]
	}
}

// write waits for the part, and begins to write it.
func (c *copier) write(m *move) error {
	if _, err := c.wait(0, m.read[:]); err != nil || m.read[0] == nil {
		if damaged(err) {
			err = fmt.Errorf("%w: %w", ErrSource, err)
		}
		return err
	}
	r := m.read[0]
	to := nvmf.Bytes(r.LBA)*c.lba - c.starts[0] + c.starts[1]
	m.write[0] = &nvmf.Command{Opcode: nvmf.Write, LBA: nvmf.LBA(to / c.lba), Blocks: r.Blocks, Data: r.Data}
	c.queues[1].Submit(m.write[:])
	return nil
}

// drain waits for what is in flight, whatever becomes of it.
func (c *copier) drain() {
	for i := range c.moves {
		_, _ = c.wait(0, c.moves[i].read[:])
		_, _ = c.wait(1, c.moves[i].write[:])
	}
}
