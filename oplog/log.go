package oplog

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// Geometry says where a log lies on its device, and the sizes that its records count in.
type Geometry struct {
	FS         uuid.UUID
	Start      nvmf.LBA // of slot 0 of the ring's position 0
	Pages      uint64   // in the ring, at least 4
	LBASize    nvmf.Bytes
	Unit       nvmf.Bytes // of data under one CRC
	Hugeblock  nvmf.Bytes
	Volatile   bool // the device has a volatile write cache
	NoCoalesce bool
}

// Errors of logging.
var (
	// ErrFull: no page is free; a state checkpoint must release some first.
	ErrFull = errors.New("operation log is full")
	// ErrTooLarge: the group does not fit one page.
	ErrTooLarge = errors.New("operation does not fit a log page")
	// ErrUnstable: the connection was lost so often in so short a time that too
	// few pages can be written.
	ErrUnstable = fmt.Errorf("the connection to the target is lost too often: %w", syscall.EIO)
)

// skipWindow is the largest distance, in pages, between a page and the next one:
// each lost connection skips a page. Recovery searches as many pages.
const skipWindow = 16

// Prior is the position from which a log continues: the final image that the state checkpoint
// includes, and the generation of that image. The zero value stands for a log that was never
// written.
type Prior struct {
	Page, Version, CRC uint64
	Generation         uint64
}

func (p Prior) position() position { return position{p.Page, p.Version, p.CRC} }

// A Log appends to the log of one file system. The package comment has the order of its calls.
type Log struct {
	g          Geometry
	generation uint64
	version    uint64 // highest ever used

	// The tail: the last settled image.
	cur      *pageBuffer
	tail     position
	prev     position // what the tail's page names as previous
	slot     int      // of the tail; -1: its page belongs to the state checkpoint
	mirrored bool     // both slots hold the tail's records
	lostSlot bool     // the other slot had a command in flight that was lost
	final    bool     // a state header names the tail, or is going to: no newer image on its page

	// The group being built.
	next    *pageBuffer
	newPage uint64 // number of the page it starts, 0: stays on the tail's
	image   position
	mirror  bool // the group only repeats the tail's records
	taken   int  // bytes of deferred records in the group
	sent    bool // Commit has returned its commands
	fua     bool // the group's image is durable when it has settled, also with a volatile write cache
	inDoubt bool // see InDoubt

	deferred []byte // encoded records, see Defer

	// retired has the positions of the ring that had a command in flight when a connection was
	// lost, and the time of the loss.
	retired map[uint64]time.Time

	roll     bool   // the next image starts a new page
	nextPage uint64 // number of that page
	first    uint64 // oldest page still needed
	blanked  uint64 // highest page known to be blank
	blanking uint64 // page whose blanking is in flight, 0 if none
	cutting  bool   // the tail's operation is unfinished and void (rule 10)
	cutHere  bool   // the tail's unfinished operation began on an earlier page
	durable  uint64 // last durable page (Volatile)
	marked   uint64 // last page that an image on the media names as durable (Unmarked)
	data     bool   // records since the last durable page may have data (Volatile)
	marking  bool   // the group's image names the last durable page, with FUA

	found fingerprint // zero if Recover rejected an image

	cmds [3]nvmf.Command
	iov  [3][1][]byte
	list []*nvmf.Command
}

// blank is the content of an unused page.
var blank [2 * PageSize]byte

func newLog(g Geometry, prior Prior) *Log {
	return &Log{
		deferred: make([]byte, 0, maxDeferred),
		g:        g, generation: prior.Generation, version: prior.Version,
		cur: newPageBuffer(), next: newPageBuffer(),
		tail: prior.position(), slot: -1, mirrored: true,
		roll: true, nextPage: prior.Page + 1, first: prior.Page + 1,
		blanked: prior.Page, durable: prior.Page, marked: prior.Page,
		list: make([]*nvmf.Command, 0, 3),
	}
}

// Prior returns the position for a state checkpoint of the present state. The next image starts a
// new page, because recovery follows the log from exactly the image that Prior names.
func (l *Log) Prior() Prior {
	l.roll, l.final = true, true
	return Prior{Page: l.tail.page, Version: l.tail.version, CRC: l.tail.crc, Generation: l.generation}
}

// Release frees the pages that the state checkpoint at p includes.
func (l *Log) Release(p Prior) { l.first = p.Page + 1 }

// Free returns how many more pages can be started.
func (l *Log) Free() uint64 {
	used := l.nextPage - l.first
	if used >= l.g.Pages {
		return 0
	}
	return l.g.Pages - used
}

// Generation returns the number of mounts for writing, this one included.
func (l *Log) Generation() uint64 { return l.generation }

// Begin starts a group whose records need at most need bytes, pending entries
// (8 bytes each) included. If it returns commands, the caller submits these and waits for
// them before it submits the commands of Commit.
func (l *Log) Begin(need int) ([]*nvmf.Command, error) {
	if need > l.Capacity() {
		return nil, ErrTooLarge
	}
	prep, err := l.startGroup(need + len(l.deferred))
	if err == nil {
		l.takeDeferred()
	}
	return prep, err
}

// startGroup prepares the next image for need bytes.
func (l *Log) startGroup(need int) ([]*nvmf.Command, error) {
	l.list, l.mirror = l.list[:0], false
	if !l.roll && l.cur.free()+len(l.cur.pending)*pendingSize >= need {
		l.newPage = 0
		l.next.copyRecords(l.cur)
		l.next.follow()
		return nil, nil
	}
	l.expire()
	l.nextPage = l.usable(l.nextPage)
	if l.Free() == 0 {
		return nil, ErrFull
	}
	if l.nextPage-l.tail.page > skipWindow || 2*uint64(len(l.retired)) > l.g.Pages {
		return nil, ErrUnstable
	}
	l.newPage = l.nextPage
	l.next.reset()
	l.next.cut = l.cutting
	if l.newPage <= l.blanked {
		return nil, nil
	}
	l.blanking = l.newPage
	l.list = append(l.list, l.command(0, l.newPage, 0, blank[:]))
	return l.list, nil
}

// More says, between Begin and Append, that the operation goes on in the next group. After a crash
// before the next group has settled, neither group has any effect.
func (l *Log) More() {
	l.next.more = true
	l.next.window = l.next.window[:0] // a record does not grow over the start of another operation
}

// Open reports whether the operation of the tail goes on in the next group.
func (l *Log) Open() bool { return l.cur.more }

// Finish returns commands that write the tail once more as the end of its operation. It returns
// none if the operation has ended, or if the other slot of the tail's page may not be written. The
// caller proceeds as after Mirror.
func (l *Log) Finish() []*nvmf.Command {
	if !l.cur.more || l.final || l.slot < 0 || l.lostSlot {
		return nil
	}
	l.newPage, l.mirror = 0, true
	l.next.copyRecords(l.cur)
	l.next.more = false
	return l.Commit()
}

// command fills the i-th command with a write of data to the slot of page.
func (l *Log) command(i int, page uint64, slot int, data []byte) *nvmf.Command {
	c := &l.cmds[i]
	l.iov[i][0] = data
	c.Opcode, c.FUA = nvmf.Write, false
	c.LBA = l.g.lba(page, slot)
	c.Blocks = nvmf.LBA(nvmf.Bytes(len(data)) / l.g.LBASize)
	c.Data = l.iov[i][:]
	return c
}

func (g *Geometry) lba(page uint64, slot int) nvmf.LBA {
	if mutant.On(mutant.OneSlot) {
		slot = 0
	}
	return g.Start + nvmf.LBA(page%g.Pages*2+uint64(slot))*nvmf.LBA(PageSize/g.LBASize)
}

// Commit seals the group and returns the commands that write the group's image. At the
// start of a page these include the copy of the page before and the blanking of the page
// after. The commands may be submitted together with the group's data.
func (l *Log) Commit() []*nvmf.Command {
	if l.blanking != 0 {
		l.blanked, l.blanking = l.blanking, 0
	}
	l.list = l.list[:0]
	l.version++
	l.sent, l.fua = true, !l.g.Volatile
	h := header{
		fs: l.g.FS, generation: l.generation, version: l.version,
		page: l.tail.page, prev: l.prev, durable: l.durable, volatile: l.g.Volatile,
	}
	slot := 1 - l.slot
	if l.newPage != 0 {
		h.page, h.prev, slot = l.newPage, l.tail, 0
		if !l.g.Volatile {
			h.durable = l.tail.page
		}
	} else if !l.g.Volatile {
		h.durable = l.prev.page
	}
	l.image = position{page: h.page, version: h.version, crc: l.next.seal(&h)}
	l.list = append(l.list, l.command(0, h.page, slot, l.next.raw))
	if l.newPage == 0 {
		return l.list
	}
	if l.copies() {
		l.list = append(l.list, l.command(1, l.tail.page, 1-l.slot, l.cur.raw))
	}
	if ahead := l.usable(l.newPage + 1); ahead > l.blanked && ahead-l.first < l.g.Pages {
		l.blanking = ahead
		l.list = append(l.list, l.command(2, ahead, 0, blank[:]))
	}
	return l.list
}

// copies reports whether a group that starts a page writes the tail's final
// image to the other slot, too. After Mirror both slots have its records, but
// the next page names only one of the two images.
func (l *Log) copies() bool { return l.slot >= 0 && !l.lostSlot && !mutant.On(mutant.NoCopy) }

// Settled ends the group: the commands of its image and data have completed.
func (l *Log) Settled() {
	if l.blanking != 0 {
		l.blanked, l.blanking = l.blanking, 0
	}
	l.cutting, l.cutHere = false, false
	if l.newPage != 0 {
		l.prev, l.slot, l.roll, l.lostSlot, l.final = l.tail, 0, false, false, false
		l.nextPage = l.usable(l.newPage + 1)
	} else {
		l.slot = 1 - l.slot
	}
	if l.marking {
		l.marked = l.durable
	}
	if l.cur.more && !l.next.more && l.next.records == 0 {
		l.roll = true // a record behind such an end would read as a part of the operation
	}
	l.tail, l.mirrored, l.newPage, l.marking = l.image, l.mirror, 0, false
	l.sent, l.inDoubt = false, l.inDoubt && !l.fua
	l.cur, l.next = l.next, l.cur
	l.deferred, l.taken = append(l.deferred[:0], l.deferred[l.taken:]...), 0
}

// Failed drops the group after its commands have completed, some with errors.
// Its image may be on the media; the next image overwrites it (InDoubt).
func (l *Log) Failed() {
	l.inDoubt = l.inDoubt || l.sent && !l.mirror
	l.sent = false
	if l.newPage == 0 {
		l.mirrored = false
	} else {
		l.roll = true // the next group starts a page, too: the failed image names the tail as previous
	}
	l.newPage, l.blanking, l.marking, l.taken = 0, 0, false, 0
}

// InDoubt reports whether a group that failed, or was lost with its connection,
// may be on the media as a whole, so that a recovery would replay it: no image
// has become durable since. Begin(0) and Supersede write an image over the group.
func (l *Log) InDoubt() bool { return l.inDoubt }

// Supersede is Commit for a group without records, whose image overwrites a group
// in doubt. The image is written with FUA: after a loss of a volatile cache the
// superseded group must not be found either.
func (l *Log) Supersede() []*nvmf.Command {
	cmds := l.Commit()
	cmds[0].FUA, l.fua = true, true
	return cmds
}

// Seal starts the group whose image makes the state that Recover found the newest state
// on the media. Like Begin it may return commands that must complete before those of
// Commit are submitted. In a full log the image goes to the other slot of the tail's page,
// even where the next group must start a page: nothing else is written before a state
// checkpoint has freed pages.
func (l *Log) Seal() ([]*nvmf.Command, error) {
	if l.roll && l.Free() > 0 {
		return l.Begin(0)
	}
	l.newPage, l.mirror = 0, true
	l.next.copyRecords(l.cur)
	l.next.cut = l.next.cut || l.cutHere
	return nil, nil
}

// TailRead returns the LBA and the bytes of the last settled image, for the
// check after a reconnection; ok is false if the log has none in this ring.
func (l *Log) TailRead() (lba nvmf.LBA, image []byte, ok bool) {
	if l.slot < 0 {
		return 0, nil, false
	}
	return l.g.lba(l.tail.page, l.slot), l.cur.raw, true
}
