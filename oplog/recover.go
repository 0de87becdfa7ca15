package oplog

import (
	"errors"
	"fmt"
	"hash/maphash"

	"nvmecr/internal/mutant"
)

// ErrDamaged: no crash can leave the log in this state. A record that had been
// acknowledged is missing.
var ErrDamaged = errors.New("operation log is damaged")

// maxNumber bounds page numbers, versions and generations. It is far below the point
// where they would wrap around, because a later number must compare as the larger one.
const maxNumber = 1 << 62

// Media has the functions of the caller through which Recover reads the log and replays it.
type Media struct {
	// ReadPages fills buf with both slots of n pages that follow each other
	// in the ring, the first at ring position pos.
	ReadPages func(pos uint64, n int, buf []byte) error
	// Verify reports whether the data of units [first, first+count) of the
	// Write record r (counted from its first CRC) is on the media. Units that
	// later records have freed are left out: their blocks may be in use again.
	Verify func(r *Record, first, count int) (bool, error)
	// Apply replays one record.
	Apply func(r *Record) error
	// Reset takes back everything that was applied.
	Reset func() error
}

// node is one page of the chain of pages that recovery follows.
type node struct {
	at     position
	gen    uint64
	images []*image // intact, newest first; empty for the prior state
	torn   bool     // a slot holds neither an intact image nor blanks
	raw    []byte   // what both slots hold; nil for the prior state
}

type recovery struct {
	g       *Geometry
	m       *Media
	skip    int // number of candidates for the last settled image that did not verify
	rec     Record
	queue   []*image // final images accepted but not yet replayed
	last    *image   // last replayed
	held    []*image // images that end with records of an operation whose end has not been read yet
	durable uint64
	version uint64 // highest seen
	gen     uint64
	buf     []byte // what ring positions [bufPos, bufPos+bufLen) hold
	bufPos  uint64
	bufLen  uint64
	// seen caches the last pages that load returned: successor loads each page up to skipWindow
	// times, once for every page before it in the window.
	seen [skipWindow]*node
}

// Recover follows the log from the state that prior names, decides which image settled
// last, and replays every record up to that image through m.Apply. The Log that it
// returns continues there. Recover writes nothing. The caller must submit the commands of
// Seal before it writes anything else.
//
// Only when all records have been applied is it known which blocks are free at the end.
// Therefore Recover applies the records up to a candidate for the last image, and then
// verifies the data. If the data does not verify, Recover starts over with the next candidate.
func Recover(g Geometry, prior Prior, m Media) (*Log, error) {
	if max(prior.Page, prior.Version, prior.Generation) >= maxNumber {
		return nil, fmt.Errorf("the state checkpoint names log page %d, version %d, generation %d, higher numbers than a log can have: %w",
			prior.Page, prior.Version, prior.Generation, ErrDamaged)
	}
	for skip := 0; ; skip++ {
		rv := &recovery{g: &g, m: &m, skip: skip, version: prior.Version, gen: prior.Generation}
		l, err := rv.run(prior)
		if !errors.Is(err, errUnverified) {
			return l, err
		}
		if err := m.Reset(); err != nil {
			return nil, err
		}
	}
}

// run follows the log to its end.
func (rv *recovery) run(prior Prior) (*Log, error) {
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

// has reports whether p is the position of the node or of one of its images.
func (n *node) has(p position) bool { return n.at == p || n.find(p) != nil }

// successor finds the page that continues cur: the newest of the pages in the window that name one
// of cur's images as previous. If no page continues cur, gap reports whether a later page exists in
// the window. Such a page may name a later durable page than cur does.
func (rv *recovery) successor(cur *node) (next *node, gap bool, err error) {
	var durable uint64
	for page := cur.at.page + 1; page <= cur.at.page+skipWindow; page++ {
		n, err := rv.load(page)
		if err != nil {
			return nil, false, err
		}
		for _, im := range n.images {
			if im.generation < cur.gen || im.generation == cur.gen && im.at.version <= cur.at.version {
				continue // an image that an earlier recovery rejected, or of a group that failed
			}
			if !cur.has(im.prev) {
				gap, durable = true, max(durable, im.durable)
				continue
			}
			if next == nil || im.newer(next.images[0]) {
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

// continuing returns a copy of the node with only those images that name prev as previous.
func (n *node) continuing(prev position, gen uint64) *node {
	c := &node{at: n.at, torn: n.torn, raw: n.raw}
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
	pos := page % rv.g.Pages
	if err := rv.fill(pos); err != nil {
		return nil, err
	}
	at := int(pos-rv.bufPos) * 2 * PageSize
	n := &node{at: position{page: page}, raw: rv.buf[at : at+2*PageSize]}
	for slot := range 2 {
		at := slot * PageSize
		im, err := decodeImage(n.raw[at:at+PageSize:at+PageSize], rv.g.FS, page, slot)
		switch {
		case err == nil && max(im.at.page, im.at.version, im.generation) >= maxNumber:
			return nil, fmt.Errorf("log page %d has an image of version %d, generation %d, higher numbers than a log can have: %w",
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
	if len(n.images) == 2 && n.images[1].newer(n.images[0]) {
		n.images[0], n.images[1] = n.images[1], n.images[0]
	}
	*seen = n
	return n, nil
}

// chunkPages is how many pages are read at a time.
const chunkPages = 64

// fill makes a ring position available in buf. Decoded images refer to the buffer that
// they were read into, so each chunk gets a new buffer. A small ring is one chunk.
func (rv *recovery) fill(pos uint64) error {
	if pos >= rv.bufPos && pos < rv.bufPos+rv.bufLen {
		return nil
	}
	if rv.g.Pages <= chunkPages {
		pos = 0
	}
	n := min(chunkPages, rv.g.Pages-pos)
	rv.buf = make([]byte, n*2*PageSize)
	rv.bufPos, rv.bufLen = pos, n
	if err := rv.m.ReadPages(pos, int(n), rv.buf); err != nil {
		return fmt.Errorf("log positions %d to %d: %w", pos, pos+n-1, err)
	}
	return nil
}

// finish chooses the last settled image, replays the images that are not replayed yet, and
// makes the Log.
func (rv *recovery) finish(prior Prior, tail *node, gap bool) (*Log, error) {
	if err := rv.replayThrough(rv.durable); err != nil {
		return nil, err
	}
	volatile := rv.g.Volatile
	if len(tail.images) > 0 {
		volatile = tail.images[0].volatile
	} else if !gap {
		if rv.skip > 0 {
			return nil, fmt.Errorf("the log behind page %d has changed since it was read: %w", tail.at.page, ErrDamaged)
		}
		return rv.whole(prior, tail), nil
	}
	list, err := rv.candidates(tail, volatile, gap)
	if err != nil {
		return nil, err
	}
	if rv.skip >= len(list) {
		return nil, fmt.Errorf("page %d: data of a settled image does not verify: %w", tail.at.page, ErrDamaged)
	}
	return rv.accept(prior, tail, list[rv.skip])
}

// A candidate may be the last settled image. It is one of the images of the tail's page, or
// acceptPrevious or acceptNone.
type candidate struct {
	image   int
	pending bool // it counts if its pending data verifies
	all     bool // it counts if all data after the last durable page verifies
}

const (
	acceptPrevious = -1 // the final image of the page before
	acceptNone     = -2 // exactly the last durable page
)

// candidates lists the images that may have settled last, the most recent first (rule 9).
func (rv *recovery) candidates(tail *node, volatile, gap bool) (list []candidate, err error) {
	one := len(tail.images) == 1 && !tail.torn
	switch {
	case gap && volatile && rv.durable > tail.at.page, gap && !volatile: // a page that had been flushed
		return nil, fmt.Errorf("the page after %d is missing although later ones are there: %w", tail.at.page, ErrDamaged)
	case gap && len(tail.images) > 0 && rv.durable == tail.at.page:
		return []candidate{{}}, nil
	case gap:
		return []candidate{{image: acceptNone}}, nil
	case volatile && len(tail.images) > 0 && rv.durable == tail.at.page:
		return []candidate{{}}, nil // it had been flushed: what is missing now is damage
	case volatile:
		for i := range tail.images {
			list = append(list, candidate{image: i, all: true})
		}
		if one {
			list = append(list, candidate{image: acceptPrevious, all: true})
		}
		return append(list, candidate{image: acceptNone}), nil
	}
	list = []candidate{{pending: true}}
	switch {
	case len(tail.images) > 1: // it had settled before the newer one was submitted
		list = append(list, candidate{image: 1})
	case one:
		list = append(list, candidate{image: acceptPrevious})
	}
	return list, nil
}

// accept replays the images up to a candidate, verifies the data that the candidate requires, and
// makes the Log.
func (rv *recovery) accept(prior Prior, tail *node, c candidate) (*Log, error) {
	if c.image == acceptNone { // the last durable page is the last replayed
		reject := tail.at.page
		if len(rv.queue) > 0 {
			reject = rv.queue[0].at.page
		}
		return rv.resume(prior, reject), nil
	}
	images := rv.queue
	reject := tail.at.page
	if c.image != acceptPrevious {
		images, reject = append(images, tail.images[c.image]), 0
	}
	for _, im := range images {
		if err := rv.replay(im); err != nil {
			return nil, err
		}
	}
	for _, im := range images {
		if c.all {
			if err := rv.verifyAll(im); err != nil {
				return nil, err
			}
		}
	}
	if c.pending {
		if err := rv.verifyPending(images[len(images)-1]); err != nil {
			return nil, err
		}
	}
	if rv.skip == 0 && reject == 0 {
		return rv.whole(prior, tail), nil
	}
	return rv.resume(prior, reject), nil
}

// whole is resume for a log of which no image was rejected. A later recovery finds another state
// only if the tail's page, or a page that may come next, has been written since. l.found is a hash
// of the content of these pages.
func (rv *recovery) whole(prior Prior, tail *node) *Log {
	l := rv.resume(prior, 0)
	next := tail.at.page + 1
	l.found = fingerprint{first: next, seed: maphash.MakeSeed()}
	var h maphash.Hash
	h.SetSeed(l.found.seed)
	if tail.raw != nil {
		l.found.first--
		_, _ = h.Write(tail.raw) // never fails
	}
	for page := next; page < next+skipWindow; page++ {
		_, _ = h.Write(rv.seen[page%skipWindow].raw)
	}
	l.found.sum = h.Sum64()
	return l
}

// resume makes the Log that continues after the last image replayed. reject is the number
// of the first page whose images were rejected, 0 if none was.
func (rv *recovery) resume(prior Prior, reject uint64) *Log {
	l := newLog(*rv.g, prior)
	l.generation, l.version = rv.gen+1, rv.version
	if mutant.On(mutant.SameGeneration) {
		l.generation = rv.gen
	}
	l.durable = max(prior.Page, rv.durable)
	l.marked = l.durable
	if im := rv.last; im != nil {
		l.tail, l.prev, l.slot = im.at, im.prev, im.slot
		l.nextPage = im.at.page + 1
		l.cur.load(im)
		l.cutting = len(rv.held) > 0
		l.cutHere = l.cutting && rv.held[0] != im
		l.mirrored, l.roll = false, l.g.Volatile && l.durable >= im.at.page
		l.data = l.g.Volatile && !l.roll
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

// replay applies the records of an image. The records of an operation that goes on in the
// next image are held back until the image with the end of the operation is replayed.
func (rv *recovery) replay(im *image) error {
	rv.last = im
	if im.cut {
		rv.held = nil
	}
	whole := im.whole()
	if !im.more || whole > 0 {
		for _, h := range rv.held {
			if err := rv.eachIn(h, h.whole(), len(h.records()), rv.m.Apply); err != nil {
				return err
			}
		}
		rv.held = nil
	}
	if im.more {
		rv.held = append(rv.held, im)
	}
	return rv.eachIn(im, 0, whole, rv.m.Apply)
}

// each calls f for every record of an image.
func (rv *recovery) each(im *image, f func(*Record) error) error {
	return rv.eachIn(im, 0, len(im.records()), f)
}

// eachIn calls f for the records from byte off to byte end of an image.
func (rv *recovery) eachIn(im *image, off, end int, f func(*Record) error) error {
	for b := im.records()[:end]; off < len(b); {
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

// errUnverified: the candidate is not the image that settled last.
var errUnverified = errors.New("data does not verify")

// verify fails with errUnverified unless the data of the units is on the media.
func (rv *recovery) verify(r *Record, first, count int) error {
	ok, err := rv.m.Verify(r, first, count)
	if err == nil && !ok {
		err = errUnverified
	}
	return err
}

// verifyAll checks the data of every Write record of an image.
func (rv *recovery) verifyAll(im *image) error {
	return rv.each(im, func(r *Record) error {
		if r.Type != Write {
			return nil
		}
		return rv.verify(r, 0, len(r.CRCs))
	})
}

// verifyPending checks the data that an image lists as pending.
func (rv *recovery) verifyPending(im *image) error {
	if mutant.On(mutant.NoVerify) {
		return nil
	}
	b := im.records()
	for _, p := range im.pending() {
		if int(p.off) >= len(b) {
			return fmt.Errorf("log page %d: pending entry beyond the records: %w", im.at.page, ErrRecord)
		}
		if _, err := rv.rec.decode(b[p.off:]); err != nil {
			return fmt.Errorf("log page %d, pending entry: %w", im.at.page, err)
		}
		if rv.rec.Type != Write || int(p.first)+int(p.count) > len(rv.rec.CRCs) {
			return fmt.Errorf("log page %d: pending entry does not fit its record: %w", im.at.page, ErrRecord)
		}
		if err := rv.verify(&rv.rec, int(p.first), int(p.count)); err != nil {
			return err
		}
	}
	return nil
}

// Survived is called after a reconnection to a device with a volatile write cache. It
// reports whether everything that l has settled is still on the media. To find out it
// recovers from prior without applying any record. The recovered log may also have the
// group that was in flight when the connection was lost.
func (l *Log) Survived(prior Prior, m Media) (bool, error) {
	m.Apply = func(*Record) error { return nil }
	m.Reset = func() error { return nil }
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
