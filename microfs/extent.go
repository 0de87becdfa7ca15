package microfs

import (
	"fmt"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// extent maps consecutive hugeblocks of a file to consecutive hugeblocks of the media. Covered bytes
// are bytes that were written. Either all hugeblocks except the last one are covered to their end, or
// nothing is covered: then the hugeblocks are reserved for future writes.
type extent struct {
	file, phys Hugeblock
	count      Hugeblock
	frozen     bool       // nothing is appended in place to the last hugeblock
	covered    nvmf.Bytes // bytes that were written, from the start
}

// unit returns the number in the file, as extentMap.sums counts it, of the n-th unit of the extent.
func (x *extent) unit(g *geometry, n int) uint64 {
	return uint64(x.file)*uint64(g.unitsPerBlock()) + uint64(n)
}

func (x *extent) end() Hugeblock { return x.file + x.count }

// reserved reports whether the hugeblocks were allocated and never written.
func (x *extent) reserved() bool { return x.covered == 0 }

// lookup returns the extent that maps hugeblock h, or nil.
func (m *extentMap) lookup(h Hugeblock) *extent {
	if x := m.at(m.find(h)); x != nil && x.file <= h {
		return x
	}
	return nil
}

// coveredIn returns how many bytes of hugeblock h of the extent are covered.
func (x *extent) coveredIn(h Hugeblock, g *geometry) nvmf.Bytes {
	if x.reserved() {
		return 0
	}
	return min(g.hugeblock, x.covered-nvmf.Bytes(h-x.file)*g.hugeblock)
}

// applyWrite maps the run of a Write record. Runs that it replaces go to free.
func (in *inode) applyWrite(g *geometry, r *oplog.Record, free func(run)) error {
	end := nvmf.Bytes(r.End)
	count := Hugeblock((end + g.hugeblock - 1) / g.hugeblock)
	file, phys := Hugeblock(r.File), Hugeblock(r.Phys)
	if end == 0 || end > nvmf.Bytes(g.blocks)*g.hugeblock || phys >= g.blocks || count > g.blocks-phys || uint64(file)+uint64(count) > 1<<32-2 {
		return fmt.Errorf("inode %d: run of %d bytes at hugeblock %d does not exist: %w", in.ino, end, phys, oplog.ErrRecord)
	}
	if g.sums && int(r.FirstUnit)+len(r.CRCs) != g.units(end) {
		return fmt.Errorf("inode %d: %d checksums for %d units: %w", in.ino, len(r.CRCs), g.units(end)-int(r.FirstUnit), oplog.ErrRecord)
	}
	s := in.extents.find(file)
	switch x := in.extents.at(s); {
	case x != nil && !x.reserved() && x.file <= file && x.phys+(file-x.file) == phys:
		if err := in.extend(g, x, r, count, free); err != nil {
			return err
		}
	case r.FirstUnit != 0:
		return fmt.Errorf("inode %d: hugeblock %d is continued but not mapped: %w", in.ino, file, oplog.ErrRecord)
	case x != nil && !x.reserved() && x.file == file && x.count == count && !continues(in.extents.before(s), file, phys, g):
		if free != nil {
			free(run{x.phys, x.count})
		}
		x.phys, x.covered, x.frozen = phys, end, false
	default:
		s = in.unmapFor(g, s, file, count, phys, free)
		in.insert(g, s, extent{file: file, phys: phys, count: count, covered: end})
	}
	if g.sums {
		in.extents.sums.set(uint64(file)*uint64(g.unitsPerBlock())+uint64(r.FirstUnit), r.CRCs)
	}
	in.size = max(in.size, int64(nvmf.Bytes(file)*g.hugeblock+end))
	in.mtime, in.ctime = r.Time, r.Time
	in.closed = false
	return nil
}

// extend continues the last hugeblock of x in place, and maps those that follow it.
func (in *inode) extend(g *geometry, x *extent, r *oplog.Record, count Hugeblock, free func(run)) error {
	file := Hugeblock(r.File)
	ahead := nvmf.Bytes(file-x.file) * g.hugeblock
	keep := int(file-x.file)*g.unitsPerBlock() + int(r.FirstUnit)
	if file+1 != x.end() || ahead+nvmf.Bytes(r.End) < x.covered || (g.sums && keep > g.units(x.covered)) {
		return fmt.Errorf("inode %d: hugeblock %d is continued where it does not end: %w", in.ino, file, oplog.ErrRecord)
	}
	if count > 1 {
		in.unmapFor(g, in.extents.find(file+1), file+1, count-1, Hugeblock(r.Phys)+1, free)
		x = in.extents.lookup(file)
	}
	in.mapped += count - 1
	x.count = file - x.file + count
	x.covered = ahead + nvmf.Bytes(r.End)
	return nil
}

// insert adds an extent at s, where nothing is mapped. If it continues the extent before it, the
// two are joined.
func (in *inode) insert(g *geometry, s extentPos, x extent) {
	in.mapped += x.count
	p := in.extents.before(s)
	if continues(p, x.file, x.phys, g) && !x.reserved() || reservedContinues(p, &x) {
		p.count += x.count
		p.covered += x.covered
		p.frozen = x.frozen
		return
	}
	in.addExtents().insert(s, x)
}

// addExtents returns the extents of the inode, and makes an empty map if there is none.
func (in *inode) addExtents() *extentMap {
	if in.extents == nil {
		in.extents = &extentMap{}
	}
	return in.extents
}

// continues reports whether a mapping of file to phys continues p, the extent before it.
func continues(p *extent, file, phys Hugeblock, g *geometry) bool {
	return p != nil && p.end() == file && p.phys+p.count == phys && p.covered == nvmf.Bytes(p.count)*g.hugeblock && !p.frozen
}

// reservedContinues is continues for hugeblocks that are reserved.
func reservedContinues(p, x *extent) bool {
	return p != nil && p.reserved() && x.reserved() && p.end() == x.file && p.phys+p.count == x.phys && !p.frozen
}

// noBlock is no hugeblock of the media: with it unmapFor frees all hugeblocks.
const noBlock = ^Hugeblock(0)

// unmap removes the mapping of count hugeblocks from file on; s is what find
// returns for file. It returns where an extent for them is inserted.
func (in *inode) unmap(g *geometry, s extentPos, file, count Hugeblock, free func(run)) extentPos {
	return in.unmapFor(g, s, file, count, noBlock, free)
}

// unmapFor is unmap before the hugeblocks are mapped to phys and on. Those that were reserved there
// for them are not freed.
func (in *inode) unmapFor(g *geometry, s extentPos, file, count, phys Hugeblock, free func(run)) extentPos {
	to := file + count
	for {
		p := in.extents.at(s)
		if p == nil || p.file >= to {
			return s
		}
		x := *p
		a, b := max(x.file, file), min(x.end(), to)
		in.mapped -= b - a
		if at := x.phys + (a - x.file); free != nil && (phys == noBlock || at != phys+(a-file)) {
			free(run{at, b - a})
		}
		left, right := x.cut(g, 0, a-x.file), x.cut(g, b-x.file, x.count)
		switch {
		case left.count > 0 && right.count > 0:
			in.extents.replace(s, right)
			in.extents.insert(s, left)
			return in.extents.find(file)
		case left.count > 0:
			in.extents.replace(s, left)
			s = in.extents.next(s)
		case right.count > 0:
			in.extents.replace(s, right)
			return s
		default:
			s = in.extents.remove(s)
		}
	}
}

// cut returns the part [from, to) of x, in hugeblocks from its start.
func (x *extent) cut(g *geometry, from, to Hugeblock) extent {
	if from >= to {
		return extent{}
	}
	if x.reserved() {
		return extent{file: x.file + from, phys: x.phys + from, count: to - from, frozen: x.frozen}
	}
	start := nvmf.Bytes(from) * g.hugeblock
	return extent{
		file: x.file + from, phys: x.phys + from, count: to - from,
		covered: min(x.covered, nvmf.Bytes(to)*g.hugeblock) - start,
		frozen:  x.frozen && to == x.count,
	}
}

// applyTruncate sets the size. If HasCRC is set, CRC is the checksum of the rest of the unit that
// the new end lies in.
func (in *inode) applyTruncate(g *geometry, r *oplog.Record, free func(run)) error {
	size := nvmf.Bytes(r.Size)
	if r.Size > g.maxFileSize() {
		return fmt.Errorf("inode %d: size %d: %w", in.ino, r.Size, oplog.ErrRecord)
	}
	keep := Hugeblock((size + g.hugeblock - 1) / g.hugeblock)
	in.unmap(g, in.extents.find(keep), keep, ^Hugeblock(0)-keep, free)
	in.extents.cutSums(uint64(g.units(size)))
	if x := in.extents.last(); x != nil && int64(size) < in.size {
		if left := size - nvmf.Bytes(x.file)*g.hugeblock; left < x.covered {
			x.covered, x.frozen = left, !mutant.On(mutant.NoFreeze)
			if g.sums && left%g.unit != 0 {
				if !r.HasCRC {
					return fmt.Errorf("inode %d: truncated inside a unit without checksum: %w", in.ino, oplog.ErrRecord)
				}
				in.extents.sums.set(x.unit(g, g.units(left)-1), []uint64{r.CRC})
			}
		}
	}
	if g.ranges && int64(size) < in.size {
		in.ranges.drop(int64(size), in.size)
		in.cut++
	}
	in.size = int64(size)
	in.mtime, in.ctime = r.Time, r.Time
	in.closed = false
	return nil
}
