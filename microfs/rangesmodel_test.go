package microfs

import (
	"fmt"
	"time"
)

// whoseOf returns the byte that stands for the partition and cut of a range in a model. The byte 0
// stands for bytes of the file itself.
func whoseOf(r *Range) byte { return byte(1 + r.Partition<<4 + r.Cut) }

func rangeOf(off, n int64, place, cut uint32) Range {
	return Range{Off: off, Len: n, Partition: place, Cut: cut}
}

// resize sets the length of the file.
func (n *mnode) resize(size int64) {
	if more := size - int64(len(n.data)); more > 0 {
		n.data = append(n.data, make([]byte, more)...)
	}
	n.data = n.data[:size:size]
	if more := size - int64(len(n.places)); more > 0 {
		n.places = append(n.places, make([]byte, more)...)
	}
	n.places = n.places[:size:size]
}

// placed returns the part of a snapshot about the cut and the ranges of a file.
func (n *mnode) placed() string { return fmt.Sprintf(" cut %d %x", n.cut, checksum(n.places)) }

// readPlaced reads a file into b, with zeros for ranges in other partitions. It returns whoseOf of the
// range of every byte.
func readPlaced(f *File, b []byte) ([]byte, error) {
	places := make([]byte, len(b))
	spans, err := f.Ranges(0, int64(len(b)), len(b), nil)
	if err != nil {
		return nil, err
	}
	var at int64
	for _, s := range spans {
		if s.Off != at || s.Len <= 0 {
			return nil, fmt.Errorf("a span of %d bytes at %d, not %d", s.Len, s.Off, at)
		}
		at = s.End()
		part := b[s.Off:at]
		clear(part)
		if s.Kind == SpanPlaced {
			for i := range part {
				places[s.Off+int64(i)] = whoseOf(&s.Range)
			}
			continue
		}
		if n, err := f.ReadAt([][]byte{part}, s.Off); err != nil || n != len(part) {
			return nil, fmt.Errorf("read %d of %d bytes at %d: %w", n, len(part), s.Off, err)
		}
		if s.Kind == SpanHole && !isZero(part) {
			return nil, fmt.Errorf("the hole of %d bytes at %d has data", s.Len, s.Off)
		}
	}
	if at != int64(len(b)) {
		return nil, fmt.Errorf("spans end at %d of %d", at, len(b))
	}
	return places, nil
}

// mapOp returns an operation that maps ranges of a file.
func mapOp(path string, size int64, ranges ...Range) op {
	return op{
		name: fmt.Sprintf("map %s %v in %d", path, ranges, size),
		fs:   openedOp(path, func(f *File) error { return f.MapRanges(ranges, size, time.Unix(1, 0)) }),
		model: func(m *model) {
			_, _, n := m.find(path)
			n.resize(max(size, int64(len(n.data))))
			for i := range ranges {
				r := &ranges[i]
				clear(n.data[r.Off:r.End()])
				for at := r.Off; at < r.End(); at++ {
					n.places[at] = whoseOf(r)
				}
			}
			n.closed, n.written = false, true
		},
	}
}

// mapRanges returns an operation that maps a few random ranges: strided, anywhere, or aligned to 32 KiB.
func (g *generator) mapRanges(file string) op {
	_, _, n := g.m.find(file)
	var ranges []Range
	var end int64
	off, stride := int64(g.r.IntN(len(n.data)+5000)), int64(1+g.r.IntN(9000))
	for range 1 + g.r.IntN(8) {
		r := Range{Off: off, Len: 1 + int64(g.r.IntN(6000)), Partition: uint32(g.r.IntN(3)), Cut: uint32(g.r.IntN(2))}
		switch g.r.IntN(4) {
		case 0:
			r.Len = 1 + int64(g.r.IntN(100_000))
		case 1:
			r.Off, r.Len = r.Off&^32767, 32768
		}
		r.Len = min(r.Len, int64(g.maxFile)-r.Off)
		if r.Len > 0 {
			ranges = append(ranges, r)
			end = max(end, r.End())
		}
		if off += stride; g.r.IntN(3) == 0 {
			off = int64(g.r.IntN(len(n.data) + 5000))
		}
	}
	return mapOp(file, end+int64(g.r.IntN(2)*g.r.IntN(3000)), ranges...)
}

// rangesVariants are file systems whose files may have bytes in other partitions.
var rangesVariants = []variant{
	{name: "ranges", lba: 4096, f: FormatOptions{Ranges: true}},
	{name: "ranges, 4 KiB hugeblocks, small log", lba: 512, f: FormatOptions{Ranges: true, Hugeblock: 4 << 10, LogPages: minLogPages}},
	{name: "ranges, no data checksums", lba: 4096, f: FormatOptions{Ranges: true, NoDataCRC: true}},
	{name: "ranges, writing behind", lba: 4096, f: FormatOptions{Ranges: true}, o: Options{WriteBehind: true}},
	{name: "ranges, volatile cache", lba: 512, f: FormatOptions{Ranges: true, LogPages: minLogPages}, cache: true},
}

// everyVariant has allVariants and rangesVariants.
var everyVariant = append(allVariants[:len(allVariants):len(allVariants)], rangesVariants...)

// model returns an empty model of a file system of the variant.
func (v *variant) model() *model {
	m := newModel()
	m.ranges = v.f.Ranges
	return m
}
