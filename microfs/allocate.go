package microfs

import (
	"fmt"
	"syscall"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Allocate reserves hugeblocks for [off, off+n) where the file has none. Unless keepSize is set, it
// makes the file at least off+n bytes long. The reserved hugeblocks read as zeros. The first write
// to them cannot fail with ENOSPC. Errors: EBADF, EINVAL, EFBIG, ENOSPC, and EOPNOTSUPP on a file
// system that was formatted without the feature. After ENOSPC nothing has changed.
func (f *File) Allocate(off, n int64, keepSize bool) error {
	return f.onRange(off, n, func(end int64) error { return f.fs.allocate(f.in, off, end, keepSize) })
}

// Punch makes [off, off+n) read as zeros. It frees the hugeblocks that lie in the range as a whole,
// and overwrites the rest of the range with zeros. The size of the file does not change. After a
// crash only a part of the range may be punched. The errors are those of Allocate.
func (f *File) Punch(off, n int64) error {
	return f.onRange(off, n, func(end int64) error { return f.fs.punch(f.in, off, end) })
}

// ZeroRange is Punch, then Allocate.
func (f *File) ZeroRange(off, n int64, keepSize bool) error {
	return f.onRange(off, n, func(end int64) error {
		if err := f.fs.punch(f.in, off, end); err != nil {
			return err
		}
		return f.fs.allocate(f.in, off, end, keepSize)
	})
}

// onRange calls do, with the lock held, if the range is valid.
func (f *File) onRange(off, n int64, do func(end int64) error) error {
	if err := f.change((*FS).enter); err != nil {
		return err
	}
	defer f.fs.leave()
	switch limit := f.fs.g.maxFileSize(); {
	case !f.writable:
		return syscall.EBADF
	case off < 0 || n <= 0:
		return syscall.EINVAL
	case uint64(off)+uint64(n) > limit:
		return syscall.EFBIG
	case !f.fs.g.reserves:
		return syscall.EOPNOTSUPP
	}
	if err := f.fs.dropPrivileges(f.in); err != nil {
		return err
	}
	return do(off + n)
}

// touched returns the hugeblocks [first, behind) of a file that [off, end) overlaps.
func (g *geometry) touched(off, end int64) (first, behind Hugeblock) {
	return Hugeblock(nvmf.Bytes(off) / g.hugeblock), Hugeblock((nvmf.Bytes(end) + g.hugeblock - 1) / g.hugeblock)
}

func (fs *FS) allocate(in *inode, off, end int64, keepSize bool) error {
	first, behind := fs.g.touched(off, end)
	var holes []run // in the file
	var need Hugeblock
	for h := first; h < behind; {
		hole := in.holeFrom(fs.g, h, behind)
		if hole.count > 0 {
			holes = append(holes, hole)
			need += hole.count
		}
		h = in.mappedFrom(fs.g, hole.start+hole.count, behind)
	}
	taken, err := fs.takeAll(need)
	if err != nil {
		return err
	}
	size := uint64(in.size)
	if !keepSize {
		size = max(size, uint64(end))
	}
	recs := allocations(in, holes, taken, size)
	if len(recs) == 0 && size > uint64(in.size) {
		recs = append(recs, oplog.Record{Type: oplog.Allocate, Ino: uint64(in.ino), Time: now(), Size: size})
	}
	grows := size > uint64(in.size)
	for len(recs) > 0 {
		n := min(len(recs), maxRecords)
		if err := fs.recordAll(recs[:n]); err != nil {
			for i := range recs { // hugeblocks of earlier groups belong to the file already
				fs.give(run{Hugeblock(recs[i].Phys), Hugeblock(recs[i].Count)})
			}
			return err
		}
		recs = recs[n:]
	}
	in.written = in.written || grows
	return nil
}

// holeFrom returns the first run of hugeblocks in [h, behind) that the file does not have and that
// ranges do not cover as a whole.
func (in *inode) holeFrom(g *geometry, h, behind Hugeblock) run {
	h = in.mappedFrom(g, h, behind)
	end := in.placedFrom(g, h, behind).start
	if x := in.extents.at(in.extents.find(h)); x != nil {
		end = min(end, max(x.file, h))
	}
	return run{h, end - h}
}

// mappedFrom returns the end of the hugeblocks that are mapped or covered by ranges from h on,
// without a gap.
func (in *inode) mappedFrom(g *geometry, h, behind Hugeblock) Hugeblock {
	for h < behind {
		x, placed := in.extents.lookup(h), in.placedFrom(g, h, behind)
		switch {
		case x != nil:
			h = x.end()
		case placed.start == h && placed.count > 0:
			h += placed.count
		default:
			return h
		}
	}
	return behind
}

// spare is the number of hugeblocks that only overwrites may take. Nothing is changed in place, so
// in a full file system the hugeblock that an overwrite frees comes too late. A write changes at
// most two hugeblocks in part. A file system that is too small for a spare ends such a write early.
func (g *geometry) spare() Hugeblock { return min(2, g.usable/64) }

// takeAll takes need hugeblocks from the pool. If it fails it takes none.
func (fs *FS) takeAll(need Hugeblock) ([]run, error) {
	fs.retired.expire(&fs.pool)
	if need > 0 && need+fs.g.spare() > fs.available() {
		return nil, syscall.ENOSPC
	}
	if need > fs.pool.free {
		if err := fs.sync(); err != nil {
			return nil, err
		}
	}
	var taken []run
	for need > 0 {
		r, ok := fs.pool.take(need)
		if !ok {
			for _, r := range taken {
				fs.pool.give(r)
			}
			return nil, syscall.ENOSPC // the free ones are retired
		}
		taken = append(taken, r)
		need -= r.count
	}
	return taken, nil
}

// allocations makes the records that map the holes of a file to the taken runs on the media. Holes
// and runs have the same number of hugeblocks. The last record sets the size.
func allocations(in *inode, holes, taken []run, size uint64) []oplog.Record {
	var recs []oplog.Record
	for len(holes) > 0 {
		hole, r := &holes[0], &taken[0]
		n := min(hole.count, r.count)
		recs = append(recs, oplog.Record{
			Type: oplog.Allocate, Ino: uint64(in.ino), Time: now(),
			File: uint32(hole.start), Phys: uint32(r.start), Count: uint32(n),
		})
		*hole, *r = run{hole.start + n, hole.count - n}, run{r.start + n, r.count - n}
		if hole.count == 0 {
			holes = holes[1:]
		}
		if r.count == 0 {
			taken = taken[1:]
		}
	}
	if len(recs) > 0 {
		recs[len(recs)-1].Size = size
	}
	return recs
}

// maxRecords is a number of Allocate records that fit a log page together with the deferred records.
const maxRecords = 64

// recordAll is record for several records. After a crash the log has all of them or none.
func (fs *FS) recordAll(recs []oplog.Record) error {
	need := 0
	for i := range recs {
		need += recs[i].Len()
	}
	for {
		if err := fs.begin(need); err != nil {
			return err
		}
		for i := range recs {
			if err := fs.log.Append(&recs[i], false); err != nil {
				fs.log.Failed()
				return err
			}
		}
		err := fs.run(fs.log.Commit())
		if err == nil {
			ptrs := make([]*oplog.Record, len(recs))
			for i := range recs {
				ptrs[i] = &recs[i]
			}
			return fs.committed(ptrs...)
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// punch makes [off, end) a hole. Bytes past the end of the file are zeros already, so the last
// hugeblock is freed as a whole if the range reaches the end of the file.
func (fs *FS) punch(in *inode, off, end int64) error {
	g := fs.g
	first, behind := g.touched(off, end)
	if off >= in.size {
		return fs.unreserve(in, off, end)
	}
	whole := run{start: first}
	if nvmf.Bytes(off)%g.hugeblock != 0 {
		whole.start++
	}
	last := behind
	if nvmf.Bytes(end)%g.hugeblock != 0 && end < in.size {
		last--
	}
	if last > whole.start {
		whole.count = last - whole.start
	}
	start, stop := int64(nvmf.Bytes(whole.start)*g.hugeblock), int64(nvmf.Bytes(last)*g.hugeblock)
	if err := fs.zeroIn(in, off, min(end, start)); err != nil {
		return err
	}
	if err := fs.zeroIn(in, max(off, stop, start), end); err != nil {
		return err
	}
	if in.ranges.meets(off, end) {
		if err := fs.checkStateSpace(rangeSize); err != nil {
			return err
		}
		return fs.deallocate(in, whole, in.dropRange(off, end))
	}
	return fs.deallocate(in, whole)
}

// unreserve frees the hugeblocks in [off, end) that were allocated past the end of the file.
func (fs *FS) unreserve(in *inode, off, end int64) error {
	g := fs.g
	first := Hugeblock((nvmf.Bytes(off) + g.hugeblock - 1) / g.hugeblock)
	behind := Hugeblock(nvmf.Bytes(end) / g.hugeblock)
	return fs.deallocate(in, run{first, max(first, behind) - first})
}

// zeroIn writes zeros over those bytes of [off, end) that were written. The range lies in one
// hugeblock.
func (fs *FS) zeroIn(in *inode, off, end int64) error {
	if off >= end {
		return nil
	}
	g := fs.g
	h := Hugeblock(nvmf.Bytes(off) / g.hugeblock)
	x := in.extents.lookup(h)
	if x == nil {
		return nil
	}
	end = min(end, int64(nvmf.Bytes(h)*g.hugeblock+x.coveredIn(h, g)))
	if off >= end {
		return nil
	}
	n, err := fs.writeAt(in, [][]byte{make([]byte, end-off)}, off)
	if err == nil && int64(n) < end-off {
		err = syscall.ENOSPC
	}
	return err
}

// deallocate logs a Punch record for a part of a file, and other records in the same group. Even if
// the part is empty the file counts as changed.
func (fs *FS) deallocate(in *inode, part run, others ...oplog.Record) error {
	punch := oplog.Record{
		Type: oplog.Punch, Ino: uint64(in.ino), Time: now(), File: uint32(part.start), Count: uint32(part.count),
	}
	if err := fs.recordAll(append(others, punch)); err != nil {
		return err
	}
	in.dropTail()
	in.written = true
	return nil
}

// applyAllocate maps the hugeblocks of an Allocate record.
func (in *inode) applyAllocate(g *geometry, r *oplog.Record) error {
	x := extent{file: Hugeblock(r.File), phys: Hugeblock(r.Phys), count: Hugeblock(r.Count)}
	if !g.reserves || r.Size > g.maxFileSize() || x.phys > g.blocks || x.count > g.blocks-x.phys || uint64(x.file)+uint64(x.count) > 1<<32-2 {
		return fmt.Errorf("inode %d: run of %d hugeblocks at %d cannot be allocated: %w", in.ino, x.count, x.phys, oplog.ErrRecord)
	}
	if x.count > 0 {
		s := in.extents.find(x.file)
		if next := in.extents.at(s); next != nil && next.file < x.end() {
			return fmt.Errorf("inode %d: hugeblock %d is allocated and there already: %w", in.ino, next.file, oplog.ErrRecord)
		}
		in.insert(g, s, x)
	}
	in.ctime = r.Time
	if int64(r.Size) > in.size {
		in.size, in.mtime, in.closed = int64(r.Size), r.Time, false
	}
	return nil
}

// applyPunch unmaps the hugeblocks of a Punch record.
func (in *inode) applyPunch(g *geometry, r *oplog.Record, free func(run)) error {
	file, count := Hugeblock(r.File), Hugeblock(r.Count)
	if !g.reserves || uint64(file)+uint64(count) > 1<<32-2 {
		return fmt.Errorf("inode %d: %d hugeblocks from %d on cannot be taken: %w", in.ino, count, file, oplog.ErrRecord)
	}
	in.unmap(g, in.extents.find(file), file, count, free)
	if g.ranges {
		in.cut++
	}
	in.mtime, in.ctime, in.closed = r.Time, r.Time, false
	return nil
}

// freezeReserved makes a reserved hugeblock an extent of its own, which nothing is written to.
func (in *inode) freezeReserved(g *geometry, h Hugeblock) {
	phys := in.extents.lookup(h)
	x := extent{file: h, phys: phys.phys + (h - phys.file), count: 1, frozen: true}
	s := in.unmap(g, in.extents.find(h), h, 1, nil)
	in.mapped++
	in.extents.insert(s, x)
}
