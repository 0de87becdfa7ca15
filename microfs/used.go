package microfs

import "nvmecr/nvmf"

// Used calls mark for each part of the namespace in use: the metadata of the file system, and the
// data of its files.
func (fs *FS) Used(mark func(Segment)) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	g := fs.g
	mark(Segment{Start: g.seg.Start, Length: g.data})
	mark(Segment{Start: g.seg.Start + g.seg.superblocks()[1], Length: blockSize})
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			mark(Segment{Start: g.seg.Start + g.dataOffset(x.phys), Length: nvmf.Bytes(x.count) * g.hugeblock})
		}
	}
}
