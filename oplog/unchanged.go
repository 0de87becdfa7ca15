package oplog

import "hash/maphash"

// fingerprint is a hash of what a recovery read where the next image would be
// written: the tail's page, unless a state checkpoint includes it, and all pages
// that may come next. The hash is not a CRC-64: every image ends with its own
// CRC-64, and the CRC-64 of such an image is always the same.
type fingerprint struct {
	first uint64 // page; 0: not known
	seed  maphash.Seed
	sum   uint64 // of both slots of the pages from first on
}

// Unchanged reports whether Recover would find the same log again. The caller has
// not added to l since Recover. Unchanged reads a few pages only. It is false,
// too, where Recover rejected an image: the group that was in flight may have
// settled since, although nothing more was written.
func (l *Log) Unchanged(m Media) (bool, error) {
	if l.found.first == 0 {
		return false, nil
	}
	end := l.tail.page + 1 + skipWindow
	buf := make([]byte, (end-l.found.first)*2*PageSize)
	var h maphash.Hash
	h.SetSeed(l.found.seed)
	for page := l.found.first; page < end; {
		pos := page % l.g.Pages
		n := min(end-page, l.g.Pages-pos)
		b := buf[:n*2*PageSize]
		if err := m.ReadPages(pos, int(n), b); err != nil {
			return false, err
		}
		_, _ = h.Write(b) // never fails
		page += n
	}
	return h.Sum64() == l.found.sum, nil
}
