package index

import (
	"math"
	"sort"
	"syscall"

	"nvmecr/tree/wire"
)

// maxLocks is how many ranges a client may have locked: each takes memory of the index.
const maxLocks = 1 << 16

// A lockSet is what one client has locked of a file with locks of one kind: in order, without overlaps.
type lockSet []wire.Locked

// search returns the index of the first range that ends behind off.
func (l lockSet) search(off int64) int {
	return sort.Search(len(l), func(i int) bool { return l[i].End > off })
}

// conflict returns the first range that does not go with one that another client wants, or nil.
func (l lockSet) conflict(want *wire.Locked) *wire.Locked {
	for i := l.search(want.Start); i < len(l) && l[i].Start < want.End; i++ {
		if l[i].Write || want.Write {
			return &l[i]
		}
	}
	return nil
}

// replaced returns the set with hold in the place of what it has of [start, end).
func (l lockSet) replaced(start, end int64, hold []wire.Locked) lockSet {
	var next lockSet
	next.add(l, 0, start)
	next.add(hold, start, end)
	next.add(l, end, math.MaxInt64)
	return next
}

// add adds what is in [start, end) of ranges, all of which are behind those of the set. One that continues the last one is one with it.
func (l *lockSet) add(ranges []wire.Locked, start, end int64) {
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

// valid says whether a request is one.
func valid(r *wire.Lock) bool {
	at := r.Start
	for i := range r.Hold {
		h := &r.Hold[i]
		if h.Start < at || h.End <= h.Start {
			return false
		}
		at = h.End
	}
	return r.Kind <= wire.FileLock && r.Start >= 0 && at <= r.End
}

// lock answers a request of the session's client.
func (s *session) lock(r *wire.Lock) (wire.Body, error) {
	if !valid(r) {
		return nil, syscall.EINVAL
	}
	found := s.inTheWay(r)
	switch {
	case r.Test:
		return &found, nil
	case found.There:
		return nil, syscall.EAGAIN
	}
	now := s.locks[r.Kind].replaced(r.Start, r.End, r.Hold)
	more := len(now) - len(s.locks[r.Kind])
	if more > 0 && s.client.locks+more > maxLocks {
		return nil, syscall.ENOLCK
	}
	s.locks[r.Kind] = now
	s.client.locks += more
	return &found, nil
}

// inTheWay returns a lock of another client that does not go with a request, if there is one.
func (s *session) inTheWay(r *wire.Lock) wire.Conflict {
	for o := range s.file.sessions {
		if o == s {
			continue
		}
		for i := range r.Hold {
			if l := o.locks[r.Kind].conflict(&r.Hold[i]); l != nil {
				return wire.Conflict{There: true, Locked: *l, PID: o.client.pid}
			}
		}
	}
	return wire.Conflict{}
}

// unlock gives up all that the session's client has locked of the file.
func (s *session) unlock() {
	for kind := range s.locks {
		s.client.locks -= len(s.locks[kind])
		s.locks[kind] = nil
	}
}
