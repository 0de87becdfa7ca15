package oplog

import (
	"errors"
	"fmt"

	"nvmecr/nvmf"
)

// SlotState is what a slot of a log page holds.
type SlotState int

// The states of a slot.
const (
	// SlotIntact: an intact image of the page, though not necessarily the one that recovery takes.
	SlotIntact SlotState = iota
	// SlotUnused: zeros, or an image of an earlier round of the ring.
	SlotUnused
	// SlotDamaged: anything else. A write that a crash has cut short looks like damage, too.
	SlotDamaged
)

// A PageReport says what is on the media of one page of the log.
type PageReport struct {
	Page  uint64
	LBA   [2]nvmf.LBA
	Slots [2]SlotState
	Last  bool // the newest page
}

// Inspect reports on each of the pages that Recover replayed to make l, from the newest back to
// prior. It reads these pages again, and fails with ErrDamaged if one of them does not hold the same
// image any more: then a writer has changed the log since.
func (l *Log) Inspect(prior Prior, m Media, report func(PageReport)) error {
	if l.slot < 0 {
		return nil
	}
	rv := &recovery{g: &l.g, m: &m}
	for want, last := l.tail, true; want.page > prior.Page; last = false {
		n, r, err := rv.inspect(want.page)
		if err != nil {
			return err
		}
		im := n.find(want)
		if im == nil || im.prev.page >= want.page {
			return fmt.Errorf("page %d changed while it was inspected: %w", want.page, ErrDamaged)
		}
		r.Last = last
		report(r)
		want = im.prev
	}
	return nil
}

// Survey reports on the pages of a log that cannot be recovered: those with a
// damaged slot between prior and the highest page that is intact.
func Survey(g Geometry, prior Prior, m Media, report func(PageReport)) error {
	rv := &recovery{g: &g, m: &m}
	var suspects []PageReport
	for page := prior.Page + 1; page <= prior.Page+g.Pages; page++ {
		n, r, err := rv.inspect(page)
		if err != nil {
			return err
		}
		if n.torn {
			suspects = append(suspects, r)
		}
		if len(n.images) == 0 {
			continue
		}
		for _, s := range suspects {
			report(s)
		}
		suspects = suspects[:0]
	}
	return nil
}

// inspect loads a page and makes the report on its slots.
func (rv *recovery) inspect(page uint64) (*node, PageReport, error) {
	n, err := rv.load(page)
	if err != nil {
		return nil, PageReport{}, err
	}
	r, pos := PageReport{Page: page}, page%rv.g.Pages
	if err := rv.fill(pos); err != nil {
		return nil, r, err
	}
	for slot := range 2 {
		at := (int(pos-rv.bufPos)*2 + slot) * PageSize
		_, err := decodeImage(rv.buf[at:at+PageSize], rv.g.FS, page, slot)
		r.LBA[slot] = rv.g.lba(page, slot)
		switch {
		case errors.Is(err, errImage):
			r.Slots[slot] = SlotDamaged
		case err != nil:
			r.Slots[slot] = SlotUnused
		}
	}
	return n, r, nil
}
