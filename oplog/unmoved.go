package oplog

import "hash/maphash"

// ground is what a recovery saw where the next image would be written: the
// tail's page, unless a state checkpoint includes it, and all pages that may
// come next. The hash is none of CRC-64's kind: what ends with its own checksum
// has the same one, whatever it is.
type ground struct {
	first uint64 // page; 0: not known
	seed  maphash.Seed
	sum   uint64 // of both slots of the pages from first on
}

// Unmoved reports whether a log that Recover has just found, and that nobody has
// added to through l, would be found the same now. It reads a few pages only.
// It is false, too, where Recover had to leave something out: a group that was
// in flight may have settled since without another being written.
func (l *Log) Unmoved(m Media) (bool, error) {
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
