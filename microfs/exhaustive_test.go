package microfs

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest/crash"
)

var crashAll = flag.Bool("crash-all", false, "TestExhaustive takes all workloads of up to three operations in all configurations")

// setup is a state that workloads start from.
type setup struct {
	name    string
	blocks  Hugeblock                // of data, at least
	prepare func(c *crasher, fs *FS) // runs before the mount that the workloads use
	live    func(m *model) []op      // operations after that mount, before those of the workload
	ranges  bool                     // the file system has ranges
}

var setups = []setup{
	{name: "fresh", blocks: 10},
	{name: "an append to grow", blocks: 10, live: func(m *model) []op {
		o, _ := m.writeAt("/b", m.size("/b"), 100)
		o.model(m)
		return []op{o}
	}},
	{name: "a log page nearly full", blocks: 10, prepare: func(c *crasher, fs *FS) { c.fillTail(fs, 40) }},
	{name: "a log nearly full, wrapped", blocks: 10, prepare: func(c *crasher, fs *FS) {
		c.turnRing(fs)
		c.fillTail(fs, 40)
	}},
	{name: "few blocks, used before", blocks: 7, prepare: func(c *crasher, fs *FS) {
		for range 9 {
			o, _ := c.start.writeAt("/b", 0, 3000)
			c.must(fs, o)
		}
		c.must(fs, truncateOp("/b", sizeB))
	}},
}

// reservedSetups have reserved hugeblocks in the middle of a file and behind its end.
var reservedSetups = []setup{{name: "reserved", blocks: 12, live: func(*model) []op {
	return []op{allocateOp("/b", 0, 9000, true), punchOp("/a", 0, 4096), allocateOp("/a", 0, 4096, true)}
}}}

// rangesSetups have ranges that cover a hugeblock in part and as a whole. The second one also has a log
// that is nearly full.
var rangesSetups = []setup{
	{name: "ranges", blocks: 10, ranges: true, live: func(*model) []op {
		return []op{mapOp("/a", 7000, rangeOf(1000, 2000, 1, 0), rangeOf(4000, 3000, 2, 0))}
	}},
	{name: "ranges, a log nearly full", blocks: 10, ranges: true, prepare: func(c *crasher, fs *FS) {
		c.must(fs, mapOp("/a", 7000, rangeOf(0, 4096, 1, 0), rangeOf(6500, 500, 2, 0)))
		c.turnRing(fs)
		c.fillTail(fs, 40)
	}},
}

// onRanges are the letters that map ranges or may change files with ranges.
var onRanges = append(letters("small", "over", "grow", "cut", "stretch", "punch", "replace", "unlink", "allocate", "close", "step", "deallocate"),
	letter{"map", func(m *model) (op, bool) {
		return mapOp("/a", 100, rangeOf(10, 30, 3, 1), rangeOf(20, 50, 4, 1)), m.size("/a") >= 100
	}},
	letter{"map whole", func(m *model) (op, bool) {
		return mapOp("/a", 9000, rangeOf(4096, 4096, 3, 1), rangeOf(0, 4096, 3, 1)), m.size("/a") >= 0
	}},
)

// onReserved are the letters that may change files with reserved hugeblocks.
var onReserved = letters("append", "small", "grow", "gap", "over", "cut", "stretch", "allocate", "punch", "replace", "checkpoint", "fsync")

// onUsed are the letters that free hugeblocks, use freed ones again, or deallocate them.
var onUsed = letters("unlink", "replace", "empty", "punch", "over", "grow", "fsync", "deallocate")

// letters returns the letters of the alphabet with these names.
func letters(names ...string) (list []letter) {
	for _, l := range alphabet {
		if slices.Contains(names, l.name) {
			list = append(list, l)
		}
	}
	return list
}

func (c *crasher) must(fs *FS, o op) {
	require.NoError(c.t, o.fs(fs), o.name)
	c.cov.remember(fs)
	o.model(c.start)
}

// tailSpace returns how many bytes of records still fit the newest log page.
func tailSpace(fs *FS) int {
	_, raw, _ := fs.log.TailRead()
	return blockSize - 96 - 8 - len(parseImage(raw).records)
}

// recordOfLink is the length of a Create record of a symbolic link with a name of two bytes, without its
// target.
const recordOfLink = 44 + 2

// fillTail makes symbolic links until the newest log page has space for left bytes of records, and no
// more than 8 bytes more.
func (c *crasher) fillTail(fs *FS, left int) {
	for n := 0; tailSpace(fs) > left+8; n++ {
		size := min(1000, tailSpace(fs)-left-recordOfLink)
		c.must(fs, symlinkOp(strings.Repeat("x", max(1, size)), fmt.Sprintf("/z%d", n)))
	}
	require.LessOrEqual(c.t, tailSpace(fs), left+8)
}

// turnRing writes log pages until the ring has wrapped and at most one page is free.
func (c *crasher) turnRing(fs *FS) {
	for pages := 0; pages < minLogPages || fs.log.Free() > 1; pages++ {
		c.must(fs, symlinkOp(strings.Repeat("x", 3400), "/z"))
		c.must(fs, removeOp(c.start, "/z"))
		c.must(fs, symlinkOp(strings.Repeat("x", 600), "/z"))
		c.must(fs, removeOp(c.start, "/z"))
	}
}

// each calls f for every sequence of n letters.
func each(letters []letter, n int, f func([]letter)) {
	if n == 0 {
		f(nil)
		return
	}
	each(letters, n-1, func(head []letter) {
		for _, l := range letters {
			f(append(head[:len(head):len(head)], l))
		}
	})
}

// exhaustive says which workloads are run, and how many crashes of each are tried.
type exhaustive struct {
	name    string
	configs []crashConfig
	letters []letter
	depth   int     // largest number of operations in a workload
	limit   int     // crash.Options.MaxImages
	tears   int     // crash.Options.Tears
	again   float64 // crasher.again
	noPairs bool
}

// everyConfig returns all combinations of LBA size, cache and checksums with
// the setups.
func everyConfig(list []setup) (configs []crashConfig) {
	for _, lba := range []nvmf.Bytes{4096, 512} {
		for _, cache := range []bool{false, true} {
			for _, noSums := range []bool{false, true} {
				for _, s := range list {
					name := fmt.Sprintf("LBAs of %d, cache %v, sums %v, %s", lba, cache, !noSums, s.name)
					configs = append(configs, crashConfig{name, lba, cache, noSums, s, false})
				}
			}
		}
	}
	return configs
}

// TestExhaustive runs all workloads of a few operations, and mounts what a crash at any of their events
// may leave. The table of plans says which operations and how many are combined in which configuration.
// With -crash-all the plans combine up to three operations, in every configuration, and the first two
// plans try every combination of up to 16 undetermined LBAs.
func TestExhaustive(t *testing.T) {
	skipRace(t)
	all := everyConfig(setups)
	core, half := alphabet[:coreLetters], len(all)/2
	plans := []exhaustive{
		{"LBAs of 4096, up to one operation of all", all[:half], alphabet, 1, 1 << 8, 2, 0.2, false},
		{"LBAs of 512, up to one operation of the core", all[half:], core, 1, 1 << 8, 1, 0.2, true},
		{"up to two operations of the core, volatile cache", append(slices.Clone(all[10:16]), all[19]), core, 2, 1 << 8, 1, 0.1, true},
		{"up to three operations of the core", all[:5], core, 3, 0, 1, 0.1, false},
		{"up to two operations on what is reserved", everyConfig(reservedSetups)[:4], onReserved, 2, 1 << 6, 1, 0.1, true},
		{"up to three operations on what is used", []crashConfig{all[4], all[14]}, onUsed, 3, 1 << 6, 1, 0.02, true},
		{"up to two operations on ranges", everyConfig(rangesSetups)[:8], onRanges, 2, 1 << 6, 1, 0.02, true},
	}
	if *crashAll {
		plans = []exhaustive{
			{"up to two operations of all", all, alphabet, 2, 1 << 16, 1, 0.05, false},
			{"up to three operations of the core", all, core, 3, 1 << 16, 1, 0.05, false},
			{"up to three operations on what is reserved", everyConfig(reservedSetups), onReserved, 3, 1 << 8, 1, 0.05, false},
			{"up to three operations on what is used", all, onUsed, 3, 1 << 8, 1, 0.05, false},
			{"up to three operations on ranges", everyConfig(rangesSetups), onRanges, 3, 1 << 8, 1, 0.05, false},
		}
	}
	if testing.Short() {
		plans = []exhaustive{{"up to one operation of the core", all[:half], core, 1, 1 << 8, 1, 0.2, true}}
	}
	total, cov := crashCounts{}, coverage{}
	for _, p := range plans {
		n, seen := p.run(t)
		total.add(n)
		cov.add(seen)
	}
	t.Logf("all: %s\n%s", &total, cov)
	cov.require(t, mustCover...)
}

func (p exhaustive) run(t *testing.T) (crashCounts, coverage) {
	began := time.Now()
	total, cov := crashCounts{}, coverage{}
	for _, cfg := range p.configs {
		c := newCrasher(t, cfg, 1)
		c.again = p.again
		c.images = crash.Options{Random: c.r, MaxImages: p.limit, Tears: p.tears, NoPairs: p.noPairs, Samples: 4}
		for n := range p.depth + 1 {
			each(p.letters, n, func(ls []letter) {
				if r := c.record(ls); r != nil {
					c.crash(r)
				}
			})
		}
		if *crashAll {
			t.Logf("%s, %s: %s", p.name, cfg.name, &c.n)
		}
		total.add(c.n)
		cov.add(c.cov)
	}
	took := time.Since(began)
	t.Logf("%s, %d configurations: %s in %v, %.0f a second", p.name, len(p.configs), &total, took, float64(total.all())/took.Seconds())
	return total, cov
}
