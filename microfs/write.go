package microfs

import (
	"errors"
	"syscall"
	"time"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// A write has these stages, all on the caller's thread:
//
//	plan     which hugeblocks, what goes into them, commands for it
//	begin    space in the log
//	send     data is summed and goes out in batches
//	commit   the log image goes out; wait for everything
//	apply    the records change the tree
//
// A failure up to commit leaves the tree as it was before the group. A write that does not fit one
// group takes several (writeOperation).

// piece is a run of hugeblocks of one write: one record, and the commands
// [first, last) of its data.
type piece struct {
	rec         oplog.Record
	first, last int
	crcs        int        // index of its first checksum in scratch.crcs
	start       nvmf.Bytes // of the written data, from the start of the run
	from        nvmf.Bytes // start of the new bytes: the covered end before the write
	seed        uint64     // checksum of the covered part of from's unit
	fresh       bool       // the hugeblocks were allocated for this write
}

func (p *piece) count(g *geometry) Hugeblock {
	return Hugeblock((nvmf.Bytes(p.rec.End) + g.hugeblock - 1) / g.hugeblock)
}

// cursor returns the bytes of the application's buffers in order.
type cursor struct {
	bufs [][]byte
	off  int // in bufs[0]
}

// next returns up to n bytes.
func (c *cursor) next(n nvmf.Bytes) []byte {
	for len(c.bufs[0]) == c.off {
		c.bufs, c.off = c.bufs[1:], 0
	}
	b := c.bufs[0][c.off:]
	if nvmf.Bytes(len(b)) > n {
		b = b[:n]
	}
	c.off += len(b)
	return b
}

func (c *cursor) copyTo(b *builder, n nvmf.Bytes) {
	for n > 0 {
		p := c.next(n)
		b.add(p)
		n -= nvmf.Bytes(len(p))
	}
}

func total(bufs [][]byte) (n nvmf.Bytes) {
	for _, b := range bufs {
		n += nvmf.Bytes(len(b))
	}
	return n
}

// writeAt writes bufs at off, and yields the lock between operations. A short count comes with the
// error that ended the write.
func (fs *FS) writeAt(in *inode, bufs [][]byte, off int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	n := total(bufs)
	if n == 0 {
		return 0, nil
	}
	limit := fs.g.maxFileSize()
	if uint64(off) >= limit {
		return 0, syscall.EFBIG
	}
	n = min(n, nvmf.Bytes(limit-uint64(off)))
	start, end := nvmf.Bytes(off), nvmf.Bytes(off)+n
	fs.io.cur = cursor{bufs: bufs}
	pos, err := fs.writePart(in, start, end)
	for err == nil && pos < end {
		if err = fs.yield(); err == nil {
			pos, err = fs.writePart(in, pos, end)
		}
	}
	return int(pos - start), err
}

// writePart writes the first operation of [pos, end) from the cursor.
func (fs *FS) writePart(in *inode, pos, end nvmf.Bytes) (nvmf.Bytes, error) {
	if err := fs.dropPrivileges(in); err != nil {
		return pos, err
	}
	next, err := fs.writeOperation(in, &fs.io.cur, pos, min(end, pos+maxBatch))
	fs.unflushed += next - pos
	if err == nil && fs.log.Unflushed() && fs.unflushed >= flushEvery {
		err = fs.sync()
	}
	return next, err
}

// writeOperation writes [pos, end) atomically, and returns the end of the written part. If it fails
// early, the file has the bytes up to that end. In a full file system an overwrite of more hugeblocks
// than geometry.spare is written in parts, each of which is atomic and takes the hugeblocks that the
// part before has freed.
func (fs *FS) writeOperation(in *inode, cur *cursor, pos, end nvmf.Bytes) (nvmf.Bytes, error) {
	for begin := pos; pos < end; {
		next, err := fs.writeGroup(in, cur, pos, end)
		if err != nil && pos > begin {
			if ferr := fs.finish(); ferr != nil {
				return begin, ferr
			}
			if errors.Is(err, syscall.ENOSPC) && fs.g.spare() > 0 {
				begin = pos
				continue
			}
		}
		if err != nil {
			return pos, err
		}
		pos = next
	}
	return end, nil
}

// finish ends an operation that stopped early. The groups that have settled become the whole operation.
func (fs *FS) finish() error {
	if err := fs.finishInPage(); err != nil {
		return err
	}
	for fs.log.Open() {
		if err := fs.begin(0); err != nil {
			return err
		}
		if err := fs.recoverFrom(fs.runGroup(fs.log.Commit())); err != nil {
			return err
		}
	}
	fs.release()
	return nil
}

// finishInPage is finish if no new log page is needed for it. Otherwise it does nothing.
func (fs *FS) finishInPage() error {
	for {
		cmds := fs.log.Finish()
		if len(cmds) == 0 {
			return nil
		}
		if err := fs.recoverFrom(fs.runGroup(cmds)); err != nil {
			return err
		}
	}
}

// logSpace makes space in the log for an operation of n bytes that takes more than one group, in
// the worst fragmentation: a state checkpoint in the middle of the operation would include a part
// of it. If the log is too small for that, the operation is written in parts.
func (fs *FS) logSpace(n nvmf.Bytes) error {
	g := fs.g
	perBlock := pieceNeed + 8*g.unitsPerBlock()
	pages := uint64(int(n/g.hugeblock)+2)*uint64(perBlock)/uint64(oplog.Capacity-perBlock) + 4
	if fs.log.Free() >= pages || pages > g.logPages-2 || fs.ckpt.late() > 0 {
		return nil
	}
	if err := fs.freeLog(); fs.broken != nil {
		return err
	} else if err != nil {
		fs.logf("state checkpoint: %v", err)
	}
	return nil
}

// writeGroup writes as much from pos on as one log group takes, and returns the end of this part.
// After a lost connection it starts over with other hugeblocks.
func (fs *FS) writeGroup(in *inode, cur *cursor, pos, end nvmf.Bytes) (nvmf.Bytes, error) {
	start := *cur
	for {
		*cur = start
		p := planner{fs: fs, in: in, cur: cur, s: &fs.io}
		next, err := p.plan(pos, end)
		p.left = end - next
		if err == nil {
			err = fs.commitWrite(&p)
		}
		if err == nil {
			in.written = true
			fs.lastChange = fs.clock()
			return next, nil
		}
		if !lost(err) {
			p.refused(err)
			if err = fs.resolveConflict(err); err != nil {
				return pos, err
			}
			continue
		}
		p.retire()
		fs.log.Lost()
		if err := fs.reconnect(err); err != nil {
			return pos, err
		}
	}
}

// commitWrite runs the stages from begin to apply for a plan.
func (fs *FS) commitWrite(p *planner) error {
	if p.left > 0 && !fs.log.Open() {
		if err := fs.logSpace(p.left); err != nil {
			return err
		}
	}
	if err := fs.begin(p.need); err != nil {
		return err
	}
	if p.left > 0 && !mutant.On(mutant.NoMore) {
		fs.log.More()
	}
	s := p.s
	submitted := p.send()
	err := p.append()
	if err == nil && !fs.g.sums {
		// Without checksums recovery cannot tell whether the data arrived, so the record must not
		// be on the media before the data.
		fs.q.Submit(s.list[submitted:])
		submitted = len(s.list)
		err = await(fs.q, s.list)
	}
	if err != nil {
		_ = fs.q.Wait(s.list[:submitted]) // nothing may stay in flight; err is the cause
		fs.log.Failed()
		return err
	}
	s.list = append(s.list, fs.log.Commit()...)
	fs.q.Submit(s.list[submitted:])
	if err := await(fs.q, s.list); err != nil {
		if !lost(err) {
			fs.log.Failed()
		}
		return err
	}
	fs.log.Settled()
	fs.conflicts, fs.silentSince = 0, time.Time{}
	for i := range s.parts {
		if err := fs.tree.apply(&s.parts[i].rec, fs.freed); err != nil {
			return fs.fail(err)
		}
	}
	if p.drops {
		if err := fs.tree.apply(&s.drop, fs.freed); err != nil {
			return fs.fail(err)
		}
	}
	p.keepTail()
	if p.left == 0 {
		fs.release()
	}
	return nil
}

// sendBatch is the amount of data in one Submit. Computing the checksums of all of it and then
// sending it is faster by a quarter than sending each command as soon as its checksums are known:
// the target is woken once, not eight times. With more data, the first part would have left the
// cache before it is sent.
const sendBatch = nvmf.MiB

// send computes the checksums of the data commands in turn and submits the commands in batches. The
// last batch is left for the submission of the log image. send returns how many were submitted.
func (p *planner) send() int {
	s := p.s
	submitted, data := 0, len(s.list)
	batch := nvmf.LBA(sendBatch / p.fs.g.lba)
	var waiting nvmf.LBA
	for i := range s.parts {
		part := &s.parts[i]
		part.crcs = len(s.crcs)
		sum := summer{unit: p.fs.g.unit, at: part.from % p.fs.g.unit, crc: part.seed, out: s.crcs}
		skip, left := part.from-part.start, nvmf.Bytes(part.rec.End)-part.from
		for c := part.first; c < part.last; c++ {
			if p.fs.g.sums {
				skip, left = sum.command(s.list[c], skip, left)
			}
			if waiting += s.list[c].Blocks; waiting >= batch && c < data-1 {
				p.fs.q.Submit(s.list[submitted : c+1])
				submitted, waiting = c+1, 0
			}
		}
		if p.fs.g.sums {
			s.crcs = sum.finish()
		}
	}
	return submitted
}

// command adds the data of a command: it skips the first skip bytes, and adds at most left bytes after
// them. It returns skip and left for the next command.
func (s *summer) command(c *nvmf.Command, skip, left nvmf.Bytes) (nvmf.Bytes, nvmf.Bytes) {
	for _, b := range c.Data {
		n := nvmf.Bytes(len(b))
		a := min(skip, n)
		skip -= a
		z := min(left, n-a)
		s.add(b[a : a+z])
		left -= z
	}
	return skip, left
}

// append adds the records to the log.
func (p *planner) append() error {
	s := p.s
	for i := range s.parts {
		part := &s.parts[i]
		end := len(s.crcs)
		if i+1 < len(s.parts) {
			end = s.parts[i+1].crcs
		}
		part.rec.CRCs = s.crcs[part.crcs:end:end]
		if err := p.fs.log.Append(&part.rec, p.fs.g.sums); err != nil {
			return err
		}
	}
	if !p.drops {
		return nil
	}
	return p.fs.log.Append(&s.drop, false)
}

// keepTail stores the partly covered LBA at the end of the write.
func (p *planner) keepTail() {
	if len(p.s.parts) == 0 || p.in.open == nil {
		return
	}
	g, part := p.fs.g, &p.s.parts[len(p.s.parts)-1]
	end := nvmf.Bytes(part.rec.End)
	n := end % g.lba
	t := &p.in.open.tail
	if n == 0 {
		t.data = t.data[:0]
		return
	}
	if t.data == nil {
		t.data = make([]byte, 0, g.lba)
	}
	t.pos = nvmf.Bytes(part.rec.File)*g.hugeblock + end - n
	t.data = t.data[:n]
	// The last LBA of the last data command, counted from its end.
	data := p.s.list[part.last-1].Data
	at := g.lba
	for i := len(data) - 1; i >= 0 && at > 0; i-- {
		b := data[i]
		m := min(at, nvmf.Bytes(len(b)))
		at -= m
		if at < n {
			copy(t.data[at:], b[nvmf.Bytes(len(b))-m:])
		}
	}
}
