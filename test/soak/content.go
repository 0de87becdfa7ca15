package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// content is the content of a file: extents in order, without gaps, from 0 on.
type content []extent

type extent struct {
	end  int64 // begins at the end of the previous one
	from source
}

func (c content) size() int64 {
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].end
}

func (c content) truncate(size int64) content {
	if size > c.size() {
		return append(slices.Clone(c), extent{end: size})
	}
	var kept content
	for start, i := int64(0), 0; start < size; i++ {
		kept = append(kept, extent{min(c[i].end, size), c[i].from})
		start = c[i].end
	}
	return kept
}

func (c content) write(off, n int64, from source) content {
	if n == 0 {
		return c
	}
	if off > c.size() {
		c = c.truncate(off)
	}
	written := append(c.truncate(off), extent{off + n, from})
	for _, e := range c {
		if e.end > off+n {
			written = append(written, e)
		}
	}
	return written
}

// read fills b with the bytes at off; b lies inside the file.
func (c content) read(b []byte, off int64) {
	start := int64(0)
	for _, e := range c {
		if end := off + int64(len(b)); start < end && e.end > off {
			a, z := max(start, off), min(e.end, end)
			e.from.fill(b[a-off:z-off], a)
		}
		start = e.end
	}
}

// at returns the source of the byte at off.
func (c content) at(off int64) source {
	for _, e := range c {
		if off < e.end {
			return e.from
		}
	}
	return source{}
}

// sums returns what rank.c prints about n bytes read at off: a sum for each 1024.
func (c content) sums(off, n int64) []string {
	b := make([]byte, n)
	c.read(b, off)
	var texts []string
	for piece := range slices.Chunk(b, 1024) {
		h := fnv.New32a()
		h.Write(piece)
		texts = append(texts, fmt.Sprintf("%08x", h.Sum32()))
	}
	return texts
}

// compare reads a file to its end and returns the first difference, or "".
func (c content) compare(r io.Reader) (string, error) {
	got, want := make([]byte, 256<<10), make([]byte, 256<<10)
	for off := int64(0); ; {
		n, err := io.ReadFull(r, got)
		switch {
		case err == io.ErrUnexpectedEOF || err == io.EOF:
		case err != nil:
			return "", err
		}
		inside := min(int64(n), c.size()-off)
		c.read(want[:inside], off)
		if i := differ(got[:inside], want[:inside]); i >= 0 {
			at := off + int64(i)
			return fmt.Sprintf("offset %d: expected what %v wrote, got %s", at, c.at(at), describe(got[i:n], at)), nil
		}
		if off += int64(n); inside < int64(n) {
			return fmt.Sprintf("size: expected %d, got more", c.size()), nil
		}
		if n < len(got) {
			break
		}
	}
	return "", nil
}

func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
