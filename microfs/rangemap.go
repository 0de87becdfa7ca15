package microfs

import (
	"iter"
	"slices"
)

// maxRanges is the largest number of ranges in a list of a rangeMap: large enough that there are
// few lists, small enough that moving half of one costs less than a log record does.
const maxRanges = 128

// rangeMap holds the ranges of one file, in order of their offsets, not overlapping. They lie in
// lists, as extents do (extentMap). A nil map is an empty map.
//
// Pointers and positions are valid until the next change.
type rangeMap struct {
	lists  [][]Range // none is empty
	count  int
	placed int64 // sum of the lengths
}

// rangePos is the place of a range; the one past the last is rangePos{len(lists), 0}.
type rangePos struct{ list, index int }

func (m *rangeMap) len() int {
	if m == nil {
		return 0
	}
	return m.count
}

// bytes returns the sum of the lengths of the ranges.
func (m *rangeMap) bytes() int64 {
	if m == nil {
		return 0
	}
	return m.placed
}

// find returns the first range that ends behind off.
func (m *rangeMap) find(off int64) rangePos {
	if m == nil {
		return rangePos{}
	}
	byEnd := func(r Range, off int64) int {
		if r.End() > off {
			return 1
		}
		return -1
	}
	n, _ := slices.BinarySearchFunc(m.lists, off, func(list []Range, off int64) int { return byEnd(list[len(list)-1], off) })
	if n == len(m.lists) {
		return rangePos{n, 0}
	}
	i, _ := slices.BinarySearchFunc(m.lists[n], off, byEnd)
	return rangePos{n, i}
}

// at returns the range at p, nil past the last.
func (m *rangeMap) at(p rangePos) *Range {
	if m == nil || p.list == len(m.lists) {
		return nil
	}
	return &m.lists[p.list][p.index]
}

func (m *rangeMap) next(p rangePos) rangePos {
	if p.index++; p.index == len(m.lists[p.list]) {
		return rangePos{p.list + 1, 0}
	}
	return p
}

// before returns the position before p, or false if p is the first position.
func (m *rangeMap) before(p rangePos) (rangePos, bool) {
	switch {
	case p.index > 0:
		return rangePos{p.list, p.index - 1}, true
	case p.list > 0:
		return rangePos{p.list - 1, len(m.lists[p.list-1]) - 1}, true
	}
	return p, false
}

// all goes through the ranges in order.
func (m *rangeMap) all() iter.Seq[Range] {
	return func(yield func(Range) bool) {
		if m == nil {
			return
		}
		for _, list := range m.lists {
			for _, r := range list {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// meets reports whether a range overlaps [off, end).
func (m *rangeMap) meets(off, end int64) bool {
	r := m.at(m.find(off))
	return r != nil && r.Off < end
}

// cover reports whether ranges cover all of [off, end).
func (m *rangeMap) cover(off, end int64) bool {
	for p := m.find(off); off < end; p = m.next(p) {
		r := m.at(p)
		if r == nil || r.Off > off {
			return false
		}
		off = r.End()
	}
	return true
}

// set adds a range, which replaces what ranges had there, and joins it to neighbours that it
// continues.
func (m *rangeMap) set(r Range) {
	m.drop(r.Off, r.End())
	p := m.find(r.Off)
	if q, ok := m.before(p); ok && goesOn(m.at(q), &r) {
		r.Off, r.Len = m.at(q).Off, r.End()-m.at(q).Off
		p = m.remove(q)
	}
	if next := m.at(p); next != nil && goesOn(&r, next) {
		r.Len = next.End() - r.Off
		p = m.remove(p)
	}
	m.insert(p, r)
}

// goesOn reports whether next continues r, in the same partition.
func goesOn(r, next *Range) bool {
	return r.End() == next.Off && r.Partition == next.Partition && r.Cut == next.Cut
}

// drop removes [off, end) from the ranges.
func (m *rangeMap) drop(off, end int64) {
	for p := m.find(off); ; {
		r := m.at(p)
		if r == nil || r.Off >= end {
			return
		}
		left, right := *r, *r
		left.Len = off - r.Off
		right.Off, right.Len = end, r.End()-end
		switch {
		case left.Len > 0 && right.Len > 0:
			m.resize(p, left)
			m.insert(m.next(p), right)
			return
		case left.Len > 0:
			m.resize(p, left)
			p = m.next(p)
		case right.Len > 0:
			m.resize(p, right)
			return
		default:
			p = m.remove(p)
		}
	}
}

// resize replaces the range at p by r, a part of it.
func (m *rangeMap) resize(p rangePos, r Range) {
	m.placed += r.Len - m.at(p).Len
	*m.at(p) = r
}

// push adds r behind the last range.
func (m *rangeMap) push(r Range) { m.insert(rangePos{len(m.lists), 0}, r) }

// insert inserts r before p.
func (m *rangeMap) insert(p rangePos, r Range) {
	m.count++
	m.placed += r.Len
	if p.index == 0 && p.list > 0 && (p.list == len(m.lists) || len(m.lists[p.list-1]) < maxRanges) {
		p = rangePos{p.list - 1, len(m.lists[p.list-1])}
	}
	switch {
	case len(m.lists) == 0, p == rangePos{len(m.lists) - 1, maxRanges}:
		m.lists = append(m.lists, []Range{r}) // the lists before stay full
		return
	case len(m.lists[p.list]) == maxRanges:
		p = m.split(p)
	}
	m.lists[p.list] = slices.Insert(m.lists[p.list], p.index, r)
}

// split divides the full list that p lies in, and returns the new position of p.
func (m *rangeMap) split(p rangePos) rangePos {
	const half = maxRanges / 2
	list := m.lists[p.list]
	m.lists = slices.Insert(m.lists, p.list+1, slices.Clone(list[half:]))
	m.lists[p.list] = slices.Clone(list[:half])
	if p.index > half {
		return rangePos{p.list + 1, p.index - half}
	}
	return p
}

// remove removes the range at p and returns the position of the next one.
func (m *rangeMap) remove(p rangePos) rangePos {
	m.count--
	m.placed -= m.at(p).Len
	list := slices.Delete(m.lists[p.list], p.index, p.index+1)
	switch {
	case len(list) == 0:
		m.lists = slices.Delete(m.lists, p.list, p.list+1)
		return rangePos{p.list, 0}
	case p.list+1 < len(m.lists) && len(list)+len(m.lists[p.list+1]) <= maxRanges/2:
		list = append(list, m.lists[p.list+1]...)
		m.lists = slices.Delete(m.lists, p.list+1, p.list+2)
	}
	m.lists[p.list] = list
	if p.index == len(list) {
		return rangePos{p.list + 1, 0}
	}
	return p
}
