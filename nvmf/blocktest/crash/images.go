package crash

import (
	"iter"
	"math/rand/v2"
)

// Options limit the enumeration of Images.
type Options struct {
	// Kept means that only the process crashes. Completed writes persist, flushed or
	// not, and only commands in flight are undetermined.
	Kept bool
	// MaxImages is the maximum number of images of whole LBAs for which all
	// combinations are enumerated. 0 means 65536: 16 LBAs with two contents each.
	MaxImages int
	// Samples is the number of random images if not all combinations are enumerated,
	// and the number of images with two torn LBAs.
	Samples int
	// OnlySamples restricts the enumeration to Samples random images, some of them
	// torn.
	OnlySamples bool
	// NoPairs leaves out pairs of LBAs if not all combinations are enumerated.
	NoPairs bool
	// Tears is the maximum number of places at which each LBA is torn. 0 means all
	// places of tearPoints, and a negative number means none.
	Tears int
	// Random is the source of random numbers for samples.
	Random *rand.Rand
}

// An Image describes the contents that are currently on the device.
type Image struct {
	Undetermined int  // number of undetermined LBAs
	Exhaustive   bool // all combinations of whole LBAs are enumerated
	Torn         bool // some LBA is torn
}

const maxLBAs = 16

// Images enumerates the contents that a crash now may leave. It writes them one after
// another to the memory that NewHistory was given. The loop body must not change that
// memory. At the end Images restores it.
func (h *History) Images(o Options) iter.Seq[Image] {
	return func(yield func(Image) bool) {
		if o.MaxImages == 0 {
			o.MaxImages = 1 << maxLBAs
		}
		e := &enumeration{h: h, o: o, slots: h.undetermined(o.Kept), yield: yield}
		e.is.Undetermined = len(e.slots)
		if o.OnlySamples {
			e.samples()
			e.restore()
			return
		}
		product := 1
		for i := range e.slots {
			if product *= len(e.slots[i].choices); product > o.MaxImages {
				break
			}
		}
		e.is.Exhaustive = len(e.slots) <= maxLBAs && product <= o.MaxImages
		if e.is.Exhaustive {
			e.all(0)
		} else {
			e.singlesAndPairs()
		}
		if o.Tears >= 0 {
			e.is.Torn = true
			e.tears()
		}
		e.restore()
	}
}

type enumeration struct {
	h       *History
	o       Options
	is      Image
	slots   []slot
	yield   func(Image) bool
	stopped bool
}

func (e *enumeration) set(i, choice int) { copy(e.h.at(e.slots[i].lba), e.slots[i].choices[choice]) }

func (e *enumeration) restore() {
	for i := range e.slots {
		e.set(i, e.slots[i].now)
	}
}

// samples generates random images, half of them torn.
func (e *enumeration) samples() {
	for range e.o.Samples {
		if e.stopped {
			return
		}
		e.any()
		e.is.Torn = e.o.Random.IntN(2) == 0
		if e.is.Torn {
			e.is.Torn = false
			for i := range e.slots {
				if s := &e.slots[i]; s.cmd >= 0 && s.new != s.old && e.o.Random.IntN(3) == 0 {
					e.tear(i, 1+e.o.Random.IntN(e.h.lba-1))
					e.is.Torn = true
				}
			}
		}
		e.emit()
	}
}

// emit passes the image in memory to the loop body.
func (e *enumeration) emit() {
	if !e.stopped {
		e.stopped = !e.yield(e.is)
	}
}

// all generates every combination of the contents of the slots from i on.
func (e *enumeration) all(i int) {
	if i == len(e.slots) {
		e.emit()
		return
	}
	for c := range e.slots[i].choices {
		if e.stopped {
			return
		}
		e.set(i, c)
		e.all(i + 1)
	}
}

// singlesAndPairs generates every content of one slot and of two slots, against the
// oldest and the newest contents of all others. Random combinations follow.
func (e *enumeration) singlesAndPairs() {
	for _, oldest := range []bool{true, false} {
		base := make([]int, len(e.slots))
		for i := range base {
			if !oldest {
				base[i] = len(e.slots[i].choices) - 1
			}
			e.set(i, base[i])
		}
		e.emit()
		for i := range e.slots {
			e.others(i, base[i], func() {
				e.emit()
				for j := i + 1; j < len(e.slots) && !e.o.NoPairs && !e.stopped; j++ {
					e.others(j, base[j], e.emit)
				}
			})
		}
	}
	for range e.o.Samples {
		e.any()
		e.emit()
	}
}

// others sets slot i to each of its contents except base, and calls f. Then it sets the
// slot to base.
func (e *enumeration) others(i, base int, f func()) {
	for c := range e.slots[i].choices {
		if c != base && !e.stopped {
			e.set(i, c)
			f()
		}
	}
	e.set(i, base)
}

// any generates a random combination. The contents are mostly old, mostly new, or drawn
// evenly.
func (e *enumeration) any() {
	mode := e.o.Random.IntN(3)
	for i := range e.slots {
		c := e.o.Random.IntN(len(e.slots[i].choices))
		if mode > 0 && e.o.Random.IntN(8) > 0 {
			c = (mode - 1) * (len(e.slots[i].choices) - 1)
		}
		e.set(i, c)
	}
}

// tears generates images with one torn LBA of a write in flight, and random ones with
// two.
func (e *enumeration) tears() {
	commands := len(e.h.flight) + len(e.h.late)
	if commands > 6 { // workloads with small geometries have fewer in flight
		commands = 6
	}
	var torn []int
	for i := range e.slots {
		s := &e.slots[i]
		if s.cmd < 0 || s.new == s.old {
			continue
		}
		torn = append(torn, i)
		for _, b := range some(tearPoints(s.choices[s.old], s.choices[s.new]), e.o.Tears) {
			for whole := range 1 << commands {
				if s.cmd < commands && whole>>s.cmd&1 != 0 {
					continue // the torn command is neither absent nor whole
				}
				e.arrange(s, whole)
				e.tear(i, b)
				e.emit()
			}
		}
	}
	for range e.o.Samples {
		if len(torn) < 2 || e.stopped {
			return
		}
		e.any()
		for range 2 {
			i := torn[e.o.Random.IntN(len(torn))]
			e.tear(i, 1+e.o.Random.IntN(e.h.lba-1))
		}
		e.emit()
	}
}

// arrange sets all LBAs for an image with one torn LBA. The torn command is written up
// to that LBA. Of the other commands in flight, those whose bit in whole is set are
// written. All other LBAs have the contents that reads return.
func (e *enumeration) arrange(torn *slot, whole int) {
	for i := range e.slots {
		s := &e.slots[i]
		switch {
		case s.cmd < 0:
			e.set(i, s.now)
		case s.cmd == torn.cmd && s.lba < torn.lba, s.cmd != torn.cmd && whole>>s.cmd&1 != 0:
			e.set(i, s.new)
		default:
			e.set(i, s.old)
		}
	}
}

// tear sets slot i to the first b bytes of its write, followed by the old bytes.
func (e *enumeration) tear(i, b int) {
	s := &e.slots[i]
	at := e.h.at(s.lba)
	copy(at, s.choices[s.new][:b])
	copy(at[b:], s.choices[s.old][b:])
}

// some returns at most n of the points, evenly distributed. It returns all if n is 0.
func some(points []int, n int) []int {
	if n == 0 || len(points) <= n {
		return points
	}
	for i := range n {
		points[i] = points[(2*i+1)*len(points)/(2*n)]
	}
	return points[:n]
}

// edgeRuns is the number of runs of differing bytes at whose edges a block is torn,
// counted from the first one and from the last one.
const edgeRuns = 3

// tearPoints returns the places at which to tear a block, as numbers of bytes written.
// The contents at each place differ from each other, and from old and new.
func tearPoints(old, new []byte) []int {
	var edges []int // offsets where runs of differing bytes begin and end, alternately
	for i := range old {
		if (old[i] != new[i]) != (len(edges)%2 == 1) {
			edges = append(edges, i)
		}
	}
	if len(edges)%2 == 1 {
		edges = append(edges, len(old))
	}
	if len(edges) == 0 {
		return nil
	}
	first, end := edges[0], edges[len(edges)-1]
	mark := map[int]bool{first + 1: true, end - 1: true, (first + end) / 2: true}
	for i, at := range edges {
		if i < 2*edgeRuns || i >= len(edges)-2*edgeRuns {
			mark[at] = true
		}
	}
	for at := 512; at < len(old); at += 512 {
		mark[at] = true
	}
	var points []int
	different := false // a byte since the last point differs
	for b := range old {
		if mark[b] && different {
			points = append(points, b)
			different = false
		}
		different = different || old[b] != new[b]
	}
	// The last point must be before the last differing byte, which is then not written.
	for len(points) > 0 && points[len(points)-1] >= end {
		points = points[:len(points)-1]
	}
	return points
}
