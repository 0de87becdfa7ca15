package crash

import (
	"iter"
	"math/rand/v2"
)

// Options say how thoroughly Images works.
type Options struct {
	// Kept says that the device lives on: what has completed stays, flushed
	// or not. Only what is in flight is undetermined.
	Kept bool
	// MaxImages is how many images of whole LBAs are made at most where all
	// combinations are. 0 is 65536: 16 LBAs with two contents each.
	MaxImages int
	// Samples is how many random images are made where not all combinations
	// are, and how many pairs of LBAs are torn at random.
	Samples int
	// OnlySamples makes Samples random images, torn ones among them, and nothing
	// else.
	OnlySamples bool
	// NoPairs leaves out pairs of LBAs where not all combinations are made.
	NoPairs bool
	// Tears is at how many places each LBA is torn at most; 0 is all that
	// tearPoints knows, a negative number none.
	Tears int
	// Random is needed for samples.
	Random *rand.Rand
}

// Image says what kind of content is on the device now.
type Image struct {
	Undetermined int  // LBAs
	Exhaustive   bool // all combinations of whole LBAs are made
	Torn         bool // inside an LBA
}

const maxLBAs = 16

// Images makes one content after the other that a crash now may leave, in the
// memory NewHistory was given. The loop's body must leave that memory as it
// found it. Afterwards it is as before.
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

// samples makes random images, half of them torn.
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

// emit hands out what is in memory.
func (e *enumeration) emit() {
	if !e.stopped {
		e.stopped = !e.yield(e.is)
	}
}

// all makes every combination of the slots from i on.
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

// singlesAndPairs makes every choice of one slot and of two, against the oldest and the
// newest of all others, and samples.
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

// others makes every choice of slot i but base, and goes back to that.
func (e *enumeration) others(i, base int, f func()) {
	for c := range e.slots[i].choices {
		if c != base && !e.stopped {
			e.set(i, c)
			f()
		}
	}
	e.set(i, base)
}

// any makes a random combination: mostly of old contents, mostly of new, or
// of all alike.
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

// tears makes images with one LBA of a write in flight torn, and with two.
func (e *enumeration) tears() {
	commands := len(e.h.flight) + len(e.h.late)
	if commands > 6 { // more than ever are in flight in small geometries
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
					continue // the torn one is neither absent nor whole
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

// arrange sets all LBAs for a torn one: its command is written up to it, of
// the other commands those whose bit is set are, and what is not in flight is
// as reads return it.
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

// tear writes the first b bytes of slot i's write.
func (e *enumeration) tear(i, b int) {
	s := &e.slots[i]
	at := e.h.at(s.lba)
	copy(at, s.choices[s.new][:b])
	copy(at[b:], s.choices[s.old][b:])
}

// some returns at most n of the points, evenly spread; all if n is 0.
func some(points []int, n int) []int {
	if n == 0 || len(points) <= n {
		return points
	}
	for i := range n {
		points[i] = points[(2*i+1)*len(points)/(2*n)]
	}
	return points[:n]
}

// edgeRuns is how many runs of differing bytes are torn at their edges, from
// the first and from the last.
const edgeRuns = 3

// tearPoints returns where to tear a block, as a number of bytes written, each
// leaving another content, neither old nor new.
func tearPoints(old, new []byte) []int {
	var edges []int // where differing bytes begin and end, in turns
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
	different := false // from what the last point leaves
	for b := range old {
		if mark[b] && different {
			points = append(points, b)
			different = false
		}
		different = different || old[b] != new[b]
	}
	// The last point must leave a byte that is not written yet.
	for len(points) > 0 && points[len(points)-1] >= end {
		points = points[:len(points)-1]
	}
	return points
}
