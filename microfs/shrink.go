package microfs

import (
	"fmt"
	"syscall"

	"nvmecr/nvmf"
)

// A partition can be made to end earlier, so that others get what lies behind. Its
// superblocks keep saying what the format made it; how long it is now is told by
// whoever mounts it, from the partition table. So the change counts when the table
// has it, and not before: Shrink itself changes nothing that a mount of the whole
// partition would miss.

// fit makes g the geometry of seg, which may end before the segment that was formatted.
func (g *geometry) fit(seg Segment, lba nvmf.Bytes) error {
	if g.seg.Start != seg.Start || g.formatted < seg.Length || g.lba != lba {
		return fmt.Errorf("superblock of another segment, %v at %v: %w", g.formatted, g.seg.Start, ErrCorrupt)
	}
	if seg.Length < g.data+g.hugeblock+blockSize {
		return fmt.Errorf("superblock of a segment of %v, of which %v have no room for data: %w", g.formatted, seg.Length, ErrCorrupt)
	}
	g.seg = seg
	g.usable = min(g.blocks, Hugeblock((seg.Length-blockSize-g.data)/g.hugeblock))
	return nil
}

// Shrink ends the file system as early as what is in use and so much free space allow,
// on a multiple of align in the namespace, and returns the length that its segment
// has then. From here on nothing is written behind that. What is there is durable
// when Shrink returns, as is what a mount of the shorter segment needs: the caller
// records the length, and gives what lies behind to others only then.
//
// ErrInUse, with nothing changed, if the segment would be longer than most; EBUSY
// between Vacate and the next call; EROFS; or what the device says.
func (fs *FS) Shrink(free, align, most nvmf.Bytes) (nvmf.Bytes, error) {
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
	end := fs.g.data + nvmf.Bytes(fs.inUse())*fs.g.hugeblock + free + blockSize
	seg.Length = min(seg.Length, (seg.Start+end).AlignUp(align)-seg.Start)
	if seg.Length > most {
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

// inUse returns where the hugeblocks end that files have, that are not free for good
// yet, or that a late command may still write to.
func (fs *FS) inUse() (end Hugeblock) {
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			end = max(end, x.phys+x.count)
		}
	}
	for _, r := range fs.limbo {
		end = max(end, r.start+r.count)
	}
	fs.retired.expire(&fs.pool)
	for h := range fs.retired {
		end = max(end, h+1)
	}
	return end
}
