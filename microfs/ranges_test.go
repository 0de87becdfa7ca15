package microfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// TestRangeMap makes random changes to a rangeMap and to a slice that has the partition and cut of each
// byte. It checks that both say the same.
func TestRangeMap(t *testing.T) {
	skipRace(t)
	seed := newSeed(t)
	for s := range uint64(300) {
		r := rand.New(rand.NewPCG(seed+s, 1))
		size := 1 + r.IntN([]int{40, 400, 6000}[s%3])
		want := make([]byte, size)
		m := &rangeMap{}
		for i := range 600 {
			off := r.IntN(size)
			end := off + 1 + r.IntN(min(size-off, 1+r.IntN(size)))
			x := rangeOf(int64(off), int64(end-off), uint32(r.IntN(3)), uint32(r.IntN(2)))
			who := whoseOf(&x)
			if r.IntN(3) == 0 {
				who = 0
				m.drop(x.Off, x.End())
			} else {
				m.set(x)
			}
			for at := off; at < end; at++ {
				want[at] = who
			}
			if i%20 == 0 {
				requireRanges(t, want, m, "seed %d, step %d", seed+s, i)
			}
			from := r.IntN(size)
			to := from + 1 + r.IntN(size-from)
			require.Equal(t, slices.ContainsFunc(want[from:to], func(w byte) bool { return w != 0 }), m.meets(int64(from), int64(to)))
			require.Equal(t, !slices.Contains(want[from:to], 0), m.cover(int64(from), int64(to)))
		}
		requireRanges(t, want, m, "seed %d", seed+s)
	}
}

// requireRanges checks the partition and cut of every byte of a map against want. It also checks the
// order of the ranges and the counts of the map.
func requireRanges(t *testing.T, want []byte, m *rangeMap, what string, args ...any) {
	got := make([]byte, len(want))
	var last Range
	var count int
	var placed int64
	for x := range m.all() {
		if count++; count > 1 {
			require.LessOrEqual(t, last.End(), x.Off, what, args)
			require.False(t, goesOn(&last, &x), "%v and %v are not joined", last, x)
		}
		for at := x.Off; at < x.End(); at++ {
			got[at] = whoseOf(&x)
		}
		last, placed = x, placed+x.Len
	}
	require.Equal(t, want, got, append([]any{what}, args...)...)
	require.Equal(t, count, m.len())
	require.Equal(t, placed, m.bytes())
	for _, list := range m.lists {
		require.NotEmpty(t, list)
		require.LessOrEqual(t, len(list), maxRanges)
	}
}

// withRanges mounts a file system with ranges, and opens a new file.
func withRanges(t *testing.T) (*crashRig, *FS, *File) {
	c, fs := mounted(t, rangesVariants[0])
	return c, fs, openNew(t, fs, "f")
}

func spansOf(t *testing.T, f *File) []Span {
	var spans []Span
	for off := int64(0); ; off = spans[len(spans)-1].End() {
		before := len(spans)
		var err error
		spans, err = f.Ranges(off, 1<<40, 1000, spans)
		require.NoError(t, err)
		if len(spans) == before {
			return spans
		}
		require.LessOrEqual(t, len(spans)-before, 1000)
	}
}

func own(off, n int64) Span { return Span{Range{Off: off, Len: n}, SpanOwn} }

func hole(off, n int64) Span { return Span{Range{Off: off, Len: n}, SpanHole} }

func placed(off, n int64, place, cut uint32) Span {
	return Span{rangeOf(off, n, place, cut), SpanPlaced}
}

// TestRanges checks the spans, the blocks and the cut of a file after each of a sequence of
// operations, and that they are the same after a crash, with and without a state checkpoint.
func TestRanges(t *testing.T) {
	c, fs, f := withRanges(t)
	const hb = 32 << 10
	write := func(off int64, n int) func() error {
		return func() error { _, err := f.WriteAt([][]byte{pattern(n, 1)}, off); return err }
	}
	maps := func(size int64, ranges ...Range) func() error {
		return func() error { return f.MapRanges(ranges, size, time.Unix(5, 0)) }
	}
	for _, step := range []struct {
		name   string
		do     func() error
		want   []Span
		blocks int64
		cut    uint32
	}{
		{"own bytes", write(0, 2*hb+100), []Span{own(0, 2*hb+100)}, 192, 0},
		{"a range over a part of a hugeblock", maps(0, rangeOf(10, 20, 1, 0)),
			[]Span{own(0, 10), placed(10, 20, 1, 0), own(30, 2*hb+70)}, 193, 0},
		{"it goes on", maps(0, rangeOf(30, 10, 1, 0)),
			[]Span{own(0, 10), placed(10, 30, 1, 0), own(40, 2*hb+60)}, 193, 0},
		{"another one in it", maps(0, rangeOf(20, 5, 2, 0)),
			[]Span{own(0, 10), placed(10, 10, 1, 0), placed(20, 5, 2, 0), placed(25, 15, 1, 0), own(40, 2*hb+60)}, 193, 0},
		{"the later one of two, of another cut", maps(0, rangeOf(0, 60, 1, 1), rangeOf(5, 5, 1, 2)),
			[]Span{placed(0, 5, 1, 1), placed(5, 5, 1, 2), placed(10, 50, 1, 1), own(60, 2*hb+40)}, 193, 0},
		{"over the ends of two hugeblocks", maps(0, rangeOf(hb-5, 10, 2, 0)),
			[]Span{placed(0, 5, 1, 1), placed(5, 5, 1, 2), placed(10, 50, 1, 1), own(60, hb-65), placed(hb-5, 10, 2, 0), own(hb+5, hb+95)}, 193, 0},
		{"over whole hugeblocks", maps(0, rangeOf(0, 2*hb, 3, 0)), []Span{placed(0, 2*hb, 3, 0), own(2*hb, 100)}, 192, 0},
		{"over all that was written", maps(0, rangeOf(2*hb, 100, 3, 0)), []Span{placed(0, 2*hb+100, 3, 0)}, 129, 0},
		{"behind the end", maps(5*hb, rangeOf(4*hb, 10, 1, 0)),
			[]Span{placed(0, 2*hb+100, 3, 0), hole(2*hb+100, 2*hb-100), placed(4*hb, 10, 1, 0), hole(4*hb+10, hb-10)}, 129, 0},
		{"own bytes over a range", write(100, 50),
			[]Span{placed(0, 100, 3, 0), own(100, 50), placed(150, 2*hb-50, 3, 0), hole(2*hb+100, 2*hb-100), placed(4*hb, 10, 1, 0), hole(4*hb+10, hb-10)}, 193, 0},
		{"punch", func() error { return f.Punch(0, hb) },
			[]Span{hole(0, hb), placed(hb, hb+100, 3, 0), hole(2*hb+100, 2*hb-100), placed(4*hb, 10, 1, 0), hole(4*hb+10, hb-10)}, 65, 1},
		{"punch a part", func() error { return f.Punch(hb+50, 10) },
			[]Span{hole(0, hb), placed(hb, 50, 3, 0), hole(hb+50, 10), placed(hb+60, hb+40, 3, 0), hole(2*hb+100, 2*hb-100), placed(4*hb, 10, 1, 0), hole(4*hb+10, hb-10)}, 65, 2},
		{"zero", func() error { return f.ZeroRange(4*hb, 5, true) },
			[]Span{hole(0, hb), placed(hb, 50, 3, 0), hole(hb+50, 10), placed(hb+60, hb+40, 3, 0), hole(2*hb+100, 2*hb-95), placed(4*hb+5, 5, 1, 0), hole(4*hb+10, hb-10)}, 129, 3},
		{"the same size", func() error { return f.Truncate(5 * hb) }, nil, 129, 3},
		{"cut", func() error { return f.Truncate(hb + 65) },
			[]Span{hole(0, hb), placed(hb, 50, 3, 0), hole(hb+50, 10), placed(hb+60, 5, 3, 0)}, 1, 4},
		{"stretch", func() error { return f.Truncate(hb + 70) },
			[]Span{hole(0, hb), placed(hb, 50, 3, 0), hole(hb+50, 10), placed(hb+60, 5, 3, 0), hole(hb+65, 5)}, 1, 4},
		{"a size alone", maps(hb + 80), []Span{hole(0, hb), placed(hb, 50, 3, 0), hole(hb+50, 10), placed(hb+60, 5, 3, 0), hole(hb+65, 15)}, 1, 4},
	} {
		require.NoError(t, step.do(), step.name)
		if step.want != nil {
			require.Equal(t, step.want, joinSpans(spansOf(t, f)), step.name)
		}
		a, err := f.Stat()
		require.NoError(t, err)
		require.Equal(t, step.blocks, a.Blocks, step.name)
		require.Equal(t, step.cut, a.Cut, step.name)
	}
	want, err := f.Stat()
	require.NoError(t, err)
	require.True(t, want.Mtime.Equal(time.Unix(5, 0)))
	spans := spansOf(t, f)
	for _, checkpoint := range []bool{false, true} {
		if checkpoint {
			require.NoError(t, fs.Checkpoint())
		}
		fs = c.again(fs)
		f = openNew(t, fs, "f")
		require.Equal(t, spans, spansOf(t, f))
		got, err := f.Stat()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.True(t, fs.StatFS().Ranges)
}

// joinSpans joins neighbouring spans of the same kind, except those of kind SpanPlaced.
func joinSpans(spans []Span) (list []Span) {
	for _, s := range spans {
		if n := len(list); n > 0 && s.Kind != SpanPlaced && list[n-1].Kind == s.Kind {
			list[n-1].Len += s.Len
			continue
		}
		list = append(list, s)
	}
	return list
}

// TestRangesAreData checks calls on a file with ranges. SeekData and SeekHole treat a range as data.
// Allocate reserves nothing for hugeblocks that ranges cover. ReadAt of a range fails with a
// RemoteRangeError.
func TestRangesAreData(t *testing.T) {
	_, fs, f := withRanges(t)
	const hb = 32 << 10
	require.NoError(t, f.MapRanges([]Range{rangeOf(hb, 3*hb, 1, 0), rangeOf(6*hb, 10, 2, 0)}, 8*hb, time.Now()))
	for _, tc := range []struct{ from, data, hole int64 }{
		{0, hb, 0}, {hb, hb, 4 * hb}, {hb + 5, hb + 5, 4 * hb}, {4 * hb, 6 * hb, 4 * hb}, {6*hb + 9, 6*hb + 9, 6*hb + 10}, {6*hb + 10, -1, 6*hb + 10},
	} {
		at, err := f.SeekData(tc.from)
		if tc.data < 0 {
			require.ErrorIs(t, err, syscall.ENXIO)
		} else {
			require.NoError(t, err)
			require.Equal(t, tc.data, at, "data from %d", tc.from)
		}
		at, err = f.SeekHole(tc.from)
		require.NoError(t, err)
		require.Equal(t, tc.hole, at, "hole from %d", tc.from)
	}
	before := fs.available()
	require.NoError(t, f.Allocate(0, 8*hb, true))
	require.EqualValues(t, 5, before-fs.available(), "what ranges have as a whole takes no space")
	require.NoError(t, f.MapRanges([]Range{rangeOf(0, 8*hb, 1, 0)}, 0, time.Now()))
	require.Equal(t, before, fs.available(), "what was reserved under a range is free")

	buf := make([]byte, 10)
	var elsewhere *RemoteRangeError
	_, err := f.ReadAt([][]byte{buf}, 5)
	require.ErrorAs(t, err, &elsewhere)
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, rangeOf(0, 8*hb, 1, 0), elsewhere.Range)
	n, err := f.ReadAt([][]byte{buf}, 8*hb)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = f.ReadAt([][]byte{buf}, -1)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// TestLargeReadOfMappedFile maps a byte near the end of a file to another partition while a large read
// has given up the lock. It checks that the read returns the bytes it has read so far and a
// RemoteRangeError.
func TestLargeReadOfMappedFile(t *testing.T) {
	const size = 20 << 20
	fs, hook := onHooked(t, 256*nvmf.MiB, Options{})
	fs.g.ranges = true
	f := openNew(t, fs, "f")
	large := pattern(size, 3)
	_, err := f.WriteAt([][]byte{large}, 0)
	require.NoError(t, err)
	done := make(chan error)
	began := false
	hook.set(func(n nvmf.Bytes) {
		if !began && n >= nvmf.MiB {
			began = true
			go func() { done <- f.MapRanges([]Range{rangeOf(size-50, 1, 1, 0)}, size, time.Now()) }()
			waitInLine(fs)
		}
	})
	got := make([]byte, size)
	n, err := f.ReadAt([][]byte{got}, 0)
	require.ErrorAs(t, err, new(*RemoteRangeError))
	require.NoError(t, <-done)
	require.Equal(t, maxBatch, nvmf.Bytes(n))
	require.True(t, bytes.Equal(large[:n], got[:n]))
}

// TestCut checks that operations that remove bytes from a file add one to its cut, and that other
// operations leave the cut as it was.
func TestCut(t *testing.T) {
	_, fs, f := withRanges(t)
	write := func() error { _, err := f.WriteAt([][]byte{make([]byte, 5000)}, 0); return err }
	reopen := func(flags int) func() error {
		return func() error {
			g, err := fs.Open(RootIno, "f", unix.O_RDWR|flags, 0)
			if err == nil {
				err = g.Close()
			}
			return err
		}
	}
	for _, step := range []struct {
		name string
		do   func() error
		cuts uint32
	}{
		{"O_TRUNC of what is empty", reopen(unix.O_TRUNC), 0},
		{"write", write, 0},
		{"write over", write, 0},
		{"map", func() error { return f.MapRanges([]Range{rangeOf(10, 100, 1, 0)}, 9000, time.Now()) }, 0},
		{"write over a range", write, 0},
		{"append", func() error { _, _, err := f.Append([][]byte{make([]byte, 10)}); return err }, 0},
		{"allocate", func() error { return f.Allocate(0, 20000, false) }, 0},
		{"stretch", func() error { return f.Truncate(30000) }, 0},
		{"truncate to its size", func() error { return fs.Truncate(RootIno, "f", 30000) }, 0},
		{"shrink", func() error { return fs.Truncate(RootIno, "f", 29999) }, 1},
		{"punch", func() error { return f.Punch(5, 10) }, 1},
		{"zero", func() error { return f.ZeroRange(5, 10, true) }, 1},
		{"rename", func() error { return fs.Rename(RootIno, "f", RootIno, "g", 0) }, 0},
		{"rename back", func() error { return fs.Rename(RootIno, "g", RootIno, "f", 0) }, 0},
		{"open and close", reopen(0), 0},
		{"O_TRUNC", reopen(unix.O_TRUNC), 1},
	} {
		before, err := f.Stat()
		require.NoError(t, err)
		require.NoError(t, step.do(), step.name)
		after, err := f.Stat()
		require.NoError(t, err)
		require.Equal(t, step.cuts, after.Cut-before.Cut, step.name)
		require.Equal(t, before.Birth, after.Birth)
	}
}

// TestRangesErrors checks the errors of MapRanges, and that a call that fails changes nothing.
func TestRangesErrors(t *testing.T) {
	_, fs, f := withRanges(t)
	require.NoError(t, f.Truncate(100))
	before, err := f.Stat()
	require.NoError(t, err)
	for _, tc := range []struct {
		name string
		size int64
		r    Range
		want error
	}{
		{"nothing", 100, rangeOf(0, 0, 1, 0), syscall.EINVAL},
		{"before the file", 100, rangeOf(-1, 5, 1, 0), syscall.EINVAL},
		{"behind the file", 100, rangeOf(99, 2, 1, 0), syscall.EINVAL},
		{"behind all files", 1 << 62, rangeOf(1<<61, 2, 1, 0), syscall.EFBIG},
		{"overflow", 1<<63 - 1, rangeOf(1<<63-1, 1<<63-1, 1, 0), syscall.EINVAL},
	} {
		require.ErrorIs(t, f.MapRanges([]Range{rangeOf(0, 1, 1, 0), tc.r}, tc.size, time.Now()), tc.want, tc.name)
	}
	r, err := fs.Open(RootIno, "f", unix.O_RDONLY, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.MapRanges(nil, 0, time.Now()), syscall.EBADF)
	after, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, before, after)

	_, fs = mounted(t, variants[0])
	f = openNew(t, fs, "f")
	require.ErrorIs(t, f.MapRanges(nil, 0, time.Now()), syscall.EOPNOTSUPP)
	require.False(t, fs.StatFS().Ranges)
}

// TestEachRange checks that EachRange calls its function for all files with ranges. These include
// open files that have no name any more.
func TestEachRange(t *testing.T) {
	_, fs, f := withRanges(t)
	each := func() map[Ino][]Range {
		list := map[Ino][]Range{}
		require.NoError(t, fs.EachRange(func(a Attr, ranges []Range) error { list[a.Ino] = ranges; return nil }))
		return list
	}
	g := openNew(t, fs, "g")
	openNew(t, fs, "none")
	require.Empty(t, each())
	require.NoError(t, f.MapRanges([]Range{rangeOf(5, 5, 1, 0), rangeOf(0, 5, 2, 0)}, 10, time.Now()))
	require.NoError(t, g.MapRanges([]Range{rangeOf(0, 1, 3, 4)}, 10, time.Now()))
	both := map[Ino][]Range{f.Ino(): {rangeOf(0, 5, 2, 0), rangeOf(5, 5, 1, 0)}, g.Ino(): {rangeOf(0, 1, 3, 4)}}
	require.Equal(t, both, each())
	require.NoError(t, fs.Rename(RootIno, "none", RootIno, "f", 0))
	require.Equal(t, both, each(), "it is open")
	bytes := fs.tree.bytes
	require.NoError(t, f.Close())
	delete(both, f.Ino())
	require.Equal(t, both, each())
	require.Equal(t, bytes-inodeSize-2*rangeSize, fs.tree.bytes)
	stop := errors.New("stop")
	require.Equal(t, stop, fs.EachRange(func(Attr, []Range) error { return stop }))
}

// TestRangesInParts crashes into a MapRanges call with more ranges than a record holds. It checks
// that the file then has the ranges of the first records, and that none is missing if the call had
// returned.
func TestRangesInParts(t *testing.T) {
	seed := newSeed(t)
	var ranges []Range
	for i := range int64(3*oplog.MaxRanges + 7) {
		ranges = append(ranges, rangeOf(i*10, 5, uint32(i), 0))
	}
	size := int64(len(ranges)*10 + 1000)
	seen := map[int]bool{}
	for cut := 1; !seen[len(ranges)]; cut++ {
		c := newCrashRig(t, rangesVariants[1])
		fs, err := c.mount()
		require.NoError(t, err)
		f := openNew(t, fs, "f")
		c.dev.Shuffle(seed)
		c.dev.CutAt(cut, int(seed%4096))
		acked := f.MapRanges(ranges, size, time.Now()) == nil
		fs.ckpt.stop()
		c.dev.Heal()
		c.dev.PowerOn()
		fs, err = c.mount()
		require.NoError(t, err)
		f = openNew(t, fs, "f")
		spans := slices.DeleteFunc(spansOf(t, f), func(s Span) bool { return s.Kind != SpanPlaced })
		n := len(spans)
		for i := range spans {
			require.Equal(t, ranges[i], spans[i].Range)
		}
		a, err := f.Stat()
		require.NoError(t, err)
		switch {
		case n == len(ranges):
			require.Equal(t, size, a.Size)
		case n == 0:
			require.Zero(t, a.Size)
		default:
			require.Equal(t, ranges[n-1].End(), a.Size, "no longer than its ranges")
		}
		require.True(t, n%oplog.MaxRanges == 0 || n == len(ranges), "%d ranges", n)
		require.True(t, !acked || n == len(ranges))
		seen[n] = true
		fs.ckpt.stop()
		require.NoError(t, c.dev.Close())
	}
	require.Len(t, seen, 5, "none, one record to three, and all")
}

// TestRangesWithoutSpace checks that a MapRanges call fails with ENOSPC if the state area has no space
// for its ranges, that a state checkpoint still fits then, and that the call succeeds after other
// files with ranges are unlinked.
func TestRangesWithoutSpace(t *testing.T) {
	_, fs, f := withRanges(t)
	var ranges []Range
	for i := range int64(oplog.MaxRanges) {
		ranges = append(ranges, rangeOf(2*i, 1, 0, 0))
	}
	n := 0
	for ; ; n++ {
		g := openNew(t, fs, fmt.Sprint("g", n))
		err := g.MapRanges(ranges, 1000, time.Now())
		require.NoError(t, g.Close())
		if err != nil {
			require.ErrorIs(t, err, ErrNoNames)
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
	}
	require.Greater(t, n, 10)
	require.NoError(t, fs.Checkpoint(), "there is space for what was taken")
	require.NoError(t, fs.Unlink(RootIno, "g0"))
	require.NoError(t, fs.Unlink(RootIno, "g1"))
	require.NoError(t, f.MapRanges(ranges, 1000, time.Now()))
}

// TestManyRanges maps a hundred thousand alternating ranges of two partitions in random order. It
// checks that the file has all of them, also after another mount.
func TestManyRanges(t *testing.T) {
	seed := newSeed(t)
	const n, part = 100_000, 47008
	dev := memory(t, 512*nvmf.MiB, 4096)
	seg := Segment{Length: 512 * nvmf.MiB}
	require.NoError(t, Format(context.Background(), dev, seg, FormatOptions{Generation: 7, Ranges: true}))
	mount := func() *FS {
		fs, err := Mount(context.Background(), dev, seg, Options{Generation: 7})
		require.NoError(t, err)
		return fs
	}
	fs := mount()
	f := openNew(t, fs, "f")
	before := heap()
	began := time.Now()
	order := rand.New(rand.NewPCG(seed, 9)).Perm(n)
	for batch := range slices.Chunk(order, 1000) {
		ranges := make([]Range, 0, len(batch))
		for _, i := range batch {
			ranges = append(ranges, rangeOf(int64(i)*part, part, uint32(i%2), 0))
		}
		require.NoError(t, f.MapRanges(ranges, n*part, time.Now()))
	}
	t.Logf("%d ranges of parts of %d bytes, mapped in any order: %.1f us each, %.1f bytes of memory",
		n, part, float64(time.Since(began).Microseconds())/n, float64(heap()-before)/n)
	spans := spansOf(t, f)
	require.Len(t, spans, n)
	for i, s := range spans {
		require.Equal(t, placed(int64(i)*part, part, uint32(i%2), 0), s)
	}
	require.NoError(t, fs.Unmount())
	began = time.Now()
	fs = mount()
	t.Logf("mounted again from log and state in %v", time.Since(began))
	f = openNew(t, fs, "f")
	require.Equal(t, spans, spansOf(t, f))
	require.NoError(t, f.MapRanges([]Range{rangeOf(0, n*part, 5, 0)}, 0, time.Now()))
	require.Equal(t, []Span{placed(0, n*part, 5, 0)}, spansOf(t, f))
	require.NoError(t, fs.Unmount())
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
