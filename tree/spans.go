package tree

import (
	"slices"
	"sort"

	"nvmecr/tree/wire"
)

// A span is a part of a file.
type span struct{ off, end int64 }

// spans is a set of bytes of a file: sorted, no two of them touch.
type spans []span

// add adds [off, end). Continuing the last span, as most writes do, needs no search.
func (s *spans) add(off, end int64) {
	list := *s
	if off >= end {
		return
	}
	if n := len(list); n == 0 || off > list[n-1].end {
		*s = append(list, span{off, end})
		return
	} else if off >= list[n-1].off {
		list[n-1].end = max(list[n-1].end, end)
		return
	}
	first := list.search(off - 1) // the first that ends at off or behind it
	behind := first
	for behind < len(list) && list[behind].off <= end {
		off, end = min(off, list[behind].off), max(end, list[behind].end)
		behind++
	}
	if first < behind {
		list[first] = span{off, end}
		*s = slices.Delete(list, first+1, behind)
		return
	}
	*s = slices.Insert(list, first, span{off, end})
}

// search returns the index of the first span that ends behind off.
func (s spans) search(off int64) int {
	return sort.Search(len(s), func(i int) bool { return s[i].end > off })
}

// from returns the first span that ends behind off.
func (s spans) from(off int64) (span, bool) {
	if n := len(s); n == 0 || s[n-1].end <= off {
		return span{}, false
	}
	return s[s.search(off)], true
}

// end returns the end of the last span.
func (s spans) end() int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].end
}

// bytes returns the number of bytes.
func (s spans) bytes() (n int64) {
	for _, x := range s {
		n += x.end - x.off
	}
	return n
}

// head returns the first n spans at most.
func (s spans) head(n int) []wire.Range {
	list := make([]wire.Range, min(len(s), n))
	for i := range list {
		list[i] = wire.Range{Off: s[i].off, Len: s[i].end - s[i].off}
	}
	return list
}

// drop removes the first n spans.
func (s *spans) drop(n int) { *s = slices.Delete(*s, 0, n) }
