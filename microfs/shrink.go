package microfs

import (
	"fmt"
	"syscall"

	"nvmecr/nvmf"
)

// A partition can be made shorter, to make space for others behind it. Its superblocks keep the
// length that it was formatted with. The present length is in the partition table, and the caller
// passes it to Mount. So the partition becomes shorter when the table says so: after Shrink alone
// it can still be mounted with its old length.

// fit makes g the geometry of seg, which may be shorter than the formatted segment.
func (g *geometry) fit(seg Segment, lba nvmf.Bytes) error {
	if g.seg.Start != seg.Start || g.formatted < seg.Length || g.lba != lba {
		return fmt.Errorf("superblock of another segment, %v at %v: %w", g.formatted, g.seg.Start, ErrCorrupt)
	}
	if seg.Length < g.data+g.hugeblock+blockSize {
		return fmt.Errorf("superblock of a segment of %v, of which %v have no space for data: %w", g.formatted, seg.Length, ErrCorrupt)
	}
	g.seg = seg
	g.usable = min(g.blocks, Hugeblock((seg.Length-blockSize-g.data)/g.hugeblock))
	return nil
}

// Shrink makes the file system as short as possible, but no shorter than least. It leaves space of
// free bytes behind the last hugeblock in use. The segment then ends on a multiple of align in the
// namespace. Shrink returns the new length of the segment. From then on nothing is
// written past the new end, and everything that a mount of the shorter segment needs is durable. The
// caller records the new length, and only then gives the space behind it to others.
//
// Shrink fails with ErrInUse, and changes nothing, if the segment would be longer than limit. Other
// errors: EBUSY between Vacate and the next call, EROFS, and the error of the device.
func (fs *FS) Shrink(free, least, align, limit nvmf.Bytes) (nvmf.Bytes, error) {
	fs.mu.Lock()
	defer fs.leave()
	switch {
	case fs.broken != nil:
		return 0, fs.broken
	case fs.opts.ReadOnly:
		return 0, syscall.EROFS
	case fs.claim.Released:
		return 0, fmt.Errorf("the process that has the partition executes a program: %w", syscall.EBUSY)
	}
	fs.writeBehind()
	if err := fs.sync(); err != nil {
		return 0, err
	}
	seg := fs.g.seg
	end := max(fs.g.data+nvmf.Bytes(fs.inUse())*fs.g.hugeblock+free+blockSize, least)
	seg.Length = min(seg.Length, (seg.Start+end).AlignUp(align)-seg.Start)
	if seg.Length > limit {
		return 0, fmt.Errorf("files take up to %v, free %v behind them: %w", end-free, free, ErrInUse)
	}
	if seg.Length == fs.g.seg.Length {
		return seg.Length, nil
	}
	sb := make([]byte, blockSize)
	fs.g.encode(sb)
	if err := fs.restore(seg.superblocks()[1], sb); err != nil {
		return 0, err
	}
	if err := fs.g.fit(seg, fs.g.lba); err != nil {
		return 0, err
	}
	fs.pool.end(fs.g.usable)
	return seg.Length, nil
}

// inUse returns the end of the last hugeblock that belongs to a file, is pending free,
// or is retired.
func (fs *FS) inUse() (end Hugeblock) {
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			end = max(end, x.phys+x.count)
		}
	}
	for _, r := range fs.pendingFree {
		end = max(end, r.start+r.count)
	}
	fs.retired.expire(&fs.pool)
	for h := range fs.retired {
		end = max(end, h+1)
	}
	return end
}
