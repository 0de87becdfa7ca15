package oplog

import "time"

// Quarantine is the time for which a block is not written after a connection was lost with a
// command for this block in flight. A controller aborts the commands of a lost association within
// the keep-alive time-out and the command quiesce time (Base Specification 2.0, section 3.9).
// Quarantine is several times that long.
const Quarantine = 3 * time.Minute

// Lost drops the group after the connection was lost with the group's commands in flight. The
// target may still execute these commands, so the pages that they write are not used for
// Quarantine.
func (l *Log) Lost() {
	if l.retired == nil {
		l.retired = make(map[uint64]time.Time)
	}
	now := time.Now()
	switch {
	case l.newPage != 0:
		l.retired[l.newPage%l.g.Pages] = now
		if l.copies() {
			l.retired[l.tail.page%l.g.Pages] = now
		}
		l.nextPage = l.newPage + 1
	case l.slot >= 0:
		l.retired[l.tail.page%l.g.Pages] = now
		l.lostSlot = true
	}
	if l.blanking != 0 {
		l.retired[l.blanking%l.g.Pages] = now
	}
	l.nextPage = l.usable(l.nextPage)
	l.roll, l.newPage, l.blanking, l.marking, l.taken = true, 0, 0, false, 0
	l.inDoubt = l.inDoubt || l.sent && !l.mirror // the caller repeats the group, and that may fail
	l.sent = false
}

// Suspect tells the log, right after Recover, that the target may still execute commands of an
// earlier writer. At most one group was in flight. It can have written to four pages: the one
// before the tail (the copy), the tail's, the next one, and the blank one after that. These pages
// are not written for Quarantine; the seal goes to the page after them.
func (l *Log) Suspect() {
	if l.retired == nil {
		l.retired = make(map[uint64]time.Time)
	}
	now := time.Now()
	for page := l.tail.page; page <= l.tail.page+2; page++ {
		l.retired[page%l.g.Pages] = now
	}
	if l.prev.page > 0 {
		l.retired[l.prev.page%l.g.Pages] = now
	}
	l.lostSlot = l.slot >= 0
	l.nextPage = l.usable(l.tail.page + 1)
	l.roll = true
}

// expire ends the retirement of positions whose Quarantine is over. The next page is then again the
// one directly behind the tail.
func (l *Log) expire() {
	n := len(l.retired)
	for pos, at := range l.retired {
		if time.Since(at) > Quarantine {
			delete(l.retired, pos)
		}
	}
	if len(l.retired) < n {
		l.nextPage, l.blanked = l.tail.page+1, l.tail.page // skipped pages may hold anything
	}
}

// usable returns the first page from page on whose position is not retired.
func (l *Log) usable(page uint64) uint64 {
	for range len(l.retired) {
		if _, bad := l.retired[page%l.g.Pages]; !bad {
			break
		}
		page++
	}
	return page
}
