package microfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Mount recovers the file system on seg and, unless opts.ReadOnly, seals its log. After that the
// media shows no trace of earlier crashes.
//
// Mount fails with ErrUnformatted, ErrVersion, ErrCorrupt, ErrOtherGeneration, oplog.ErrDamaged,
// oplog.ErrRecord, oplog.ErrFormat, or the error of the device or of Options.Claimed. A read-only mount
// of a file system that another process writes to may fail; see MovedOn.
func Mount(ctx context.Context, dev nvmf.Device, seg Segment, opts Options) (*FS, error) {
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.QueueDepth == 0 {
		opts.QueueDepth = defaultQueueDepth
	}
	q, err := dev.OpenQueue(ctx, opts.QueueDepth)
	if err != nil {
		return nil, err
	}
	fs := &FS{dev: dev, opts: opts, q: q}
	fs.idle.L = &fs.mu
	if err := fs.recover(seg); err != nil {
		_ = q.Close() // err is the cause
		return nil, fmt.Errorf("partition at byte %d: %w", seg.Start, err)
	}
	if !opts.ReadOnly {
		fs.dealloc.init(fs)
		fs.ckpt.start(fs)
	}
	return fs, nil
}

func (fs *FS) recover(seg Segment) error {
	if err := fs.readSuperblock(seg); err != nil {
		return err
	}
	if fs.g.generation != fs.opts.Generation {
		return fmt.Errorf("superblock has generation %#x, the partition table %#x: %w", fs.g.generation, fs.opts.Generation, ErrOtherGeneration)
	}
	fs.io.init(fs.g)
	if fs.opts.ReadOnly {
		return fs.load()
	}
	if fs.opts.WriteBehind {
		fs.behind.init(cmp.Or(fs.opts.behindSize, behindSize))
	}
	// A partition that cannot be mounted stays unchanged.
	if _, err := fs.readHeader(); err != nil {
		return err
	}
	if err := fs.takeClaim(); err != nil {
		return err
	}
	err := fs.load()
	if err == nil {
		err = fs.takeOver()
	}
	if err != nil {
		_ = fs.releaseClaim() // err is the cause
	}
	return err
}

// load reads the state and follows the log from it.
func (fs *FS) load() error {
	if err := fs.readState(); err != nil {
		return err
	}
	var err error
	if fs.log, err = oplog.Recover(fs.logGeometry(), fs.ckpt.header.prior, fs.media()); err != nil {
		return err
	}
	fs.tree.dropNameless(fs.opts.Keep...)
	return fs.fillPool()
}

// Current reports whether a read-only mount still shows the content of the media. That costs three
// or four round trips, while a new mount also costs a connection and reads the state and the log.
// also checks what the caller has read from the media; it may use the queue until it returns.
// Current returns false after an error of the device, too. After false the caller mounts again.
func (fs *FS) Current(also func(nvmf.Queue) bool) bool {
	if !fs.opts.ReadOnly || fs.enter() != nil {
		return false
	}
	defer fs.leave()
	return also(fs.q) && fs.unchanged()
}

// unchanged reports whether state and log of a read-only mount are still the same.
func (fs *FS) unchanged() bool {
	h, err := fs.readHeader()
	if err != nil || *h != fs.ckpt.header {
		return false
	}
	same, err := fs.log.Unchanged(fs.media())
	return err == nil && same
}

func (fs *FS) logGeometry() oplog.Geometry {
	return fs.g.log(fs.dev.Identity().VolatileWriteCache, fs.opts.NoCoalesce)
}

// readSuperblock reads both copies. If one copy is good, the other one is repaired later.
func (fs *FS) readSuperblock(seg Segment) error {
	id := fs.dev.Identity()
	if seg.Start%blockSize != 0 || seg.Length%blockSize != 0 || seg.Length < 4*blockSize || seg.Start+seg.Length > id.Capacity() {
		return fmt.Errorf("segment of %v at %v does not fit a namespace of %v: %w", seg.Length, seg.Start, id.Capacity(), ErrCorrupt)
	}
	var errs [2]error
	buf := make([]byte, blockSize)
	for i, at := range seg.superblocks() {
		if errs[i] = fs.readBlocks(nvmf.LBA((seg.Start+at)/id.LBASize), buf); errs[i] != nil {
			continue
		}
		g, err := decodeSuperblock(buf)
		if err == nil {
			err = g.fit(seg, id.LBASize)
		}
		if errs[i] = err; err == nil && fs.g == nil {
			fs.g = g
		}
	}
	for i, at := range seg.superblocks() {
		if fs.g != nil && errs[i] != nil {
			fs.logf("superblock copy %d: %v; the other copy is good", i, errs[i])
			sb := make([]byte, blockSize)
			fs.g.encode(sb)
			fs.repair = append(fs.repair, repair{at, sb})
		}
	}
	switch {
	case fs.g != nil:
		return nil
	case errors.Is(errs[0], ErrUnformatted) && !errors.Is(errs[1], ErrVersion):
		// Format writes the copy at the end first. If there is only that one, a format was
		// interrupted.
		return ErrUnformatted
	case errs[0] != nil && !errors.Is(errs[0], ErrUnformatted):
		return errs[0]
	}
	return errs[1]
}

// readHeader returns the current state header.
func (fs *FS) readHeader() (best *stateHeader, err error) {
	var cause error
	buf := make([]byte, blockSize)
	for slot := range 2 {
		err := fs.readBlocks(fs.g.lbaOf(headerOffset+nvmf.Bytes(slot)*blockSize), buf)
		if err == nil {
			var h *stateHeader
			if h, err = decodeStateHeader(buf, fs.g); err == nil && (best == nil || h.sequence > best.sequence) {
				best = h
			}
		}
		if err != nil {
			cause = err
		}
	}
	if best == nil {
		return nil, fmt.Errorf("both state headers: %w", cause)
	}
	return best, nil
}

// readState reads the current state checkpoint into the tree.
func (fs *FS) readState() error {
	best, err := fs.readHeader()
	if err != nil {
		return err
	}
	fs.ckpt.header = *best
	state, err := fs.readStateArea(best)
	if err != nil {
		return err
	}
	r := &stateReader{b: state, repair: fs.opts.repair}
	if fs.tree, err = r.tree(fs.g); err != nil {
		return err
	}
	if fs.opts.repair {
		fs.tree.repair(fs.logf)
	}
	return fs.tree.check()
}

// readStateArea reads the blocks of a state. A block that is damaged, or that the device cannot
// read, is rebuilt from the others of its group.
func (fs *FS) readStateArea(h *stateHeader) ([]byte, error) {
	at := fs.g.state[h.area]
	framed := make([]byte, framedSize(h.length))
	for off := 0; off < len(framed); off += groupBytes {
		group := framed[off:min(len(framed), off+groupBytes)]
		if err := fs.readMarking(at+nvmf.Bytes(off), group); err != nil {
			return nil, fmt.Errorf("state checkpoint %d: %w", h.sequence, err)
		}
	}
	state, repaired, err := unframe(framed, h.length, h.sequence)
	if err == nil && checksum(state) != h.crc {
		err = fmt.Errorf("checksum mismatch: %w", ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("state checkpoint %d at bytes %d to %d of the partition: %w",
			h.sequence, at, at+framedSize(h.length)-1, err)
	}
	for _, n := range repaired {
		block := at + nvmf.Bytes(n)*blockSize
		fs.logf("state checkpoint %d: the block at byte %d of the partition was damaged, and is repaired", h.sequence, block)
		fs.repair = append(fs.repair, repair{block, framed[n*blockSize : (n+1)*blockSize]})
	}
	return state, nil
}

// readMarking reads whole blocks, one by one if the device cannot read all of them. A block that it
// cannot read becomes all ones, for which no checksum matches.
func (fs *FS) readMarking(at nvmf.Bytes, buf []byte) error {
	err := fs.readBlocks(fs.g.lbaOf(at), buf)
	if !unreadable(err) {
		return err
	}
	for off := 0; off < len(buf); off += blockSize {
		block := buf[off : off+blockSize]
		err := fs.readBlocks(fs.g.lbaOf(at+nvmf.Bytes(off)), block)
		if unreadable(err) {
			fs.logf("%v", err)
			for i := range block {
				block[i] = 0xff
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// unreadable reports whether the device reports damaged data (Media and Data Integrity Errors).
func unreadable(err error) bool {
	var s *nvmf.StatusError
	return errors.As(err, &s) && s.SCT == 2
}

// repair is a damaged block that is written again when the partition is taken over.
type repair struct {
	at   nvmf.Bytes // in the segment
	data []byte
}

// media returns the functions by which the log's recovery uses the file system.
func (fs *FS) media() oplog.Media {
	return oplog.Media{
		ReadPages: func(pos uint64, n int, buf []byte) error {
			return fs.readMarking(logOffset+nvmf.Bytes(pos)*2*oplog.PageSize, buf)
		},
		Verify: fs.landed,
		Apply:  func(r *oplog.Record) error { return fs.tree.apply(r, nil) },
		Reset:  fs.readStateAgain,
	}
}

// readStateAgain is readState in the middle of a recovery. The log does not continue a newer state
// than the one that the recovery began with: a read-only mount fails then, and has to be repeated.
func (fs *FS) readStateAgain() error {
	before := fs.ckpt.header
	if err := fs.readState(); err != nil {
		return err
	}
	if fs.ckpt.header != before {
		return fmt.Errorf("the writer has written a state since the log was read: %w", ErrCorrupt)
	}
	return nil
}

// landed reports whether units [first, first+count) of a Write record are on the media. Units whose
// hugeblock the tree does not map any more do not count: a flush has freed the hugeblock, and it
// may have been written again. Without data checksums the record was written after its data.
func (fs *FS) landed(r *oplog.Record, first, count int) (bool, error) {
	g := fs.g
	if !g.sums {
		return true, nil
	}
	end := nvmf.Bytes(r.End)
	if end > nvmf.Bytes(g.blocks)*g.hugeblock || nvmf.Bytes(r.Phys)*g.hugeblock+end > nvmf.Bytes(g.blocks)*g.hugeblock {
		return false, fmt.Errorf("run of %d bytes at hugeblock %d does not exist: %w", end, r.Phys, oplog.ErrRecord)
	}
	const batch = 64 // units
	buf := make([]byte, min(batch, count)*int(g.unit))
	for first, last := first, first+count; first < last; {
		start := nvmf.Bytes(int(r.FirstUnit)+first) * g.unit
		if start >= end {
			return false, fmt.Errorf("checksums beyond the end of the run: %w", oplog.ErrRecord)
		}
		n := 0
		for n < min(batch, last-first) && fs.maps(r, int(r.FirstUnit)+first+n) {
			n++
		}
		if n == 0 {
			first++
			continue
		}
		stop := min(start+nvmf.Bytes(n)*g.unit, end)
		b := buf[:(stop - start).AlignUp(g.lba)]
		err := fs.readBlocks(g.lbaOf(g.dataOffset(Hugeblock(r.Phys))+start), b)
		if unreadable(err) {
			return false, nil // a write that a crash cut short may leave a block that cannot be read
		}
		if err != nil {
			return false, err
		}
		b = b[:stop-start]
		for i := range n {
			u := b[min(len(b), i*int(g.unit)):min(len(b), (i+1)*int(g.unit))]
			if checksum(u) != r.CRCs[first+i] {
				return false, nil
			}
		}
		first += n
	}
	return true, nil
}

// maps reports whether the tree still maps a unit of r to the hugeblock that r names.
func (fs *FS) maps(r *oplog.Record, unit int) bool {
	in := fs.tree.inodes.get(Ino(r.Ino))
	if in == nil || in.nlink == 0 {
		return false
	}
	n := Hugeblock(nvmf.Bytes(unit) * fs.g.unit / fs.g.hugeblock)
	h := Hugeblock(r.File) + n
	x := in.extents.lookup(h)
	return x != nil && x.phys+(h-x.file) == Hugeblock(r.Phys)+n
}

// dropNameless forgets inodes without a name: they were open when their last name was removed, or
// were freed at once. Those in keep are still open.
func (t *tree) dropNameless(keep ...Ino) {
	for in := range t.inodes.all() {
		if in.nlink == 0 && !slices.Contains(keep, in.ino) {
			t.forget(in, nil)
		}
	}
}

// fillPool puts all hugeblocks that no file maps into the pool.
func (fs *FS) fillPool() error {
	var used []uint64 // start and count of runs in one number, which is sorted quickly
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			used = append(used, uint64(x.phys)<<32|uint64(x.count))
		}
	}
	slices.Sort(used)
	at := Hugeblock(0)
	for _, u := range used {
		r := run{Hugeblock(u >> 32), Hugeblock(u)}
		if r.start < at {
			return fmt.Errorf("hugeblock %d belongs to two files: %w", r.start, ErrCorrupt)
		}
		fs.pool.putLast(run{at, r.start - at})
		at = r.start + r.count
	}
	if at > fs.g.usable {
		return fmt.Errorf("hugeblock %d of a file lies behind the end of the partition: %w", at-1, ErrCorrupt)
	}
	fs.pool.putLast(run{at, fs.g.usable - at})
	return nil
}

// avoidLast excludes from writing the blocks that the last commands of the previous writer may
// still change: the end of the log, the area of the next state, hugeblocks that are half-filled or
// reserved, and the free ones that the writer was likely to allocate next.
//
// Only a limited number of free ones is excluded: a partition with files at its end cannot be made
// shorter (Shrink).
func (fs *FS) avoidLast() {
	fs.log.Suspect()
	if fs.late == LateAny {
		fs.ckpt.lost[1-fs.ckpt.header.area] = time.Now()
	}
	fs.pool.rotate(Hugeblock(fs.g.avoided() / fs.g.hugeblock))
	fs.pool.freshFirst = true
	for in := range fs.tree.inodes.all() {
		for x := range in.extents.all() {
			if x.reserved() || x.covered%fs.g.hugeblock != 0 {
				x.frozen = true
			}
		}
	}
}

// avoided is the free space that avoidLast excludes: more than a process has in flight, mostly many
// times as much, but so little that half of the partition can still be given to others.
func (g *geometry) avoided() nvmf.Bytes {
	return min(256*nvmf.MiB, max(2*maxBatch, g.formatted/8))
}

// takeOver seals the log, and then repairs damaged copies. Only the claim is written before.
func (fs *FS) takeOver() error {
	if mutant.On(mutant.NoSeal) {
		return nil
	}
	if fs.late > LateNone {
		fs.avoidLast()
	}
	err := fs.seal()
	if err == nil {
		err = fs.sync()
	}
	if err != nil {
		return fmt.Errorf("sealing the log: %w", err)
	}
	for _, r := range fs.repair {
		if err := fs.restore(r.at, r.data); err != nil {
			return fmt.Errorf("repairing byte %d: %w", r.at, err)
		}
	}
	fs.repair = nil
	err = fs.repairHeaders()
	fs.silentSince = time.Time{}
	return err
}

// seal makes the recovered state the newest one. A connection that is lost from here on does not
// fail the mount: another mount could not know which commands of this one may still be executed.
func (fs *FS) seal() error {
	for {
		prep, err := fs.log.Seal()
		if err == nil {
			err = fs.run(prep)
		}
		if err == nil {
			err = fs.run(fs.log.Commit())
		}
		if err == nil {
			fs.log.Settled()
			return nil
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// restore writes data at an offset of the segment, and repeats the write after a lost connection.
func (fs *FS) restore(at nvmf.Bytes, data []byte) error {
	for {
		err := fs.transfer(nvmf.Write, fs.g.lbaOf(at), data, true)
		if !lost(err) {
			return err
		}
		if err = fs.reconnect(err); err != nil {
			return err
		}
	}
}

// repairHeaders writes the current state header to both slots, if a crash or damage has left them
// different.
func (fs *FS) repairHeaders() error {
	want := make([]byte, blockSize)
	fs.ckpt.header.encode(want, fs.g.fs)
	got := make([]byte, blockSize)
	for slot := range 2 {
		at := headerOffset + nvmf.Bytes(slot)*blockSize
		if err := fs.readBlocks(fs.g.lbaOf(at), got); err == nil && string(got) == string(want) {
			continue
		}
		if err := fs.restore(at, want); err != nil {
			return err
		}
	}
	return nil
}
