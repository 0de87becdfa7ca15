package microfs

import (
	"context"
	"errors"
	"slices"

	"nvmecr/nvmf"
)

// A BadRange is a part of a file that could not be read, or has bytes other than those written.
type BadRange struct {
	Ino    Ino      `json:"inode"`
	Path   string   `json:"path"`
	Offset int64    `json:"offset"` // in the file
	Length int64    `json:"length"`
	LBA    nvmf.LBA `json:"lba"` // of its first byte
	Sum    uint64   `json:"-"`   // checksum of its first unit
	// Cause is a *DamageError or the error of the device.
	Cause error `json:"-"`
}

// VerifyOptions says what Verify reads, and how it reports progress.
type VerifyOptions struct {
	// Only limits Verify to these inodes; nil is all files.
	Only []Ino
	// Progress is called with the length of every part that was read. May be nil.
	Progress func(n nvmf.Bytes)
}

// A VerifyReport is the result of Verify.
type VerifyReport struct {
	Files int        // read, each inode once
	Bytes nvmf.Bytes // written bytes of these files, without holes
	// Unverified: the file system has no checksums of data, so Verify only shows that the data can
	// be read.
	Unverified bool
	Bad        []BadRange // in the order of inodes and offsets, at most maxFindings
	More       int        // bad ranges beyond those
}

// Verify checks every byte of every file against its checksum, and continues after damage. It gives
// the lock up between parts. While another process writes, a read-only mount may report hugeblocks
// that the writer has freed and used again. A range is damaged if a second mount reports it, too,
// at the same LBA with the same checksum.
//
// It fails only with the error of ctx, or if nothing can be read any more.
func (fs *FS) Verify(ctx context.Context, o VerifyOptions) (*VerifyReport, error) {
	if err := fs.enter(); err != nil {
		return nil, err
	}
	inos := slices.Clone(o.Only)
	if o.Only == nil {
		for in := range fs.tree.inodes.all() {
			inos = append(inos, in.ino)
		}
	}
	v := &verifier{fs: fs, o: &o, r: &VerifyReport{Unverified: !fs.g.sums}, buf: make([]byte, maxBatch), step: maxBatch}
	fs.leave()
	slices.Sort(inos)
	for _, ino := range inos {
		if err := v.file(ctx, ino); err != nil {
			return v.r, err
		}
	}
	return v.r, nil
}

// VerifySize returns how many bytes Verify would read.
func (fs *FS) VerifySize() (n nvmf.Bytes) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			n += x.covered
		}
	}
	return n
}

// verifier is one run of Verify.
type verifier struct {
	fs   *FS
	o    *VerifyOptions
	r    *VerifyReport
	buf  []byte
	step nvmf.Bytes // size of the next read: one unit after damage, then twice as much each time
	open bool       // the last bad range belongs to the present file, and may be extended
}

// file reads one inode if it is a file.
func (v *verifier) file(ctx context.Context, ino Ino) error {
	v.open = false
	for pos, first := nvmf.Bytes(0), true; ; first = false {
		if err := ctx.Err(); err != nil {
			return err
		}
		next, more, err := v.part(ino, pos, first)
		if err != nil || !more {
			return err
		}
		pos = next
	}
}

// part verifies the next written bytes of a file from pos on, with one read. It returns the position to
// continue from. more is false at the end of the file.
func (v *verifier) part(ino Ino, pos nvmf.Bytes, first bool) (next nvmf.Bytes, more bool, err error) {
	fs := v.fs
	if err := fs.enter(); err != nil {
		return 0, false, err
	}
	defer fs.leave()
	in := fs.tree.inodes.get(ino)
	if in == nil || !in.isRegular() {
		return 0, false, nil
	}
	if first {
		v.r.Files++
	}
	x, start := in.writtenFrom(fs.g, pos)
	if x == nil {
		return 0, false, nil
	}
	unit := fs.g.unit
	next = min(nvmf.Bytes(x.file)*fs.g.hugeblock+x.covered, (start + v.step).AlignDown(unit))
	_, err = fs.readAt(in, [][]byte{v.buf[:next-start]}, int64(start))
	var damage *DamageError
	if err != nil && !errors.As(err, &damage) && !errors.As(err, new(*nvmf.StatusError)) {
		return 0, false, err
	}
	switch {
	case err == nil:
		v.step = min(2*v.step, maxBatch)
	case damage != nil && damage.Cause == nil:
		bad := nvmf.Bytes(damage.Offset)
		next = min(next, bad+nvmf.Bytes(damage.Length))
		v.bad(in, x, bad, next, err)
		v.step = unit
	case next-start > unit:
		v.step = unit // to find the damaged unit
		return start, true, nil
	default:
		v.bad(in, x, start, next, err)
	}
	v.r.Bytes += next - start
	if v.o.Progress != nil {
		v.o.Progress(next - start)
	}
	return next, true, nil
}

// writtenFrom returns the extent with the first written byte at or behind pos, and the position of
// this byte.
func (in *inode) writtenFrom(g *geometry, pos nvmf.Bytes) (*extent, nvmf.Bytes) {
	m := in.extents
	for s := m.find(Hugeblock(pos / g.hugeblock)); m.at(s) != nil; s = m.next(s) {
		x := m.at(s)
		base := nvmf.Bytes(x.file) * g.hugeblock
		if start := max(pos, base); start < base+x.covered {
			return x, start
		}
	}
	return nil, 0
}

// bad adds [start, end) of a file to the bad ranges. start is a unit boundary.
func (v *verifier) bad(in *inode, x *extent, start, end nvmf.Bytes, cause error) {
	g, r := v.fs.g, v.r
	if n := len(r.Bad); n > 0 && v.open {
		if last := &r.Bad[n-1]; last.Offset+last.Length == int64(start) {
			last.Length += int64(end - start)
			return
		}
	}
	if v.open = len(r.Bad) < maxFindings; !v.open {
		r.More++
		return
	}
	at := start - nvmf.Bytes(x.file)*g.hugeblock
	b := BadRange{
		Ino: in.ino, Path: v.fs.tree.path(in.ino), Offset: int64(start), Length: int64(end - start),
		LBA: g.lbaOf(g.dataOffset(x.phys) + at), Cause: cause,
	}
	if g.sums {
		b.Sum = in.extents.sums.get(x.unit(g, int(at/g.unit)))
	}
	r.Bad = append(r.Bad, b)
}
