package microfs

import (
	"iter"
	"maps"
	"slices"
)

// tablePage is how many inodes a page of the table has: enough that pages are
// few beside inodes, few enough that one inode left over does not hold much.
const tablePage = 64

// inodeTable finds inodes by number. Numbers are given out in order and never
// again, so they stand in pages: making a file, and loading a million of them,
// seldom touches the map. The zero value is an empty table. Guarded by FS.mu,
// lookups too.
type inodeTable struct {
	pages map[Ino]*inodePage // by number / tablePage; none is empty
	count int
	// near has pages that were looked at lately, each in the place that its
	// number says.
	near [8]*inodePage
}

type inodePage struct {
	at     Ino // its number
	inodes [tablePage]*inode
	count  int
}

// page returns the page of an inode, nil if there is none.
func (t *inodeTable) page(ino Ino) *inodePage {
	at := ino / tablePage
	near := &t.near[at%Ino(len(t.near))]
	if p := *near; p != nil && p.at == at {
		return p
	}
	p := t.pages[at]
	if p != nil {
		*near = p
	}
	return p
}

// get returns an inode, nil if there is none of that number.
func (t *inodeTable) get(ino Ino) *inode {
	p := t.page(ino)
	if p == nil {
		return nil
	}
	return p.inodes[ino%tablePage]
}

// put enters an inode, in place of one of the same number.
func (t *inodeTable) put(in *inode) {
	p := t.page(in.ino)
	if p == nil {
		if t.pages == nil {
			t.pages = make(map[Ino]*inodePage)
		}
		p = &inodePage{at: in.ino / tablePage}
		t.pages[p.at] = p
	}
	slot := &p.inodes[in.ino%tablePage]
	if *slot == nil {
		p.count++
		t.count++
	}
	*slot = in
}

// drop removes an inode that is there.
func (t *inodeTable) drop(ino Ino) {
	p := t.page(ino)
	if p == nil || p.inodes[ino%tablePage] == nil {
		return
	}
	p.inodes[ino%tablePage] = nil
	t.count--
	if p.count--; p.count == 0 {
		delete(t.pages, p.at)
		t.near[p.at%Ino(len(t.near))] = nil
	}
}

// all yields the inodes in order of their numbers. Any of them may be dropped
// meanwhile.
func (t *inodeTable) all() iter.Seq[*inode] {
	return func(yield func(*inode) bool) {
		for _, at := range slices.Sorted(maps.Keys(t.pages)) {
			p := t.pages[at]
			if p == nil {
				continue
			}
			for _, in := range p.inodes {
				if in != nil && !yield(in) {
					return
				}
			}
		}
	}
}
