package wire

import (
	"math"
	"sort"
)

// Locks are what one client has locked of a file with locks of one kind: in order, without overlaps.
type Locks []Locked

// search returns the index of the first range that ends behind off.
func (l Locks) search(off int64) int {
	return sort.Search(len(l), func(i int) bool { return l[i].End > off })
}

// Conflict returns the first range that does not go with one that another client wants, or nil.
func (l Locks) Conflict(want *Locked) *Locked {
	for i := l.search(want.Start); i < len(l) && l[i].Start < want.End; i++ {
		if l[i].Write || want.Write {
			return &l[i]
		}
	}
	return nil
}

// Replaced returns the locks with hold in the place of what they have of [start, end).
func (l Locks) Replaced(start, end int64, hold []Locked) Locks {
	var next Locks
	next.add(l, 0, start)
	next.add(hold, start, end)
	next.add(l, end, math.MaxInt64)
	return next
}

// add adds what is in [start, end) of ranges, all of which are behind those that are there. One that continues the last one is one with it.
func (l *Locks) add(ranges []Locked, start, end int64) {
	for _, r := range ranges {
		r.Start, r.End = max(r.Start, start), min(r.End, end)
		n := len(*l)
		switch {
		case r.Start >= r.End:
		case n > 0 && (*l)[n-1].End == r.Start && (*l)[n-1].Write == r.Write:
			(*l)[n-1].End = r.End
		default:
			*l = append(*l, r)
		}
	}
}
