package oplog

import (
	"errors"
	"fmt"

	"nvmecr/internal/mutant"
)

// ErrDamaged: the log cannot be what a crash leaves; something that had been
// acknowledged is missing.
var ErrDamaged = errors.New("operation log is damaged")

// maxNumber bounds pages, versions and generations, far from where they would
// wrap: what comes after must count as newer.
const maxNumber = 1 << 62

// Media is what Recover reads and whom it tells.
type Media struct {
	// ReadPages fills buf with both slots of n pages that follow each other
	// in the ring, the first at ring position pos.
	ReadPages func(pos uint64, n int, buf []byte) error
	// Verify reports whether the data of units [first, first+count) of the
	// Write record r (counted from its first CRC) is on the media.
	Verify func(r *Record, first, count int) (bool, error)
	// Apply replays one record.
	Apply func(r *Record) error
}

// node is a page of the chain while it is being followed.
type node struct {
	at     position
	gen    uint64
	images []*image // intact, newest first; empty for the prior state
	torn   bool     // a slot holds neither an intact image nor blanks
}

type recovery struct {
	g       *Geometry
	m       *Media
	rec     Record
	queue   []*image // final images accepted but not yet replayed
	last    *image   // last replayed
	durable uint64
	version uint64 // highest seen
	gen     uint64
	buf     []byte // cache of pages [bufPage, bufPage+bufLen)
	bufPage uint64
	bufLen  int
	// seen is what load returned for the pages of the window: each of them is
	// asked for again for every page before it.
	seen [skipWindow]*node
}

// Recover follows the log from the state that prior names, decides what its
// last settled image is, and replays every record up to it through m.Apply.
// The Log it returns is positioned there; nothing has been written. Before
// anything else is written, the commands of Seal must be.
func Recover(g Geometry, prior Prior, m Media) (*Log, error) {
	rv := &recovery{g: &g, m: &m, version: prior.Version, gen: prior.Generation}
	if max(prior.Page, prior.Version, prior.Generation) >= maxNumber {
		return nil, fmt.Errorf("the log continues page %d, version %d, generation %d, which nothing reaches: %w",
			prior.Page, prior.Version, prior.Generation, ErrDamaged)
	}
	cur := node{at: prior.position(), gen: prior.Generation}
	for {
		next, gap, err := rv.successor(&cur)
		if err != nil {
			return nil, err
		}
		if next == nil {
			return rv.finish(prior, &cur, gap)
		}
		if final := cur.find(next.images[0].prev); final != nil {
			rv.queue = append(rv.queue, final)
		}
		rv.durable = max(rv.durable, next.images[0].durable)
		if err := rv.replayThrough(rv.durable); err != nil {
			return nil, err
		}
		cur = *next
	}
}

func (n *node) find(p position) *image {
	for _, im := range n.images {
		if im.at == p {
			return im
		}
	}
	return nil
}

// names reports whether p is the node's final image, as far as it can be told.
func (n *node) names(p position) bool { return n.at == p || n.find(p) != nil }

// successor finds the page that continues cur: of those in the window that
// name one of cur's images, the one with the highest version. gap says that a
// later page exists that does not continue cur; it may know better than cur
// what is durable.
func (rv *recovery) successor(cur *node) (next *node, gap bool, err error) {
	var durable uint64
	for page := cur.at.page + 1; page <= cur.at.page+skipWindow; page++ {
		n, err := rv.load(page)
		if err != nil {
			return nil, false, err
		}
		for _, im := range n.images {
			if im.generation < cur.gen || im.at.version <= cur.at.version {
				continue // of a branch that an earlier recovery, or a failed group, dropped
			}
			if !cur.names(im.prev) {
				gap, durable = true, max(durable, im.durable)
				continue
			}
			if next == nil || im.at.version > next.images[0].at.version {
				next = n.continuing(im.prev, cur.gen)
			}
		}
	}
	if next != nil {
		return next, false, nil
	}
	rv.durable = max(rv.durable, durable)
	return nil, gap, nil
}

// continuing returns the node with only those images that name prev.
func (n *node) continuing(prev position, gen uint64) *node {
	c := &node{at: n.at, torn: n.torn}
	for _, im := range n.images {
		if im.prev == prev && im.generation >= gen {
			c.images = append(c.images, im)
			c.gen = max(c.gen, im.generation)
		}
	}
	c.at = c.images[0].at
	return c
}

// load reads and decodes both slots of a page.
func (rv *recovery) load(page uint64) (*node, error) {
	seen := &rv.seen[page%skipWindow]
	if *seen != nil && (*seen).at.page == page {
		return *seen, nil
	}
	if err := rv.fill(page); err != nil {
		return nil, err
	}
	n := &node{at: position{page: page}}
	for slot := range 2 {
		at := (int(page-rv.bufPage)*2 + slot) * PageSize
		im, err := decodeImage(rv.buf[at:at+PageSize:at+PageSize], rv.g.FS, page, slot)
		switch {
		case err == nil && max(im.at.page, im.at.version, im.generation) >= maxNumber:
			return nil, fmt.Errorf("log page %d has an image of version %d, generation %d, which nothing reaches: %w",
				page, im.at.version, im.generation, ErrDamaged)
		case err == nil:
			n.images = append(n.images, im)
			rv.version = max(rv.version, im.at.version)
			rv.gen = max(rv.gen, im.generation)
		case errors.Is(err, errImage):
			n.torn = true
		case errors.Is(err, ErrFormat):
			return nil, err
		}
	}
	if len(n.images) == 2 && n.images[0].at.version < n.images[1].at.version {
		n.images[0], n.images[1] = n.images[1], n.images[0]
	}
	*seen = n
	return n, nil
}

// chunkPages is how many pages are read at a time.
const chunkPages = 64

// fill makes page available in buf. Images keep referring to old buffers, so
// a new one is allocated for each chunk.
func (rv *recovery) fill(page uint64) error {
	if rv.bufLen > 0 && page >= rv.bufPage && page < rv.bufPage+uint64(rv.bufLen) {
		return nil
	}
	pos := page % rv.g.Pages
	n := int(min(chunkPages, rv.g.Pages-pos))
	rv.buf = make([]byte, n*2*PageSize)
	rv.bufPage, rv.bufLen = page, n
	if err := rv.m.ReadPages(pos, n, rv.buf); err != nil {
		return fmt.Errorf("log pages %d to %d: %w", page, page+uint64(n)-1, err)
	}
	return nil
}

// finish decides what the tail is, replays what is left and makes the Log.
func (rv *recovery) finish(prior Prior, tail *node, gap bool) (*Log, error) {
	if err := rv.replayThrough(rv.durable); err != nil {
		return nil, err
	}
	volatile := rv.g.Volatile
	if len(tail.images) > 0 {
		volatile = tail.images[0].volatile
	} else if !gap {
		return rv.resume(prior, 0), nil
	}
	accepted, err := rv.decide(tail, volatile, gap)
	switch {
	case err != nil:
		return nil, err
	case accepted == acceptNone:
		return rv.rollBack(prior, tail)
	case accepted == acceptPrevious:
		return rv.dropTail(prior, tail)
	}
	if err := rv.replayQueue(); err != nil {
		return nil, err
	}
	if err := rv.replay(tail.images[accepted]); err != nil {
		return nil, err
	}
	return rv.resume(prior, 0), nil
}

const (
	acceptPrevious = -1 // the final image of the page before
	acceptNone     = -2 // exactly the last durable page
)

// decide returns the index of the tail's image to accept, or acceptPrevious
// or acceptNone (rule 9).
func (rv *recovery) decide(tail *node, volatile, gap bool) (int, error) {
	if gap {
		switch {
		case volatile && rv.durable > tail.at.page: // a page that had been flushed
		case volatile && len(tail.images) > 0 && rv.durable == tail.at.page:
			return 0, nil
		case volatile:
			return acceptNone, nil
		}
		return 0, fmt.Errorf("the page after %d is missing although later ones are there: %w", tail.at.page, ErrDamaged)
	}
	if volatile {
		for _, im := range rv.queue {
			if ok, err := rv.verifyAll(im); err != nil || !ok {
				return acceptNone, err
			}
		}
	}
	for i, im := range tail.images {
		verify := rv.verifyPending
		if volatile {
			verify = rv.verifyAll
		} else if i > 0 {
			return i, nil // it had settled before the newer one was submitted
		}
		if ok, err := verify(im); err != nil || ok {
			return i, err
		}
	}
	if tail.torn || len(tail.images) > 1 {
		if volatile {
			return acceptNone, nil
		}
		return 0, fmt.Errorf("page %d: data of settled image %d does not verify: %w", tail.at.page, tail.at.version, ErrDamaged)
	}
	return acceptPrevious, nil
}

// dropTail accepts the final image of the page before the tail's.
func (rv *recovery) dropTail(prior Prior, tail *node) (*Log, error) {
	if err := rv.replayQueue(); err != nil {
		return nil, err
	}
	return rv.resume(prior, tail.at.page), nil
}

// rollBack accepts exactly the last durable page, which is the last replayed.
func (rv *recovery) rollBack(prior Prior, tail *node) (*Log, error) {
	reject := tail.at.page
	if len(rv.queue) > 0 {
		reject = rv.queue[0].at.page
	}
	return rv.resume(prior, reject), nil
}

// resume makes the Log that continues behind the last image replayed. reject
// is the first page of what was not accepted, 0 if all was.
func (rv *recovery) resume(prior Prior, reject uint64) *Log {
	l := newLog(*rv.g, prior)
	l.generation, l.version = rv.gen+1, rv.version
	if mutant.On(mutant.SameGeneration) {
		l.generation = rv.gen
	}
	l.durable = max(prior.Page, rv.durable)
	if im := rv.last; im != nil {
		l.tail, l.prev, l.slot = im.at, im.prev, im.slot
		l.nextPage = im.at.page + 1
		l.cur.load(im)
		l.mirrored, l.roll = false, l.g.Volatile && l.durable >= im.at.page
	}
	l.blanked = l.tail.page
	if reject > l.tail.page {
		l.nextPage, l.roll = reject, true
	}
	return l
}

// replayThrough replays the queued pages up to page.
func (rv *recovery) replayThrough(page uint64) error {
	n := 0
	for n < len(rv.queue) && rv.queue[n].at.page <= page {
		if err := rv.replay(rv.queue[n]); err != nil {
			return err
		}
		n++
	}
	rv.queue = rv.queue[n:]
	return nil
}

func (rv *recovery) replayQueue() error {
	for _, im := range rv.queue {
		if err := rv.replay(im); err != nil {
			return err
		}
	}
	return nil
}

func (rv *recovery) replay(im *image) error {
	rv.last = im
	return rv.each(im, rv.m.Apply)
}

// each calls f for every record of an image.
func (rv *recovery) each(im *image, f func(*Record) error) error {
	b := im.records()
	for off := 0; off < len(b); {
		n, err := rv.rec.decode(b[off:])
		if err == nil {
			err = f(&rv.rec)
		}
		if err != nil {
			return fmt.Errorf("log page %d, record at byte %d: %w", im.at.page, offRecords+off, err)
		}
		off += n
	}
	return nil
}

var errUnverified = errors.New("data does not verify")

// verifyAll checks the data of every Write record of an image.
func (rv *recovery) verifyAll(im *image) (bool, error) {
	err := rv.each(im, func(r *Record) error {
		if r.Type != Write {
			return nil
		}
		ok, err := rv.m.Verify(r, 0, len(r.CRCs))
		if err == nil && !ok {
			return errUnverified
		}
		return err
	})
	if errors.Is(err, errUnverified) {
		return false, nil
	}
	return err == nil, err
}

// verifyPending checks the data that an image lists as pending.
func (rv *recovery) verifyPending(im *image) (bool, error) {
	if mutant.On(mutant.NoVerify) {
		return true, nil
	}
	b := im.records()
	for _, p := range im.pending() {
		if int(p.off) >= len(b) {
			return false, fmt.Errorf("log page %d: pending entry beyond the records: %w", im.at.page, ErrRecord)
		}
		if _, err := rv.rec.decode(b[p.off:]); err != nil {
			return false, fmt.Errorf("log page %d, pending entry: %w", im.at.page, err)
		}
		if rv.rec.Type != Write || int(p.first)+int(p.count) > len(rv.rec.CRCs) {
			return false, fmt.Errorf("log page %d: pending entry does not fit its record: %w", im.at.page, ErrRecord)
		}
		if ok, err := rv.m.Verify(&rv.rec, int(p.first), int(p.count)); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// Survived reports whether what l has settled is on the media, after a
// reconnection to a device with a volatile write cache: it recovers from prior
// without applying anything, and looks whether that gets as far. A group that
// was in flight may be there or not.
func (l *Log) Survived(prior Prior, m Media) (bool, error) {
	m.Apply = func(*Record) error { return nil }
	found, err := Recover(l.g, prior, m)
	if errors.Is(err, ErrDamaged) || errors.Is(err, ErrRecord) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return found.tail == l.tail || found.prev == l.tail ||
		found.tail.page == l.tail.page && found.tail.version > l.tail.version, nil
}
