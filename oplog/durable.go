package oplog

import (
	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// Mirror returns commands that put the tail's records into the other slot of
// its page, with an empty pending list; none if they are there, or may not be
// put there (Prior: take it after Sync). Then Exposed says whether a page has to
// be started instead: Begin(0), Commit. The caller submits them, waits, and
// calls Settled, Failed or Lost as for a group.
func (l *Log) Mirror() []*nvmf.Command {
	if l.mirrored || l.final || l.slot < 0 || l.lostSlot || mutant.On(mutant.NoMirror) {
		return nil
	}
	l.newPage, l.mirror = 0, true
	l.next.copyRecords(l.cur)
	return l.Commit()
}

// Flushed says that a Flush has completed after everything up to the tail had
// settled: the tail is durable, and the next record starts a new page.
func (l *Log) Flushed() {
	if l.g.Volatile && l.durable != l.tail.page {
		l.durable, l.roll = l.tail.page, true
	}
}

// Unflushed reports whether anything settled is not known to be durable.
func (l *Log) Unflushed() bool { return l.g.Volatile && l.durable != l.tail.page }

// Unmarked reports whether no image on the media says that the tail is durable.
// As long as that is so recovery has to verify its data, and cannot tell
// damage from a write that was not finished.
func (l *Log) Unmarked() bool {
	return l.g.Volatile && l.durable == l.tail.page && l.marked != l.durable && l.slot >= 0 && !mutant.On(mutant.NoMark)
}

// Mark is Mirror for a device with a volatile write cache: after Flushed it puts
// an image with the tail's records into the other slot that says that its page
// is durable, durably. Where that slot may not be written it returns none, and
// the image of a page that is started does as well: Begin(0), CommitMark.
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

// Exposed reports whether damage to what Sync took care of could be taken for
// a group that was not finished, or for a page that was not written: the other
// slot of the tail's page may not be written, nor has a page been started since.
func (l *Log) Exposed() bool {
	if l.g.Volatile {
		return l.Unmarked()
	}
	return !l.mirrored && l.slot >= 0 && (l.final || l.lostSlot) && !mutant.On(mutant.NoMirror)
}
