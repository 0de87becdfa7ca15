package microfs

import (
	"errors"
	"syscall"
	"time"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// planner decides where the bytes of one log group go, and builds the commands that write them.
type planner struct {
	fs    *FS
	in    *inode
	cur   *cursor
	s     *scratch
	b     builder
	need  int        // bytes of log
	open  bool       // the last piece ends at a hugeblock boundary and may be continued
	olds  int        // number of hugeblocks read for partial overwrites
	left  nvmf.Bytes // bytes of the operation that later groups write
	drops bool       // the write overwrites ranges, which scratch.drop removes
}

func (fs *FS) clock() time.Time { return time.Now() }

// pieceNeed is the size of a piece in the log without its checksums: the fixed part of the record
// and a pending entry.
const pieceNeed = 40 + 8

// plan plans [pos, end) or its first part, and returns the end of this part.
func (p *planner) plan(pos, end nvmf.Bytes) (nvmf.Bytes, error) {
	g, id := p.fs.g, p.fs.dev.Identity()
	p.s.reset()
	p.b = builder{s: p.s, op: nvmf.Write, size: g.lba, limit: id.OptimalTransfer}
	// Data that recovery cannot verify must be durable before its record can be.
	p.b.fua = id.VolatileWriteCache && !g.sums
	end = min(end, pos+maxBatch)
	start := pos
	if p.drops = p.in.ranges.meets(int64(pos), int64(end)); p.drops {
		if err := p.fs.checkStateSpace(rangeSize); err != nil {
			return pos, err
		}
		p.s.drop = p.in.dropRange(int64(pos), int64(end))
		p.need += p.s.drop.Len()
	}
	for pos < end {
		h, s := Hugeblock(pos/g.hugeblock), pos%g.hugeblock
		e := min(g.hugeblock, s+end-pos)
		done, err := p.block(h, s, e)
		if err != nil && len(p.s.parts) == 0 {
			return pos, err
		}
		if err != nil || !done {
			break // the part planned so far is written; the next group continues
		}
		pos += e - s
	}
	p.endPiece()
	p.s.drop.Length = uint64(pos - start)
	return pos, nil
}

// block plans bytes [s, e) of hugeblock h of the file. It returns false when
// the group is full.
func (p *planner) block(h Hugeblock, s, e nvmf.Bytes) (bool, error) {
	g := p.fs.g
	x := p.in.extents.lookup(h)
	var covered nvmf.Bytes
	if x != nil {
		covered = x.coveredIn(h, g)
	}
	if x != nil && !x.reserved() && s >= covered && !x.frozen {
		return p.appendTo(x, h, covered, s, e)
	}
	end := max(e, covered)
	need := 8 * g.units(end)
	if p.need+pieceNeed+need > p.fs.log.Capacity() {
		return false, nil
	}
	var old []byte
	if covered > 0 && (s > 0 || e < covered) {
		var err error
		if old, err = p.readOld(x, h, covered); err != nil {
			return false, err
		}
	}
	r, err := p.place(x, h)
	if err != nil {
		return false, err
	}
	if mutant.On(mutant.InPlace) && x != nil && h+1 == x.end() {
		p.fs.pool.untake(r)
		p.s.taken = p.s.taken[:len(p.s.taken)-1]
		r.start = x.phys + h - x.file
	}
	p.extendOrStart(h, r.start)
	if old != nil {
		p.b.add(old[:min(s, covered)])
	}
	p.b.fill(zeroes[:], s-min(s, nvmf.Bytes(len(old))))
	p.cur.copyTo(&p.b, e-s)
	if covered > e && old != nil {
		p.b.add(old[e:covered])
	}
	part := &p.s.parts[len(p.s.parts)-1]
	part.rec.End = uint64(nvmf.Bytes(h-Hugeblock(part.rec.File))*g.hugeblock + end)
	p.need += need
	p.open = end == g.hugeblock
	return true, nil
}

// appendTo plans bytes past the covered end of x's last hugeblock h. The covered bytes of the LBA
// at that end are written again unchanged.
func (p *planner) appendTo(x *extent, h Hugeblock, covered, s, e nvmf.Bytes) (bool, error) {
	g := p.fs.g
	need := 8 * (g.units(e) - int(covered/g.unit))
	if p.need+pieceNeed+need > p.fs.log.Capacity() {
		return false, nil
	}
	prefix, err := p.fs.coveredTail(p.in, x, h, covered)
	if err != nil {
		return false, err
	}
	p.endPiece()
	part := piece{first: len(p.s.list), start: covered - nvmf.Bytes(len(prefix)), from: covered}
	phys := x.phys + (h - x.file)
	part.rec = oplog.Record{
		Type: oplog.Write, Ino: uint64(p.in.ino), Time: now(), File: uint32(h), Phys: uint32(phys),
		FirstUnit: uint32(covered / g.unit), End: uint64(e),
	}
	if g.sums && covered%g.unit != 0 {
		part.seed = p.in.extents.sums.get(x.unit(g, g.units(x.covered)-1))
	}
	p.s.parts = append(p.s.parts, part)
	p.b.lba = g.lbaOf(g.dataOffset(phys) + part.start)
	p.b.add(prefix)
	p.b.fill(zeroes[:], s-covered)
	p.cur.copyTo(&p.b, e-s)
	p.need += pieceNeed + need
	p.open = e == g.hugeblock
	return true, nil
}

// extendOrStart adds hugeblock phys to the last piece, if it follows in the file and on the media,
// or begins a piece with it.
func (p *planner) extendOrStart(h, phys Hugeblock) {
	if n := len(p.s.parts); n > 0 && p.open {
		part := &p.s.parts[n-1]
		count := part.count(p.fs.g)
		if Hugeblock(part.rec.File)+count == h && Hugeblock(part.rec.Phys)+count == phys {
			return
		}
	}
	p.endPiece()
	p.s.parts = append(p.s.parts, piece{
		first: len(p.s.list), fresh: true,
		rec: oplog.Record{Type: oplog.Write, Ino: uint64(p.in.ino), Time: now(), File: uint32(h), Phys: uint32(phys)},
	})
	p.b.lba = p.fs.g.lbaOf(p.fs.g.dataOffset(phys))
	p.need += pieceNeed
}

// endPiece fills the last piece up to an LBA boundary.
func (p *planner) endPiece() {
	n := len(p.s.parts)
	if n == 0 || p.s.parts[n-1].last != 0 {
		return
	}
	part := &p.s.parts[n-1]
	if rest := nvmf.Bytes(part.rec.End) % p.fs.g.lba; rest != 0 {
		p.b.fill(zeroes[:], p.fs.g.lba-rest)
	}
	p.b.close()
	part.last = len(p.s.list)
	p.open = false
}

// place returns the hugeblock that hugeblock h of the file is written to: the one that was
// allocated for it before, or a free one.
func (p *planner) place(x *extent, h Hugeblock) (run, error) {
	switch {
	case x == nil && p.fs.available() <= p.fs.g.spare():
		return run{}, syscall.ENOSPC
	case x == nil || !x.reserved() || x.frozen:
		return p.alloc()
	}
	p.s.reserved = append(p.s.reserved, h)
	return run{x.phys + (h - x.file), 1}, nil
}

// alloc takes a hugeblock from the pool. If the pool is empty and freed hugeblocks wait for a
// flush, it flushes.
func (p *planner) alloc() (run, error) {
	r, ok := p.fs.pool.take(1)
	if !ok {
		p.fs.retired.expire(&p.fs.pool)
		r, ok = p.fs.pool.take(1)
	}
	if !ok && len(p.fs.pendingFree) > 0 && len(p.s.parts) == 0 {
		if err := p.fs.sync(); err != nil {
			return run{}, err
		}
		r, ok = p.fs.pool.take(1)
	}
	if !ok {
		return run{}, syscall.ENOSPC
	}
	p.s.taken = append(p.s.taken, r)
	return r, nil
}

// readOld reads the covered part of a hugeblock that is partly overwritten. A
// group has two at most: its first and its last.
func (p *planner) readOld(x *extent, h Hugeblock, covered nvmf.Bytes) ([]byte, error) {
	buf := &p.s.old.bufs[p.olds&1]
	p.olds++
	if *buf == nil {
		*buf = make([]byte, p.fs.g.hugeblock)
	}
	old := (*buf)[:covered]
	if p.s.old.known.copyOld(old, int64(nvmf.Bytes(h)*p.fs.g.hugeblock)) {
		return old, nil
	}
	// The read uses a scratch of its own, because the plan's is being filled.
	return old, p.fs.readExtent(p.in, x, nvmf.Bytes(h-x.file)*p.fs.g.hugeblock, old)
}

// refused frees the hugeblocks that the plan allocated, after the plan failed for good. Hugeblocks
// that the device refused to write go to the tail of the pool, so that others are tried first.
// Nothing is appended to them in place any more.
//
// Without data checksums the refused image may be on the media, and recovery would accept it. So
// the data of the group must stay unchanged.
func (p *planner) refused(cause error) {
	var status *nvmf.StatusError
	switch {
	case !errors.As(cause, &status):
		for i := len(p.s.taken) - 1; i >= 0; i-- {
			p.fs.pool.untake(p.s.taken[i])
		}
	case !p.fs.g.sums:
		p.retire()
	default:
		for _, r := range p.s.taken {
			p.fs.pool.putLast(r)
		}
		p.freeze(func(Hugeblock) {})
	}
	p.s.taken = p.s.taken[:0]
}

// freeze ends appending in place to the hugeblocks that the plan appended to.
func (p *planner) freeze(each func(Hugeblock)) {
	for i := range p.s.parts {
		part := &p.s.parts[i]
		if part.fresh {
			continue
		}
		each(Hugeblock(part.rec.Phys))
		if x := p.in.extents.lookup(Hugeblock(part.rec.File)); x != nil {
			x.frozen = true
		}
	}
	for _, h := range p.s.reserved {
		if x := p.in.extents.lookup(h); x != nil && x.reserved() {
			each(x.phys + (h - x.file))
			p.in.freezeReserved(p.fs.g, h)
		}
	}
}

// retire takes every hugeblock of the plan out of use for oplog.Quarantine, because the target may
// still execute commands that write there.
func (p *planner) retire() {
	if mutant.On(mutant.NoRetire) {
		p.refused(nil)
		return
	}
	for _, r := range p.s.taken {
		p.fs.retired.add(r.start, true)
	}
	p.freeze(func(h Hugeblock) { p.fs.retired.add(h, false) })
	p.s.taken = p.s.taken[:0]
}
