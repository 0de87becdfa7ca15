package wire

import (
	"math"
	"sort"
)

// Locks are the locks of one kind that one client has on a file: in order, without overlaps.
type Locks []Locked

// search returns the index of the first range that ends behind off.
func (l Locks) search(off int64) int {
	return sort.Search(len(l), func(i int) bool { return l[i].End > off })
}

// Conflict returns the first range that conflicts with a lock wanted by another client, or nil.
func (l Locks) Conflict(want *Locked) *Locked {
	for i := l.search(want.Start); i < len(l) && l[i].Start < want.End; i++ {
		if l[i].Write || want.Write {
			return &l[i]
		}
	}
	return nil
}

// Replaced returns the locks with those in [start, end) replaced by hold.
func (l Locks) Replaced(start, end int64, hold []Locked) Locks {
	var next Locks
	next.add(l, 0, start)
	next.add(hold, start, end)
	next.add(l, end, math.MaxInt64)
	return next
}

// add appends the parts of ranges in [start, end), which are behind the present ones. A range that continues the last
// one is merged with it.
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
