package microfs

import (
	"iter"

	"github.com/google/btree"
)

// maxNames is the largest number of names in a chunk: small enough that an index in it is a byte,
// and that a search in it is short.
const maxNames = 64

// entry is a name in a directory.
type entry struct {
	dir  Ino
	name string
	ino  Ino
}

// nameTable holds the names of all directories, ordered by the number of the directory and then by
// the bytes of the name. The names lie in chunks. Names that are used one after the other are
// mostly neighbours, so the chunk that was used last is looked at first. Then most lookups and
// inserts need no search in a tree of a million names, which would take most of their time. The
// zero value is not valid. Guarded by FS.mu, for lookups too.
type nameTable struct {
	chunks *btree.BTreeG[*nameChunk]
	first  *nameChunk // always exists
	count  int
	near   [16]*nameChunk // used last; see nearby

	// The state of a search in chunks: the key, the result, and the function that stores the
	// result.
	pivot nameChunk
	found *nameChunk
	note  func(*nameChunk) bool
}

// nameChunk holds consecutive names.
type nameChunk struct {
	// low is not greater than any name in the chunk. A name belongs to the last chunk whose low is
	// not greater than the name.
	low        nameKey
	prev, next *nameChunk

	// Names stay where they are in items. order has their indices, those in use first and sorted:
	// inserting a name moves bytes, not pointers, which would concern the garbage collector.
	count int
	order [maxNames]uint8
	items [maxNames]nameItem
}

// nameKey is the sort key of a name.
type nameKey struct {
	dir  Ino
	head uint64 // the first 8 bytes of the name, as a number, which is enough to compare most names
	name string
}

type nameItem struct {
	nameKey
	ino Ino
}

func keyOf(dir Ino, name string) nameKey {
	if len(name) >= 8 {
		head := uint64(name[0])<<56 | uint64(name[1])<<48 | uint64(name[2])<<40 | uint64(name[3])<<32 |
			uint64(name[4])<<24 | uint64(name[5])<<16 | uint64(name[6])<<8 | uint64(name[7])
		return nameKey{dir, head, name}
	}
	var head uint64
	for i := range len(name) {
		head |= uint64(name[i]) << (56 - 8*i)
	}
	return nameKey{dir, head, name}
}

func (k *nameKey) less(o *nameKey) bool {
	switch {
	case k.dir != o.dir:
		return k.dir < o.dir
	case k.head != o.head:
		return k.head < o.head
	}
	return k.name < o.name
}

func newNameTable() *nameTable {
	t := &nameTable{
		chunks: btree.NewG(32, func(a, b *nameChunk) bool { return a.low.less(&b.low) }),
		first:  newNameChunk(nameKey{}),
	}
	t.chunks.ReplaceOrInsert(t.first)
	t.note = func(c *nameChunk) bool {
		t.found = c
		return false
	}
	return t
}

func newNameChunk(low nameKey) *nameChunk {
	c := &nameChunk{low: low}
	for i := range c.order {
		c.order[i] = uint8(i)
	}
	return c
}

// at returns the i-th name.
func (c *nameChunk) at(i int) *nameItem { return &c.items[c.order[i]] }

// insert inserts a name as the i-th of a chunk that is not full.
func (c *nameChunk) insert(i int, item *nameItem) {
	slot := c.order[c.count]
	copy(c.order[i+1:c.count+1], c.order[i:c.count])
	c.order[i] = slot
	c.items[slot] = *item
	c.count++
}

// remove removes the i-th name.
func (c *nameChunk) remove(i int) {
	slot := c.order[i]
	copy(c.order[i:], c.order[i+1:c.count])
	c.count--
	c.order[c.count] = slot
	c.items[slot] = nameItem{}
}

// give appends the names from the i-th on to another chunk, which has space for them.
func (c *nameChunk) give(i int, to *nameChunk) {
	for j := i; j < c.count; j++ {
		to.insert(to.count, c.at(j))
		*c.at(j) = nameItem{}
	}
	c.count = i
}

// nearby returns the cache entry for the chunk of a name. It depends on the directory and the
// beginning of the name: programs move names between directories, or from one prefix to another.
func (t *nameTable) nearby(k *nameKey) **nameChunk {
	return &t.near[(uint64(k.dir)+k.head>>56)%uint64(len(t.near))]
}

// chunk returns the chunk that a name belongs to.
func (t *nameTable) chunk(k *nameKey) *nameChunk {
	near := t.nearby(k)
	c := *near
	if c == nil || k.less(&c.low) || c.next != nil && !k.less(&c.next.low) {
		t.pivot.low = *k
		t.chunks.DescendLessOrEqual(&t.pivot, t.note)
		t.pivot.low.name = "" // so that it can be collected
		c = t.found
		*near = c
	}
	return c
}

// find returns the index of a name in the chunk, or the index at which it would be inserted.
func (c *nameChunk) find(k *nameKey) (int, bool) {
	low, high := 0, c.count
	for low < high {
		if mid := int(uint(low+high) / 2); c.at(mid).less(k) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, low < c.count && c.at(low).nameKey == *k
}

// get returns the inode of a name.
func (t *nameTable) get(dir Ino, name string) (Ino, bool) {
	k := keyOf(dir, name)
	c := t.chunk(&k)
	i, ok := c.find(&k)
	if !ok {
		return 0, false
	}
	return c.at(i).ino, true
}

// insert adds a name, unless it exists.
func (t *nameTable) insert(e entry) bool {
	item := nameItem{keyOf(e.dir, e.name), e.ino}
	c := t.chunk(&item.nameKey)
	i, ok := c.find(&item.nameKey)
	if ok {
		return false
	}
	if c.count == maxNames {
		c, i = t.split(c, i, &item.nameKey)
	}
	c.insert(i, &item)
	t.count++
	return true
}

// split divides a full chunk for a name that is to be the i-th, and returns the name's position. A
// name behind all others begins the next chunk, so names that are created in order leave full
// chunks.
func (t *nameTable) split(c *nameChunk, i int, k *nameKey) (*nameChunk, int) {
	half, low := maxNames, *k
	if i < maxNames {
		half, low = maxNames/2, c.at(maxNames/2).nameKey
	}
	n := newNameChunk(low)
	n.prev, n.next = c, c.next
	c.give(half, n)
	c.next = n
	if n.next != nil {
		n.next.prev = n
	}
	t.chunks.ReplaceOrInsert(n)
	if k.less(&low) {
		return c, i
	}
	*t.nearby(k) = n
	return n, i - half
}

// remove removes a name and returns its inode.
func (t *nameTable) remove(dir Ino, name string) (Ino, bool) {
	k := keyOf(dir, name)
	c := t.chunk(&k)
	i, ok := c.find(&k)
	if !ok {
		return 0, false
	}
	ino := c.at(i).ino
	c.remove(i)
	t.count--
	switch next := c.next; {
	case c.count == 0 && c != t.first:
		t.drop(c)
	case c.count < maxNames/4 && next != nil && c.count+next.count <= maxNames/2:
		next.give(0, c)
		t.drop(next)
	}
	return ino, true
}

// drop removes a chunk other than the first. Its names belong to the chunk before from then on.
func (t *nameTable) drop(c *nameChunk) {
	t.chunks.Delete(c)
	c.prev.next = c.next
	if c.next != nil {
		c.next.prev = c.prev
	}
	for i := range t.near {
		if t.near[i] == c {
			t.near[i] = nil
		}
	}
	t.found = nil
}

// from yields the names from a name in a directory on, including those of all later directories.
// Names may not be added or removed meanwhile.
func (t *nameTable) from(dir Ino, name string) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		k := keyOf(dir, name)
		c := t.chunk(&k)
		i, _ := c.find(&k)
		for ; c != nil; c, i = c.next, 0 {
			for ; i < c.count; i++ {
				if item := c.at(i); !yield(entry{item.dir, item.name, item.ino}) {
					return
				}
			}
		}
	}
}

// all yields all names.
func (t *nameTable) all() iter.Seq[entry] { return t.from(0, "") }
