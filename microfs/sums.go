package microfs

import (
	"slices"
	"sync"
)

// maxSums is the largest number of checksums in a page: small enough that a page of a sparse file
// wastes little memory, large enough that a large file seldom needs another page.
const maxSums = 256

// sumTable holds the checksums of a file's units, indexed by the number of the unit in the file. A
// unit keeps its place when it is written again, however its extents are cut and joined:
// overwriting allocates and moves nothing. Values of units that no extent covers are undefined. The
// zero value is an empty table.
type sumTable struct {
	pages []sumPage // sorted; no page for a hole of the file
}

// sumPage has the checksums of units at*maxSums and up, as far as they were written.
type sumPage struct {
	at   uint64
	list []uint64
}

// sumPages has full pages that are not in use.
var sumPages = sync.Pool{New: func() any { return new([maxSums]uint64) }}

// find returns the index of page at, or the index at which it would be inserted and false.
func (t *sumTable) find(at uint64) (int, bool) {
	n := len(t.pages)
	switch {
	case n == 0 || t.pages[n-1].at < at:
		return n, false
	case at < uint64(n) && t.pages[at].at == at: // in a file without holes
		return int(at), true
	}
	return slices.BinarySearchFunc(t.pages, at, func(p sumPage, at uint64) int {
		switch {
		case p.at < at:
			return -1
		case p.at > at:
			return 1
		}
		return 0
	})
}

// get returns the checksum of a unit that is covered.
func (t *sumTable) get(unit uint64) uint64 {
	if i, ok := t.find(unit / maxSums); ok {
		if list := t.pages[i].list; unit%maxSums < uint64(len(list)) {
			return list[unit%maxSums]
		}
	}
	return 0
}

// set stores the checksums of consecutive units.
func (t *sumTable) set(unit uint64, sums []uint64) {
	for len(sums) > 0 {
		i, ok := t.find(unit / maxSums)
		if !ok {
			t.pages = slices.Insert(t.pages, i, sumPage{at: unit / maxSums})
		}
		p, from := &t.pages[i], int(unit%maxSums)
		n := min(len(sums), maxSums-from)
		p.grow(from + n)
		copy(p.list[from:], sums[:n])
		sums, unit = sums[n:], unit+uint64(n)
	}
}

// grow makes space for n checksums. A page behind the first gets memory for all its checksums at once,
// since it mostly becomes full. The first page grows step by step, since many files are small.
func (p *sumPage) grow(n int) {
	switch {
	case n <= len(p.list):
		return
	case n > maxSums/2 && cap(p.list) < maxSums, p.list == nil && p.at > 0:
		whole := sumPages.Get().(*[maxSums]uint64)
		copy(whole[:], p.list)
		p.list = whole[:n]
	case n > cap(p.list):
		p.list = append(make([]uint64, 0, max(n, min(2*cap(p.list), maxSums/2))), p.list...)[:n]
	default:
		p.list = p.list[:n]
	}
}

// cut removes the checksums from unit on.
func (t *sumTable) cut(unit uint64) {
	i, ok := t.find(unit / maxSums)
	if ok && unit%maxSums > 0 {
		p := &t.pages[i]
		p.list = p.list[:min(len(p.list), int(unit%maxSums))]
		i++
	}
	for k := i; k < len(t.pages); k++ {
		if list := t.pages[k].list; cap(list) == maxSums {
			sumPages.Put((*[maxSums]uint64)(list[:maxSums]))
		}
	}
	t.pages = slices.Delete(t.pages, i, len(t.pages))
}
