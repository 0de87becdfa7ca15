package oplog

import (
	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// Mirror returns commands that write the tail's records to the other slot of its
// page, with an empty pending list. It returns none if that slot already has these
// records, or if the slot may not be written, for example after Prior. Where the slot
// may not be written Unprotected is true, and the caller protects the records by
// starting a new page: Begin(0), Commit. The caller submits the commands, waits, and
// calls Settled, Failed or Lost as for a group.
//
// On a device with a volatile write cache the caller calls Mirror before it sends a Flush. There
// Mirror returns none if records with data have settled since the last Flush: such records need a
// Mark after the Flush instead.
func (l *Log) Mirror() []*nvmf.Command {
	if l.mirrored || l.final || l.slot < 0 || l.lostSlot || l.data || mutant.On(mutant.NoMirror) {
		return nil
	}
	l.newPage, l.mirror = 0, true
	l.next.copyRecords(l.cur)
	return l.Commit()
}

// Flushed tells the log that a Flush has completed. The caller must have submitted the
// Flush after everything up to the tail had settled. The tail is durable now, and the
// next record starts a new page.
func (l *Log) Flushed() {
	if !l.g.Volatile || l.durable == l.tail.page {
		return
	}
	l.durable, l.roll = l.tail.page, true
	if l.mirrored { // records without data, all of them in two places
		l.marked = l.durable
	}
	l.data = false
}

// Unflushed reports whether the log has settled records that are not known to be durable.
func (l *Log) Unflushed() bool { return l.g.Volatile && l.durable != l.tail.page }

// Unmarked reports whether the tail is durable and no image on the media says so yet, although one
// is needed. Without such an image recovery has to verify the tail's data, and cannot tell damage
// from a write that a crash cut short. Records without data need no such image if both slots had
// them before the Flush (Mirror).
func (l *Log) Unmarked() bool {
	return l.g.Volatile && l.durable == l.tail.page && l.marked != l.durable && l.slot >= 0 && !mutant.On(mutant.NoMark)
}

// Mark is Mirror for a device with a volatile write cache. After Flushed it writes
// to the other slot an image with the tail's records that names its own page as
// durable, with FUA. Where that slot may not be written Mark returns none, and a
// new page names the tail's instead: Begin(0), CommitMark.
func (l *Log) Mark() []*nvmf.Command {
	if l.final || l.slot < 0 || l.lostSlot {
		return nil
	}
	l.newPage, l.mirror = 0, true
	l.next.copyRecords(l.cur)
	return l.CommitMark()
}

// CommitMark is Commit for an image that is durable when it has settled.
func (l *Log) CommitMark() []*nvmf.Command {
	cmds := l.Commit()
	cmds[0].FUA, l.fua = true, true
	l.marking = true
	return cmds
}

// Unprotected reports whether records that a Sync has written are in one slot only.
// Damage of that slot would look like a group that a crash cut short, or like a page
// that was never written. The records are in one slot where the other slot of the
// tail's page may not be written and no page has been started since.
func (l *Log) Unprotected() bool {
	if l.g.Volatile {
		return l.Unmarked()
	}
	return !l.mirrored && l.slot >= 0 && (l.final || l.lostSlot) && !mutant.On(mutant.NoMirror)
}
