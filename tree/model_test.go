package tree

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
)

// The model of the random test: files as arrays of bytes, with all their states. It knows only the promises of the
// package, no shards, ranges or messages.

// maxSize is the maximum size of the model's files: several checksum units.
const maxSize = 3*4096 + 100

// An image is a published state of a file.
type image struct {
	data [maxSize]byte
	size int
}

// A modelFile is a file with all its images. Unpublished data of a process may be visible to others, or not.
type modelFile struct {
	name    string // one of its names, or the last one
	images  []*image
	pending []*pending
	locks   map[*process]*modelLocks
}

// lockParts is the number of parts of a file that can be locked.
const lockParts = 5

// modelLocks are the locks of a process, for each part: of flock, and of fcntl.
type modelLocks [2][lockParts]int

func kindOf(whole bool) int {
	if whole {
		return 0
	}
	return 1
}

// conflict reports whether a lock of another process is in the way.
func (f *modelFile) conflict(p *process, whole bool, first, last int, write bool) bool {
	for other, l := range f.locks {
		for _, has := range l[kindOf(whole)][first:last] {
			if other != p && (has == unix.F_WRLCK || has == unix.F_RDLCK && write) {
				return true
			}
		}
	}
	return false
}

// lock sets the locks of a process in a range.
func (f *modelFile) lock(p *process, whole bool, first, last, kind int) {
	l := f.locks[p]
	if l == nil {
		l = new(modelLocks)
		for _, parts := range []*[lockParts]int{&l[0], &l[1]} {
			for i := range parts {
				parts[i] = unix.F_UNLCK
			}
		}
		f.locks[p] = l
	}
	for i := first; i < last; i++ {
		l[kindOf(whole)][i] = kind
	}
}

// unlock records that a process has ended, or has closed the file.
func (f *modelFile) unlock(p *process) { delete(f.locks, p) }

type pending struct {
	who      *process
	off, end int
	value    byte
	until    int  // first image with the data, or -1 if it is not published
	append   bool // in reserved space, until it is published
	late     bool // the index was killed since
	cut      bool // the file was truncated or punched since: a successor does not know of the reservation
}

func (f *modelFile) now() *image { return f.images[len(f.images)-1] }

// change adds an image.
func (f *modelFile) change(do func(*image)) {
	next := *f.now()
	do(&next)
	f.images = append(f.images, &next)
}

// cut removes bytes of a range, and sets the size.
func (f *modelFile) cut(off, end, size int) {
	for _, w := range f.pending {
		w.cut = true
	}
	f.change(func(i *image) {
		clear(i.data[off:end])
		i.size = size
	})
}

// A draft is unpublished data of a process.
type draft struct {
	written [maxSize]bool
	data    [maxSize]byte
	end     int
}

// A process is a process of the job, with its state in the model.
type process struct {
	*rank
	name    string
	seen    map[*modelFile]int // index of the image at its last open or sync
	reach   map[*modelFile]int // end of its writes since then
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

// write records a write.
func (p *process) write(f *modelFile, off, n int, value byte) {
	p.reach[f] = max(p.reach[f], off+n)
	if p.own == nil { // a write through the index is published at once
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

// publish records that the process has published its data.
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

// look records that the process sees the present state of the file.
func (p *process) look(f *modelFile) {
	p.seen[f], p.reach[f] = len(f.images)-1, 0
	if d := p.drafts[f]; d != nil {
		p.reach[f] = d.end
	}
}

// mayRead returns why the result of a read is impossible, or "".
func (p *process) mayRead(f *modelFile, off, want int, got []byte) string {
	d, own := p.drafts[f], 0
	if d != nil {
		own = d.end
	}
	// Its own published data may have made the file longer than others have made it since its last look.
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

// mayBe reports whether a byte can be read by a process that has seen an image.
func (f *modelFile) mayBe(seen, at int, b byte) bool {
	if slices.ContainsFunc(f.images[seen:], func(i *image) bool { return i.data[at] == b }) {
		return true
	}
	return slices.ContainsFunc(f.pending, func(w *pending) bool {
		return (w.until < 0 || w.until > seen) && w.off <= at && at < w.end && w.value == b
	})
}

// collapse makes the bytes read after the death of processes, or of the index, the published state. Each byte must be
// the earlier one or one that these processes had written. Unpublished data of living processes may still change;
// they publish it later.
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

// length returns the length of a write: one or several checksum units, or a few bytes.
func length(r *rand.Rand) int {
	if r.IntN(3) == 0 {
		return 1 + r.IntN(9000)
	}
	return 1 + r.IntN(200)
}

// offset returns an offset anywhere, near the beginning, or near the border of a checksum unit.
func offset(r *rand.Rand) int {
	switch r.IntN(3) {
	case 0:
		return r.IntN(maxSize)
	case 1:
		return r.IntN(300)
	}
	return 4096*(1+r.IntN(2)) - 100 + r.IntN(200)
}
