package microfs

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"nvmecr/internal/crc64"
	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// readAt reads into bufs from off. The device writes directly into bufs, except for units that the
// range begins or ends in: only a whole unit can be verified, so these are read into a bounce
// buffer. Other goroutines get the lock between groups of commands.
func (fs *FS) readAt(in *inode, bufs [][]byte, off int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	n := total(bufs)
	if off >= in.size || n == 0 {
		return 0, nil
	}
	n = min(n, nvmf.Bytes(in.size-off))
	fs.io.cur = cursor{bufs: bufs}
	pos, err := fs.readFrom(in, nvmf.Bytes(off), nvmf.Bytes(off)+n)
	return int(int64(pos) - off), err
}

// readFrom reads [pos, end) into the buffers of the cursor, and returns the end of what it has
// read.
func (fs *FS) readFrom(in *inode, pos, end nvmf.Bytes) (nvmf.Bytes, error) {
	cur := &fs.io.cur
	for pos < end {
		start := *cur
		next, err := fs.readGroup(in, cur, pos, end)
		if lost(err) {
			if err = fs.reconnect(err); err == nil {
				*cur = start
				continue
			}
		}
		if err != nil {
			return pos, err
		}
		pos, fs.silentSince = next, time.Time{}
		if pos == end {
			break
		}
		if err := fs.yield(); err != nil {
			return pos, err
		}
		end = min(end, nvmf.Bytes(in.size)) // the file may have been truncated
		if err := in.remoteRange(int64(pos), int64(end)); err != nil {
			return pos, err
		}
	}
	return pos, nil
}

// readRange is a part of an extent that is read: whole units from start to end.
type readRange struct {
	x           *extent
	start, end  nvmf.Bytes // in the extent; end is a unit boundary or the covered end
	first, last int        // commands
}

// readGroup reads up to maxBatch bytes from pos on.
func (fs *FS) readGroup(in *inode, cur *cursor, pos, end nvmf.Bytes) (nvmf.Bytes, error) {
	g, s := fs.g, &fs.io
	s.reset()
	end = min(end, (pos + maxBatch).AlignDown(g.unit))
	b := builder{s: s, op: nvmf.Read, size: g.lba, limit: fs.dev.Identity().OptimalTransfer}
	parts := fs.reads[:0]
	for pos < end {
		x := in.extents.at(in.extents.find(Hugeblock(pos / g.hugeblock)))
		if x == nil || nvmf.Bytes(x.file)*g.hugeblock > pos {
			next := end
			if x != nil {
				next = min(end, nvmf.Bytes(x.file)*g.hugeblock)
			}
			cur.zero(next - pos)
			pos = next
			continue
		}
		base := nvmf.Bytes(x.file) * g.hugeblock
		if pos-base >= x.covered {
			next := min(end, nvmf.Bytes(x.end())*g.hugeblock)
			cur.zero(next - pos)
			pos = next
			continue
		}
		from, to := pos-base, min(end-base, x.covered)
		st := readRange{x: x, start: from.AlignDown(g.unit), end: min(to.AlignUp(g.unit), x.covered), first: len(s.list)}
		b.lba = g.lbaOf(g.dataOffset(x.phys) + st.start)
		b.add(s.head[:from-st.start])
		cur.copyTo(&b, to-from)
		b.add(s.end[:st.end-to])
		b.fill(s.sink, st.end.AlignUp(g.lba)-st.end)
		b.close()
		st.last = len(s.list)
		parts = append(parts, st)
		pos = base + to
	}
	fs.reads = parts
	if len(s.list) == 0 {
		return pos, nil
	}
	fs.q.Submit(s.list)
	var err error
	for i := range parts {
		if verr := fs.receive(in, &parts[i]); err == nil {
			err = verr
		}
	}
	return pos, err
}

// receive waits for the commands of a readRange in turn, and verifies each while the next ones are
// in flight.
func (fs *FS) receive(in *inode, st *readRange) error {
	g, s := fs.g, &fs.io
	unit := int(st.start / g.unit)
	left := st.end - st.start
	var crc uint64
	var at nvmf.Bytes
	var err error
	for c := st.first; c < st.last; c++ {
		if werr := fs.q.Wait(s.list[c : c+1]); werr != nil && err == nil {
			err = fs.unreadable(in, st.x, s.list[c], werr)
		}
		if err != nil || !g.sums || mutant.On(mutant.NoReadCheck) {
			continue
		}
		for _, p := range s.list[c].Data {
			p = p[:min(nvmf.Bytes(len(p)), left)]
			left -= nvmf.Bytes(len(p))
			for len(p) > 0 {
				n := min(len(p), int(g.unit-at))
				crc = crc64.Update(crc, p[:n])
				at += nvmf.Bytes(n)
				p = p[n:]
				if at < g.unit && (left > 0 || len(p) > 0) {
					continue
				}
				if crc != in.extents.sums.get(st.x.unit(g, unit)) && err == nil {
					err = fs.receiveOther(in, st, unit)
				}
				unit, crc, at = unit+1, 0, 0
			}
		}
	}
	return err
}

// unreadable adds the file and its bytes to err if err says that the device could not read an
// extent.
func (fs *FS) unreadable(in *inode, x *extent, c *nvmf.Command, err error) error {
	if !unreadable(err) {
		return err
	}
	at := nvmf.Bytes(c.LBA-fs.g.lbaOf(fs.g.dataOffset(x.phys))) * fs.g.lba
	e := &DamageError{
		Ino: in.ino, Name: fs.tree.path(in.ino), LBA: c.LBA, Cause: err,
		Offset: int64(nvmf.Bytes(x.file)*fs.g.hugeblock + at), Length: int64(min(nvmf.Bytes(c.Blocks)*fs.g.lba, x.covered-at)),
	}
	return e
}

func (fs *FS) damage(in *inode, x *extent, unit int) error {
	g := fs.g
	at := nvmf.Bytes(unit) * g.unit
	e := &DamageError{
		Ino: in.ino, Name: fs.tree.path(in.ino),
		Offset: int64(nvmf.Bytes(x.file)*g.hugeblock + at), Length: int64(min(g.unit, x.covered-at)),
		LBA: g.lbaOf(g.dataOffset(x.phys) + at),
	}
	return e
}

// reportDamage logs which bytes of which file are lost. A read-only mount may find other bytes if
// the writer has freed hugeblocks of the file since the mount and used them again. That is no
// damage: the error is ESTALE, and nothing is logged.
func (fs *FS) reportDamage(err error) error {
	if err == nil {
		return nil // before damage is declared, which allocates
	}
	var damage *DamageError
	if !errors.As(err, &damage) {
		return err
	}
	if fs.opts.ReadOnly && !fs.unchanged() {
		return fmt.Errorf("%s has been changed by its writer since it was opened: %w", damage.Name, syscall.ESTALE)
	}
	fs.logf("%v", damage)
	return err
}

// zero clears the next n bytes of the application's buffers.
func (c *cursor) zero(n nvmf.Bytes) {
	for n > 0 {
		p := c.next(n)
		clear(p)
		n -= nvmf.Bytes(len(p))
	}
}

// readExtent reads verified bytes [start, start+len(buf)) of an extent into buf. start is a unit
// boundary, and the end is a unit boundary or the covered end. readExtent does not use the scratch,
// and allocates if the end is no LBA boundary.
func (fs *FS) readExtent(in *inode, x *extent, start nvmf.Bytes, buf []byte) error {
	g := fs.g
	want := nvmf.Bytes(len(buf)).AlignUp(g.lba)
	whole := buf
	if want > nvmf.Bytes(len(buf)) {
		whole = make([]byte, want)
	}
	lba := g.lbaOf(g.dataOffset(x.phys) + start)
	for {
		err := fs.readBlocks(lba, whole)
		if err == nil {
			break
		}
		if !lost(err) {
			return fs.reportDamage(fs.unreadable(in, x, &nvmf.Command{LBA: lba, Blocks: nvmf.LBA(want / g.lba)}, err))
		}
		if err = fs.reconnect(err); err != nil {
			return err
		}
	}
	copy(buf, whole)
	if !g.sums {
		return nil
	}
	for unit := int(start / g.unit); len(buf) > 0; unit++ {
		n := min(len(buf), int(g.unit))
		if crc64.Checksum(buf[:n]) != in.extents.sums.get(x.unit(g, unit)) {
			good, err := fs.otherUnit(in, x, unit)
			if lost(err) {
				if err = fs.reconnect(err); err == nil {
					return fs.readExtent(in, x, nvmf.Bytes(unit)*g.unit, buf)
				}
			}
			if err != nil {
				return fs.reportDamage(err)
			}
			copy(buf, good)
		}
		buf = buf[n:]
	}
	return nil
}

// coveredTail returns the covered bytes of the LBA that has the covered end of x's last hugeblock
// h; none if that is an LBA boundary.
func (fs *FS) coveredTail(in *inode, x *extent, h Hugeblock, covered nvmf.Bytes) ([]byte, error) {
	g := fs.g
	n := covered % g.lba
	if n == 0 {
		return nil, nil
	}
	pos := nvmf.Bytes(h)*g.hugeblock + covered - n
	if in.open != nil && in.open.tail.pos == pos && nvmf.Bytes(len(in.open.tail.data)) == n {
		return in.open.tail.data, nil
	}
	unit := covered.AlignDown(g.unit)
	buf := make([]byte, covered-unit)
	if err := fs.readExtent(in, x, nvmf.Bytes(h-x.file)*g.hugeblock+unit, buf); err != nil {
		return nil, err
	}
	last := tail{pos: pos, data: append(make([]byte, 0, g.lba), buf[nvmf.Bytes(len(buf))-n:]...)}
	if in.open != nil {
		in.open.tail = last
	}
	return last.data, nil
}
