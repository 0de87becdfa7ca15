package mirror

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/nvmf"
)

// Resync has up to resyncDepth reads of resyncChunk bytes in flight, and as many writes.
const (
	resyncDepth = 8
	resyncChunk = nvmf.MiB
)

// ErrNotAlone means that the source has no record that it is used alone: either both sides have all data, or it is not known which
// one has.
var ErrNotAlone = errors.New("the side is not alone")

// Resync copies the used bytes of the side from to the side to. Both sides are used again afterwards. The state of from must be alone.
// Meanwhile no process may write to the mirror, except for repeated writes of the same data to its first bytes. After an interrupted copy
// the side to is stale. Resync calls progress, which may be nil, with the number of bytes copied and the number to copy.
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

// behind returns the state for an outdated side, when the other side is used alone and has the state st. The new state is of a later
// generation than before, the previous state of the outdated side. The generation of before can be later than that of st, if a Resync
// failed after it had recorded the complete copy on the destination alone.
func behind(st, before *state) *state {
	b := &state{stale, st.generation, st.mirror, st.length}
	if before != nil {
		b.generation = max(b.generation, before.generation+1)
	}
	return b
}

// compare returns the states of the source and the destination of a copy. The source has to be alone. before is nil if the destination
// has no state.
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

// Outdate records on the side to that it is stale, since the side from is used alone. So no process uses to by mistake, even when from
// cannot be reached. Outdate does not write to a namespace without a state.
func Outdate(ctx context.Context, from, to Side) error {
	st, before, err := compare(ctx, from, to)
	if err != nil || before == nil || before.mode == stale {
		return err
	}
	return to.write(ctx, behind(st, before))
}

// copyUsed copies the used bytes, and flushes the destination.
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

// A copier divides the used bytes into commands. It writes earlier parts while it reads later ones.
type copier struct {
	queues     [2]nvmf.Queue // from, to
	starts     [2]nvmf.Bytes
	chunk, lba nvmf.Bytes
	left       Used       // used MiB, from the one that contains at
	at         nvmf.Bytes // the first byte that was not read yet
	moves      [2 * resyncDepth]move
}

// A move is the copy of one part, with its buffer.
type move struct {
	read, write [1]*nvmf.Command // nil: not used yet
	buf         []byte
}

// run copies all parts. Every command has ended when run returns.
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

// wait waits for a command of a queue, if there is one, and returns the number of bytes that the command transfers.
func (c *copier) wait(queue int, cmd []*nvmf.Command) (nvmf.Bytes, error) {
	if cmd[0] == nil {
		return 0, nil
	}
	err := c.queues[queue].Wait(cmd)
	return cmd[0].Length(), err
}

// read submits the read of the next used part.
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

// write waits for the read of a part, and submits the write.
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

// drain waits for all commands in flight, and ignores their errors.
func (c *copier) drain() {
	for i := range c.moves {
		_, _ = c.wait(0, c.moves[i].read[:])
		_, _ = c.wait(1, c.moves[i].write[:])
	}
}
