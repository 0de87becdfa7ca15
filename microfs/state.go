package microfs

import (
	"fmt"

	"nvmecr/internal/crc64"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

func checksum(b []byte) uint64 { return crc64.Checksum(b) }

// State checkpoint: the whole tree, serialised. Layout (docs/dev/format.md):
//
//	 0  magic "NVMECRTR"
//	 8  version (u32)
//	12  zero (u32)
//	16  next inode number
//	24  number of inodes
//	32  number of names
//	40  inodes in order of number, then names in order of directory and name
//
// inode, 104 bytes, then target, extents and ranges:
//
//	 0  number        32  size        64  btime          88  entries (u32)
//	 8  mode (u32)    40  atime       72  flags (u32)    92  target length (u32)
//	12  nlink (u32)   48  mtime       76  zero (u32)     96  number of extents (u32)
//	16  uid (u32)     56  ctime       80  parent        100  zero (u32)
//	20  gid (u32)
//	24  cut (u32)     28  number of ranges (u32), both zero without the feature
//
// extent, 32 bytes, then its checksums, 8 bytes each:
//
//	0  file hugeblock (u32)   8  count (u32)   16  covered bytes
//	4  media hugeblock (u32) 12  flags (u32)   24  number of checksums (u32)  28 zero (u32)
//
// range, 24 bytes:
//
//	0  offset   8  length   16  partition (u32)   20  cut (u32)
//
// name, 20 bytes, then the name:
//
//	0  directory   8  inode   16  length (u16)   18  zero (u16)
const (
	stMagic    = "NVMECRTR"
	stVersion  = 1
	stateFixed = 40
	inodeSize  = 104
	extentSize = 32
	rangeSize  = 24
	entrySize  = 20

	// maxIno bounds inode numbers, far from where they would wrap: at a million
	// creates a second it takes a thousand centuries.
	maxIno = 1 << 62

	inodeClosed  = 1 << 0
	extentFrozen = 1 << 0
)

// encode serialises the tree, into the memory of b if that suffices. Inodes without a name are
// included: they are open, and later records may name them. Recovery drops them at its end.
func (t *tree) encode(b []byte) []byte {
	size := stateFixed + int(t.bytes)
	for in := range t.inodes.all() {
		for x := range in.extents.all() {
			size += extentSize + 8*x.sums(t.g)
		}
	}
	if cap(b) < size {
		b = make([]byte, 0, size+min(size/4, keepState))
	}
	b = b[:stateFixed]
	clear(b)
	copy(b, stMagic)
	le.PutUint32(b[8:], stVersion)
	le.PutUint64(b[16:], uint64(t.nextIno))
	le.PutUint64(b[24:], uint64(t.inodes.count))
	le.PutUint64(b[32:], uint64(t.names.count))
	for in := range t.inodes.all() {
		b = in.encode(t.g, b)
	}
	for e := range t.names.all() {
		b = le.AppendUint64(b, uint64(e.dir))
		b = le.AppendUint64(b, uint64(e.ino))
		b = le.AppendUint16(b, uint16(len(e.name)))
		b = append(b, 0, 0)
		b = append(b, e.name...)
	}
	return b
}

func (in *inode) encode(g *geometry, b []byte) []byte {
	var h [inodeSize]byte
	le.PutUint64(h[0:], uint64(in.ino))
	le.PutUint32(h[8:], in.mode)
	le.PutUint32(h[12:], in.nlink)
	le.PutUint32(h[16:], in.uid)
	le.PutUint32(h[20:], in.gid)
	le.PutUint32(h[24:], in.cut)
	le.PutUint32(h[28:], uint32(in.ranges.len()))
	le.PutUint64(h[32:], uint64(in.size))
	le.PutUint64(h[40:], uint64(in.atime))
	le.PutUint64(h[48:], uint64(in.mtime))
	le.PutUint64(h[56:], uint64(in.ctime))
	le.PutUint64(h[64:], uint64(in.btime))
	if in.closed {
		le.PutUint32(h[72:], inodeClosed)
	}
	le.PutUint64(h[80:], uint64(in.parent()))
	le.PutUint32(h[88:], uint32(in.entries()))
	le.PutUint32(h[92:], uint32(len(in.target())))
	le.PutUint32(h[96:], uint32(in.extents.len()))
	b = append(b, h[:]...)
	b = append(b, in.target()...)
	for x := range in.extents.all() {
		b = x.encode(g, &in.extents.sums, b)
	}
	for r := range in.ranges.all() {
		b = append(b, make([]byte, rangeSize)...)
		r.Encode(b[len(b)-rangeSize:])
	}
	return b
}

// sums returns how many checksums the extent has.
func (x *extent) sums(g *geometry) int {
	if !g.sums {
		return 0
	}
	return g.units(x.covered)
}

func (x *extent) encode(g *geometry, sums *sumTable, b []byte) []byte {
	var h [extentSize]byte
	le.PutUint32(h[0:], uint32(x.file))
	le.PutUint32(h[4:], uint32(x.phys))
	le.PutUint32(h[8:], uint32(x.count))
	if x.frozen {
		le.PutUint32(h[12:], extentFrozen)
	}
	le.PutUint64(h[16:], uint64(x.covered))
	le.PutUint32(h[24:], uint32(x.sums(g)))
	b = append(b, h[:]...)
	for n := range x.sums(g) {
		b = le.AppendUint64(b, sums.get(x.unit(g, n)))
	}
	return b
}

// stateReader parses a state; it never reads beyond the end.
type stateReader struct {
	b   []byte
	err error
	// malformed, if set, is called for every malformed item, and reading continues without the
	// item.
	malformed func(Ino, error)
	// repair says that the caller corrects wrong counts and parents.
	repair bool
}

// lenient reports whether parents may be wrong: the caller checks them.
func (r *stateReader) lenient() bool { return r.repair || r.malformed != nil }

// refuse returns err, which ends the reading, or passes it to malformed and returns nil.
func (r *stateReader) refuse(ino Ino, err error) error {
	if r.malformed == nil {
		return err
	}
	r.malformed(ino, err)
	return nil
}

// take returns the next n bytes, or zeros once something is missing.
func (r *stateReader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.err = fmt.Errorf("state checkpoint ends early: %w", ErrCorrupt)
		r.b = nil
		return make([]byte, min(max(n, 0), inodeSize))
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

// decodeTree rebuilds the tree and checks it.
func decodeTree(g *geometry, b []byte) (*tree, error) {
	r := &stateReader{b: b}
	t, err := r.tree(g)
	if err != nil {
		return nil, err
	}
	return t, t.check()
}

// tree rebuilds the tree. With an error it returns the part that it could rebuild.
func (r *stateReader) tree(g *geometry) (*tree, error) {
	h := r.take(stateFixed)
	if r.err != nil {
		return nil, r.err
	}
	if string(h[:8]) != stMagic || le.Uint32(h[8:]) != stVersion {
		return nil, fmt.Errorf("state checkpoint has no magic or version %d: %w", le.Uint32(h[8:]), ErrVersion)
	}
	t := newTree(g)
	t.dropInode(t.inodes.get(RootIno))
	inodes, names := le.Uint64(h[24:]), le.Uint64(h[32:])
	for i := uint64(0); i < inodes && r.err == nil; i++ {
		in, err := r.inode(g)
		if err != nil {
			return t, err
		}
		if t.taken(in.ino) {
			if err := r.refuse(in.ino, fmt.Errorf("there are two inodes %d: %w", in.ino, ErrCorrupt)); err != nil {
				return t, err
			}
			continue
		}
		t.addInode(in)
	}
	var d *inode // names come directory by directory
	for i := uint64(0); i < names && r.err == nil; i++ {
		h := r.take(entrySize)
		e := entry{dir: Ino(le.Uint64(h)), ino: Ino(le.Uint64(h[8:]))}
		e.name = string(r.take(int(le.Uint16(h[16:]))))
		if r.err != nil {
			break
		}
		if d == nil || d.ino != e.dir {
			d = t.inodes.get(e.dir)
		}
		in := t.inodes.get(e.ino)
		if d == nil || !d.isDir() || in == nil || !goodName(e.name) || in.isDir() && in.parent() != e.dir && !r.lenient() {
			err := fmt.Errorf("name %q of inode %d in directory %d is not valid: %w", e.name, e.ino, e.dir, ErrCorrupt)
			if err := r.refuse(e.ino, err); err != nil {
				return t, err
			}
			continue
		}
		if !t.names.insert(e) {
			if err := r.refuse(e.ino, fmt.Errorf("directory %[2]d has the name %[1]q twice: %[3]w", e.name, e.dir, ErrCorrupt)); err != nil {
				return t, err
			}
			continue
		}
		t.bytes += nvmf.Bytes(entrySize + len(e.name))
		in.found++
		d.special.found++
		if in.isDir() {
			in.special.name = e.name
		}
	}
	t.nextIno = max(t.nextIno, Ino(le.Uint64(h[16:])))
	return t, r.err
}

// check compares redundant values, so that no later operation meets a name without an inode, a
// directory inside itself or a count below zero.
func (t *tree) check() error {
	if t.nextIno >= maxIno {
		return fmt.Errorf("inode numbers are used up: %w", ErrCorrupt)
	}
	root := t.inodes.get(RootIno)
	if root == nil || !root.isDir() || root.parent() != RootIno {
		return fmt.Errorf("state checkpoint has no root: %w", ErrCorrupt)
	}
	subdirs := map[Ino]uint32{}
	for in := range t.inodes.all() {
		if in.isDir() && in.ino != RootIno && in.nlink > 0 {
			subdirs[in.parent()]++
		}
	}
	under := map[Ino]bool{RootIno: true}
	for in := range t.inodes.all() {
		ino, kind := in.ino, in.mode&modeType
		want := in.found
		if ino == RootIno {
			want++ // it has no name, and only this place
		}
		if kind == modeDir && want > 0 {
			if want > 1 {
				return fmt.Errorf("directory %d has more than one place: %w", ino, ErrCorrupt)
			}
			want += 1 + subdirs[ino]
		}
		switch {
		case in.nlink != want, in.special != nil && in.special.entries != int(in.special.found),
			in.size < 0, uint64(in.size) > t.g.maxFileSize(),
			kind != modeRegular && (in.mapped > 0 || in.ranges.len() > 0),
			kind != modeRegular && kind != modeDir && kind != modeSymlink,
			kind == modeSymlink && in.target() == "", len(in.target()) > maxTarget,
			ino == 0 || ino >= maxIno:
			return fmt.Errorf("inode %d is not valid: %w", ino, ErrCorrupt)
		case kind == modeDir && want > 0 && !t.reachesRoot(in, under):
			return fmt.Errorf("directory %d lies inside itself: %w", ino, ErrCorrupt)
		}
	}
	return nil
}

// reachesRoot reports whether d lies below the root; under has the directories that do.
func (t *tree) reachesRoot(d *inode, under map[Ino]bool) bool {
	var up []Ino
	for !under[d.ino] {
		if up = append(up, d.ino); len(up) > t.inodes.count {
			return false
		}
		if d = t.inodes.get(d.parent()); d == nil {
			return false
		}
	}
	for _, ino := range up {
		under[ino] = true
	}
	return true
}

func (r *stateReader) inode(g *geometry) (*inode, error) {
	h := r.take(inodeSize)
	in := &inode{
		ino: Ino(le.Uint64(h)), mode: le.Uint32(h[8:]), nlink: le.Uint32(h[12:]),
		uid: le.Uint32(h[16:]), gid: le.Uint32(h[20:]), size: int64(le.Uint64(h[32:])),
		atime: int64(le.Uint64(h[40:])), mtime: int64(le.Uint64(h[48:])),
		ctime: int64(le.Uint64(h[56:])), btime: int64(le.Uint64(h[64:])),
		closed: le.Uint32(h[72:])&inodeClosed != 0,
	}
	of := special{parent: Ino(le.Uint64(h[80:])), entries: int(le.Uint32(h[88:])), target: string(r.take(int(le.Uint32(h[92:]))))}
	if in.isDir() || of != (special{}) {
		in.special = new(special)
		*in.special = of
	}
	n := int(le.Uint32(h[96:]))
	if n > len(r.b)/extentSize {
		r.take(-1)
		return in, r.err
	}
	var last Hugeblock
	var some [64]uint64
	for range n {
		x, sums, err := r.extent(g)
		if err == nil && (x.file < last || in.size < 0) {
			err = fmt.Errorf("extents overlap: %w", ErrCorrupt)
		}
		if err != nil {
			err = fmt.Errorf("inode %d: %w", in.ino, err)
			if r.err != nil || r.refuse(in.ino, err) != nil {
				return in, err
			}
			continue
		}
		last = x.end()
		in.addExtents().push(x)
		in.mapped += x.count
		for at := x.unit(g, 0); len(sums) > 0; {
			n := 0
			for ; n < len(some) && len(sums) > 0; n, sums = n+1, sums[8:] {
				some[n] = le.Uint64(sums)
			}
			in.extents.sums.set(at, some[:n])
			at += uint64(n)
		}
	}
	if g.ranges {
		in.cut = le.Uint32(h[24:])
		return in, r.ranges(in, int(le.Uint32(h[28:])))
	}
	return in, r.err
}

// ranges reads n ranges of an inode.
func (r *stateReader) ranges(in *inode, n int) error {
	if n > len(r.b)/rangeSize {
		r.take(-1)
	}
	var last int64
	for range n {
		x := oplog.DecodeRange(r.take(rangeSize))
		if r.err != nil {
			break
		}
		if x.Off < last || x.Len <= 0 || x.Len > in.size-x.Off {
			err := fmt.Errorf("inode %d: range of %d bytes at %d is not valid: %w", in.ino, x.Len, x.Off, ErrCorrupt)
			if err = r.refuse(in.ino, err); err != nil {
				return err
			}
			continue
		}
		last = x.End()
		in.addRanges().push(x)
	}
	return r.err
}

// extent returns an extent, and its checksums in their stored form.
func (r *stateReader) extent(g *geometry) (extent, []byte, error) {
	h := r.take(extentSize)
	x := extent{
		file: Hugeblock(le.Uint32(h)), phys: Hugeblock(le.Uint32(h[4:])), count: Hugeblock(le.Uint32(h[8:])),
		frozen: le.Uint32(h[12:])&extentFrozen != 0, covered: nvmf.Bytes(le.Uint64(h[16:])),
	}
	n := int(le.Uint32(h[24:]))
	full := nvmf.Bytes(x.count) * g.hugeblock
	switch {
	case r.err != nil:
		return x, nil, r.err
	case x.count == 0 || x.count > g.blocks || x.phys > g.blocks-x.count || x.file+x.count < x.file,
		x.covered > full || x.covered <= full-g.hugeblock && !(g.reserves && x.reserved()),
		g.sums && n != g.units(x.covered), !g.sums && n != 0:
		r.take(8 * n)
		return x, nil, fmt.Errorf("extent of %d hugeblocks at %d is not valid: %w", x.count, x.phys, ErrCorrupt)
	}
	sums := r.take(8 * n)
	return x, sums, r.err
}
