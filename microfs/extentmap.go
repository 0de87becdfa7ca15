package microfs

import (
	"iter"
	"slices"
)

// maxChunk is the largest number of extents in a chunk: large enough that the slice of chunks stays
// short, small enough that moving half a chunk costs less than a log record does.
const maxChunk = 128

// extentMap holds the extents of one file, in the order of their hugeblocks in the file, not
// overlapping. They lie in chunks, so that a random overwrite of a file of a million extents moves
// a few KiB at most. A file that was written in sequence has one chunk of one extent.
//
// A nil map is an empty map.
//
// Pointers and positions are valid until the next insert or remove.
type extentMap struct {
	chunks []chunk  // none is empty
	sums   sumTable // of the covered units; empty without data checksums
}

// chunk holds consecutive extents.
type chunk struct {
	first Hugeblock // list[0].file: find reads only these, which lie together
	list  []extent
}

func (c *chunk) last() *extent { return &c.list[len(c.list)-1] }

func (c *chunk) set(list []extent) { c.first, c.list = list[0].file, list }

// extentPos is the place of an extent; the one past the last is extentPos{len(chunks), 0}.
type extentPos struct{ chunk, index int }

// find returns the first extent that ends behind hugeblock h.
func (m *extentMap) find(h Hugeblock) extentPos {
	if m == nil {
		return extentPos{}
	}
	n := len(m.chunks)
	if n == 0 || m.chunks[n-1].last().end() <= h {
		return extentPos{n, 0} // where most writes go
	}
	c, after := 0, n
	for after-c > 1 {
		if mid := (c + after) / 2; m.chunks[mid].first <= h {
			c = mid
		} else {
			after = mid
		}
	}
	list := m.chunks[c].list
	i, end := 0, len(list)
	for i < end {
		if mid := (i + end) / 2; list[mid].end() > h {
			end = mid
		} else {
			i = mid + 1
		}
	}
	return m.behind(extentPos{c, i})
}

// behind returns s, or the start of the next chunk if s is past the last
// extent of one.
func (m *extentMap) behind(s extentPos) extentPos {
	if s.chunk < len(m.chunks) && s.index == len(m.chunks[s.chunk].list) {
		return extentPos{s.chunk + 1, 0}
	}
	return s
}

func (m *extentMap) next(s extentPos) extentPos { return m.behind(extentPos{s.chunk, s.index + 1}) }

// at returns the extent at s, nil past the last.
func (m *extentMap) at(s extentPos) *extent {
	if m == nil || s.chunk == len(m.chunks) {
		return nil
	}
	return &m.chunks[s.chunk].list[s.index]
}

// before returns the extent before s, nil before the first.
func (m *extentMap) before(s extentPos) *extent {
	switch {
	case s.index > 0:
		return &m.chunks[s.chunk].list[s.index-1]
	case s.chunk > 0:
		return m.chunks[s.chunk-1].last()
	}
	return nil
}

// last returns the last extent, nil if there is none.
func (m *extentMap) last() *extent {
	if m == nil {
		return nil
	}
	return m.before(extentPos{len(m.chunks), 0})
}

// all goes through the extents in order.
func (m *extentMap) all() iter.Seq[*extent] {
	return func(yield func(*extent) bool) {
		if m == nil {
			return
		}
		for c := range m.chunks {
			for i := range m.chunks[c].list {
				if !yield(&m.chunks[c].list[i]) {
					return
				}
			}
		}
	}
}

func (m *extentMap) len() (n int) {
	if m == nil {
		return 0
	}
	for c := range m.chunks {
		n += len(m.chunks[c].list)
	}
	return n
}

// cutSums removes the checksums from unit on.
func (m *extentMap) cutSums(unit uint64) {
	if m != nil {
		m.sums.cut(unit)
	}
}

// push adds x behind the last extent.
func (m *extentMap) push(x extent) { m.insert(extentPos{len(m.chunks), 0}, x) }

// replace replaces the extent at s by x.
func (m *extentMap) replace(s extentPos, x extent) {
	c := &m.chunks[s.chunk]
	c.list[s.index] = x
	c.first = c.list[0].file
}

// insert inserts x before s.
func (m *extentMap) insert(s extentPos, x extent) {
	n := len(m.chunks)
	if s.index == 0 && s.chunk > 0 && (s.chunk == n || len(m.chunks[s.chunk-1].list) < maxChunk) {
		s = extentPos{s.chunk - 1, len(m.chunks[s.chunk-1].list)}
	}
	switch {
	case n == 0, s == extentPos{n - 1, maxChunk}:
		m.chunks = append(m.chunks, chunk{x.file, []extent{x}}) // the chunks before stay full
		return
	case len(m.chunks[s.chunk].list) == maxChunk:
		s = m.split(s)
	}
	c := &m.chunks[s.chunk]
	c.set(slices.Insert(c.list, s.index, x))
}

// split divides the full chunk that s lies in, and returns the new position of s.
func (m *extentMap) split(s extentPos) extentPos {
	const half = maxChunk / 2
	list := m.chunks[s.chunk].list
	right := append(make([]extent, 0, maxChunk), list[half:]...)
	m.chunks[s.chunk].list = slices.Delete(list, half, maxChunk)
	m.chunks = slices.Insert(m.chunks, s.chunk+1, chunk{right[0].file, right})
	if s.index > half {
		return extentPos{s.chunk + 1, s.index - half}
	}
	return s
}

// remove removes the extent at s and returns the position of the next one.
func (m *extentMap) remove(s extentPos) extentPos {
	c := &m.chunks[s.chunk]
	if len(c.list) == 1 {
		m.chunks = slices.Delete(m.chunks, s.chunk, s.chunk+1)
		return s
	}
	c.set(slices.Delete(c.list, s.index, s.index+1))
	if s.chunk+1 < len(m.chunks) && len(c.list)+len(m.chunks[s.chunk+1].list) <= maxChunk/2 {
		c.list = append(c.list, m.chunks[s.chunk+1].list...)
		m.chunks = slices.Delete(m.chunks, s.chunk+1, s.chunk+2)
	}
	return m.behind(s)
}
