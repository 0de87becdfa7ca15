package tree

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
)

// The model of the random test: files as arrays of bytes, with all states that they have had. It knows nothing of
// shards, ranges or messages, but only what is promised.

// mostSize is the size of the model's files: some units of checksums.
const maxSize = 3*4096 + 100

// An image is what is published of a file.
type image struct {
	data [maxSize]byte
	size int
}

// A modelFile is a file with all its images. What a process writes and has not published others may see, or not.
type modelFile struct {
	name    string
	images  []*image
	pending []*pending
}

type pending struct {
	who      *process
	off, end int
	value    byte
	until    int  // image that has it, or -1: it is not published
	append   bool // to space that is its own until it is published
	late     bool // the index was killed since
	cut      bool // something was cut out of the file since: then the next index does not know of the space
}

func (f *modelFile) now() *image { return f.images[len(f.images)-1] }

// change makes another image.
func (f *modelFile) change(do func(*image)) {
	next := *f.now()
	do(&next)
	f.images = append(f.images, &next)
}

// cut takes the bytes of a part out of the file, which then has a size.
func (f *modelFile) cut(off, end, size int) {
	for _, w := range f.pending {
		w.cut = true
	}
	f.change(func(i *image) {
		clear(i.data[off:end])
		i.size = size
	})
}

// A draft is what a process has written to a file and not published.
type draft struct {
	written [maxSize]bool
	data    [maxSize]byte
	end     int
}

// A process is one of the job, and what the model knows of it.
type process struct {
	*rank
	name    string
	seen    map[*modelFile]int // the image at its last open or sync
	reach   map[*modelFile]int // the end of what it has written since
	drafts  map[*modelFile]*draft
	handles []*handle
}

type handle struct {
	vfs.File
	of                         *modelFile
	readable, writable, append bool
}

func (p *process) draft(f *modelFile) *draft {
	if p.drafts[f] == nil {
		p.drafts[f] = new(draft)
	}
	return p.drafts[f]
}

// write notes what the process wrote.
func (p *process) write(f *modelFile, off, n int, value byte) {
	p.reach[f] = max(p.reach[f], off+n)
	if p.own == nil { // by way of the index, which has it at once
		f.change(func(i *image) {
			for at := off; at < off+n; at++ {
				i.data[at] = value
			}
			i.size = max(i.size, off+n)
		})
		return
	}
	d := p.draft(f)
	for i := off; i < off+n; i++ {
		d.written[i], d.data[i] = true, value
	}
	d.end = max(d.end, off+n)
	f.pending = append(f.pending, &pending{who: p, off: off, end: off + n, value: value, until: -1})
}

// publish notes that all know what the process wrote.
func (p *process) publish(f *modelFile) {
	d := p.drafts[f]
	if d == nil {
		return
	}
	delete(p.drafts, f)
	f.change(func(i *image) {
		for at, written := range d.written {
			if written {
				i.data[at] = d.data[at]
			}
		}
		i.size = max(i.size, d.end)
	})
	for _, w := range f.pending {
		if w.who == p && w.until < 0 {
			w.until = len(f.images) - 1
		}
	}
}

// look notes that the process sees the file as it is now.
func (p *process) look(f *modelFile) {
	p.seen[f], p.reach[f] = len(f.images)-1, 0
	if d := p.drafts[f]; d != nil {
		p.reach[f] = d.end
	}
}

// mayRead says what is wrong with a read by the process, or nothing.
func (p *process) mayRead(f *modelFile, off, want int, got []byte) string {
	d, own := p.drafts[f], 0
	if d != nil {
		own = d.end
	}
	// What it has published itself may have made the file longer than others have made it since it looked.
	fits := func(i *image) bool {
		n := func(end int) int { return max(0, min(max(i.size, end), off+want)-off) }
		return len(got) == n(own) || len(got) == n(p.reach[f])
	}
	if !slices.ContainsFunc(f.images[p.seen[f]:], fits) {
		return fmt.Sprintf("%d bytes, size %d, own end %d", len(got), f.now().size, own)
	}
	for i, b := range got {
		if at := off + i; d != nil && d.written[at] {
			if b != d.data[at] {
				return fmt.Sprintf("byte %d is %d, and it wrote %d", at, b, d.data[at])
			}
		} else if !f.mayBe(p.seen[f], at, b) {
			return fmt.Sprintf("byte %d is %d, published %d", at, b, f.now().data[at])
		}
	}
	return ""
}

// mayBe says whether a byte may be read by who has seen an image.
func (f *modelFile) mayBe(seen, at int, b byte) bool {
	if slices.ContainsFunc(f.images[seen:], func(i *image) bool { return i.data[at] == b }) {
		return true
	}
	return slices.ContainsFunc(f.pending, func(w *pending) bool {
		return (w.until < 0 || w.until > seen) && w.off <= at && at < w.end && w.value == b
	})
}

// collapse takes what is read after a death, of processes or of the index, for what is published: it is what was, or what these processes had written.
// What is read of others may yet be lost. Those who live publish it later.
func (f *modelFile) collapse(t testing.TB, dead []*process, live bool, got []byte) {
	died := func(w *pending) bool { return slices.Contains(dead, w.who) && w.until < 0 }
	fits := len(got) == f.now().size || slices.ContainsFunc(f.pending, func(w *pending) bool { return died(w) && len(got) == w.end })
	require.True(t, fits && len(got) >= f.now().size, "%s has %d bytes after a death, and had %d", f.name, len(got), f.now().size)
	f.change(func(i *image) {
		for at, b := range got {
			require.True(t, f.mayBe(len(f.images)-1, at, b), "byte %d of %s is %d after a death, published %d", at, f.name, b, i.data[at])
			if slices.ContainsFunc(f.pending, func(w *pending) bool { return died(w) && w.off <= at && at < w.end && w.value == b }) {
				i.data[at] = b
			}
		}
		i.size = len(got)
	})
	for _, w := range f.pending {
		if died(w) && !live {
			w.until = len(f.images) - 1
		}
	}
}

// length is of a write: one unit or some, or a few bytes.
func length(r *rand.Rand) int {
	if r.IntN(3) == 0 {
		return 1 + r.IntN(9000)
	}
	return 1 + r.IntN(200)
}

// offset is anywhere, near the beginning, or near the border of a unit.
func offset(r *rand.Rand) int {
	switch r.IntN(3) {
	case 0:
		return r.IntN(maxSize)
	case 1:
		return r.IntN(300)
	}
	return 4096*(1+r.IntN(2)) - 100 + r.IntN(200)
}
