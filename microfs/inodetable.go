package microfs

import (
	"iter"
	"maps"
	"slices"
)

// tablePage is the number of inodes in a page of the table: large enough that there are few pages
// for all inodes, small enough that a single remaining inode does not hold much memory.
const tablePage = 64

// inodeTable finds inodes by number. Numbers are allocated in order and never again, so inodes lie
// in pages: creating a file, or loading a million files, seldom touches the map. The zero value is
// an empty table. Guarded by FS.mu, for lookups too.
type inodeTable struct {
	pages map[Ino]*inodePage // by number / tablePage; none is empty
	count int
	// near has pages that were used lately, at the index that is the page number modulo its length.
	near [8]*inodePage
}

type inodePage struct {
	at     Ino // page number
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

// put adds an inode, and replaces one of the same number.
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

// drop removes an existing inode.
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

// all yields the inodes in order of their numbers. Inodes may be dropped meanwhile.
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
