package microfs

import (
	"iter"

	"github.com/google/btree"
)

// maxNames is how many names a chunk holds at most: few enough that where they
// stand in it is a byte, and that a search through them is short.
const maxNames = 64

// entry is a name in a directory.
type entry struct {
	dir  Ino
	name string
	ino  Ino
}

// nameTable holds the names of all directories in the order of their numbers,
// then of the names' bytes. They lie in chunks, for names that are used one
// after the other are mostly neighbours: then the chunk is the one that was
// used last, and no search in a tree of a million names is needed, which is
// what looking up and entering one would take most of its time for. It is not
// the zero value. Guarded by FS.mu, lookups too.
type nameTable struct {
	chunks *btree.BTreeG[*nameChunk]
	first  *nameChunk // always there
	count  int
	near   [16]*nameChunk // last used, see nearby

	// A search in chunks: what for, what was found, and what notes that.
	pivot nameChunk
	found *nameChunk
	note  func(*nameChunk) bool
}

// nameChunk is names that follow each other.
type nameChunk struct {
	// low is at most the first name that may lie here; what is not less than the
	// next chunk's lies there.
	low        nameKey
	prev, next *nameChunk

	// The names stay where they are; order says which comes when, those in use
	// first: entering one moves bytes, not pointers, of which the collector
	// would have to be told.
	count int
	order [maxNames]uint8
	items [maxNames]nameItem
}

// nameKey is where a name stands.
type nameKey struct {
	dir  Ino
	head uint64 // the first bytes of the name, as a number: most names differ in it
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

// insert makes a name the i-th of a chunk that is not full.
func (c *nameChunk) insert(i int, item *nameItem) {
	slot := c.order[c.count]
	copy(c.order[i+1:c.count+1], c.order[i:c.count])
	c.order[i] = slot
	c.items[slot] = *item
	c.count++
}

// remove takes the i-th name away.
func (c *nameChunk) remove(i int) {
	slot := c.order[i]
	copy(c.order[i:], c.order[i+1:c.count])
	c.count--
	c.order[c.count] = slot
	c.items[slot] = nameItem{}
}

// give moves the names from the i-th on behind those of another chunk, which
// has room for them.
func (c *nameChunk) give(i int, to *nameChunk) {
	for j := i; j < c.count; j++ {
		to.insert(to.count, c.at(j))
		*c.at(j) = nameItem{}
	}
	c.count = i
}

// nearby returns where the chunk is noted that such a name was found in last:
// programs move names between directories, or from one beginning to another.
func (t *nameTable) nearby(k *nameKey) **nameChunk {
	return &t.near[(uint64(k.dir)+k.head>>56)%uint64(len(t.near))]
}

// chunk returns the one that a name lies in, if it is there.
func (t *nameTable) chunk(k *nameKey) *nameChunk {
	near := t.nearby(k)
	c := *near
	if c == nil || k.less(&c.low) || c.next != nil && !k.less(&c.next.low) {
		t.pivot.low = *k
		t.chunks.DescendLessOrEqual(&t.pivot, t.note)
		t.pivot.low.name = "" // keeps nothing alive
		c = t.found
		*near = c
	}
	return c
}

// find returns which name it is in the chunk, or would be.
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

// get returns the inode that a name stands for.
func (t *nameTable) get(dir Ino, name string) (Ino, bool) {
	k := keyOf(dir, name)
	c := t.chunk(&k)
	i, ok := c.find(&k)
	if !ok {
		return 0, false
	}
	return c.at(i).ino, true
}

// insert enters a name, unless it is there.
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

// split makes room in a full chunk for a name that is to be the i-th, and
// returns where it goes. One that goes behind all others begins the next chunk:
// what is made in order leaves full ones.
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

// remove takes a name away and returns the inode that it stood for.
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

// drop takes away a chunk that is not the first: what belongs there now belongs
// to the one before.
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

// from yields the names from a place in a directory on, those of all
// directories behind it too. None may be entered or taken away meanwhile.
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
