package oplog

import (
	"encoding/binary"

	"nvmecr/internal/mutant"
)

// windowSize is the number of Write records that may still grow: a rank that writes several files
// in turn has one for each of them.
const windowSize = 16

// Append adds a record to the group that Begin started. pending says that the
// data of a Write is submitted together with the group.
func (l *Log) Append(r *Record, pending bool) error {
	if mutant.On(mutant.NoPending) {
		pending = false
	}
	l.data = l.data || r.Type == Write && l.g.Volatile
	if r.Type == Write && !l.g.NoCoalesce {
		if off := l.next.grow(&l.g, r); off != 0 {
			if pending {
				l.next.addPending(r, off)
			}
			return nil
		}
	}
	if r.Len() > l.next.free() {
		return ErrTooLarge
	}
	off := offRecords + l.next.records
	l.next.records += r.encode(l.next.raw[off:offCRC])
	if r.Type != Write && !mutant.On(mutant.GrowPast) {
		l.next.window = l.next.window[:0]
	}
	if r.Type != Write {
		return nil
	}
	l.next.open(r.Ino, off)
	if pending {
		l.next.addPending(r, off)
	}
	return nil
}

// maxDeferred bounds the bytes of deferred records: the largest record still
// fits a page together with them.
const maxDeferred = 8 * headerSize

// Defer adds a record without data to the next group that Begin starts, in front
// of the records of that group. Until the group has settled, a crash loses the
// deferred record. Defer returns false, and does nothing, where maxDeferred bytes
// of records are deferred already.
func (l *Log) Defer(r *Record) bool {
	n := len(l.deferred)
	if n+r.Len() > maxDeferred {
		return false
	}
	l.deferred = l.deferred[:n+r.Len()]
	r.encode(l.deferred[n:])
	return true
}

// Deferred reports whether a record waits for the next group.
func (l *Log) Deferred() bool { return len(l.deferred) > 0 }

// Capacity returns how many bytes of records and pending entries a group can
// have: the constant Capacity, less the deferred records.
func (l *Log) Capacity() int { return Capacity - len(l.deferred) }

// takeDeferred makes the deferred records part of the group.
func (l *Log) takeDeferred() {
	b := l.next
	if l.taken = len(l.deferred); l.taken > 0 {
		b.records += copy(b.raw[offRecords+b.records:], l.deferred)
		b.window = b.window[:0]
	}
}

// open makes the Write record at off the one that later writes of its inode may extend.
func (b *pageBuffer) open(ino uint64, off int) {
	for i := range b.window {
		if b.window[i].ino == ino {
			b.window[i].off = off
			return
		}
	}
	if len(b.window) == windowSize {
		copy(b.window, b.window[1:])
		b.window = b.window[:windowSize-1]
	}
	b.window = append(b.window, openRecord{ino, off})
}

// grow extends the newest record of r's inode by r, if r continues it, and returns that record's
// offset, or 0.
//
// r continues the record if three things hold. Both map the file to the media at the same distance.
// There is no gap between them. The CRCs of r begin with the record's last unit or directly behind
// it.
func (b *pageBuffer) grow(g *Geometry, r *Record) int {
	off := 0
	for _, w := range b.window {
		if w.ino == r.Ino {
			off = w.off
		}
	}
	if off == 0 {
		return 0
	}
	le := binary.LittleEndian
	rec := b.raw[off:]
	length := int(le.Uint16(rec[2:]))
	first := uint64(le.Uint32(rec[4:]))
	file, phys := le.Uint32(rec[24:]), le.Uint32(rec[28:])
	if r.File < file || r.Phys < phys || r.File-file != r.Phys-phys {
		return 0
	}
	ahead := uint64(r.File-file) * uint64(g.Hugeblock)
	at := ahead/uint64(g.Unit) + uint64(r.FirstUnit) // r's first unit, counted from file
	have := (le.Uint64(rec[32:]) + uint64(g.Unit) - 1) / uint64(g.Unit)
	if end := le.Uint64(rec[32:]); ahead > end || ahead+r.End <= end || at < first || at > have || at+1 < have {
		return 0
	}
	more := 0
	if len(r.CRCs) > 0 {
		more = int(at-first)*8 + writeSize + 8*len(r.CRCs) - length
	}
	if more > b.free() {
		return 0
	}
	if len(r.CRCs) > 0 { // without checksums a record may cover any length
		b.insert(off+length, more)
		putCRCs(rec[writeSize+int(at-first)*8:], r.CRCs)
	}
	le.PutUint16(rec[2:], uint16(length+more))
	le.PutUint64(rec[16:], uint64(r.Time))
	le.PutUint64(rec[32:], ahead+r.End)
	return off
}

// insert makes space for n bytes at offset at of the image. It moves the records from there on, and
// adjusts the offsets that the window and the pending list have of them.
func (b *pageBuffer) insert(at, n int) {
	if n == 0 {
		return
	}
	end := offRecords + b.records
	copy(b.raw[at+n:end+n], b.raw[at:end])
	b.records += n
	for i := range b.window {
		if b.window[i].off >= at {
			b.window[i].off += n
		}
	}
	for i := range b.pending {
		if int(b.pending[i].off) >= at {
			b.pending[i].off += uint16(n)
		}
	}
}

// addPending adds the units of r to the pending list. They are the last units of the record at off.
func (b *pageBuffer) addPending(r *Record, off int) {
	have := (int(binary.LittleEndian.Uint16(b.raw[off+2:])) - writeSize) / 8
	p := pending{off: uint16(off), first: uint16(have - len(r.CRCs)), count: uint16(len(r.CRCs))}
	b.pending = append(b.pending, p)
}
