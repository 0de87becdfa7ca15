package microfs

import "nvmecr/nvmf"

// run is a number of consecutive hugeblocks.
type run struct{ start, count Hugeblock }

// pool holds the free hugeblocks, in two circular queues of runs:
//
//	fresh  never written, or deallocated: a thin device has no storage for it
//	used   freed, and not deallocated yet (deallocate.go)
//
// Where the device cannot deallocate, all runs are fresh. Runs are allocated at the
// head of a queue and freed at its tail, both in O(1). A used run is allocated first,
// if it is long enough not to split a write: the device has storage for it, so a file
// system that is overwritten again and again takes no more of the device than its
// largest content.
type pool struct {
	fresh, used ring
	// open is the used run that is allocated from, until nothing is left of it.
	open run
	free Hugeblock
	// taken counts the allocated hugeblocks since the mount.
	taken uint64
	// tracksUsed says that freed runs become used: the device can deallocate them.
	tracksUsed bool
	// freshFirst says that used runs are allocated last.
	freshFirst bool
	// long is the least length of a used run that is taken before fresh ones.
	long Hugeblock
}

// longRun is the least size of a used run that is taken first: that of one command of a large
// write.
const longRun = 512 * nvmf.KiB

// take removes up to want consecutive hugeblocks.
func (p *pool) take(want Hugeblock) (run, bool) {
	if want == 0 || p.free == 0 {
		return run{}, false
	}
	got, ok := run{}, false
	if p.open.count == 0 && p.used.n > 0 && (p.fresh.n == 0 || !p.freshFirst && p.used.first().count >= p.long) {
		p.open, _ = p.used.take(^Hugeblock(0))
	}
	if p.open.count > 0 {
		got, ok = p.open.cut(want), true
	} else {
		got, ok = p.fresh.take(want)
	}
	p.free -= got.count
	p.taken += uint64(got.count)
	return got, ok
}

// cut takes up to want hugeblocks from the start of r.
func (r *run) cut(want Hugeblock) run {
	got := run{r.start, min(want, r.count)}
	r.start += got.count
	r.count -= got.count
	return got
}

// give adds a run that was freed.
func (p *pool) give(r run) {
	if !p.tracksUsed {
		p.putLast(r)
		return
	}
	p.free += r.count
	p.used.give(r)
}

// putLast adds a run that is taken after all others: one that was deallocated, or one that the
// device refused to write.
func (p *pool) putLast(r run) {
	p.free += r.count
	p.fresh.give(r)
}

// untake puts back the run that the last take returned, so that it is taken next.
func (p *pool) untake(r run) {
	p.free += r.count
	if p.open.count > 0 && r.start+r.count == p.open.start {
		p.open.start, p.open.count = r.start, p.open.count+r.count
		return
	}
	p.fresh.untake(r)
}

// usedBlocks returns how many hugeblocks are used.
func (p *pool) usedBlocks() Hugeblock { return p.used.free + p.open.count }

// takeUsed removes up to want used hugeblocks, from those that would be taken last.
func (p *pool) takeUsed(want Hugeblock) (run, bool) {
	got, ok := p.used.takeLast(want)
	if !ok && p.open.count > 0 && want > 0 {
		got, ok = p.open.cut(want), true
	}
	p.free -= got.count
	return got, ok
}

// stopTracking makes all used runs fresh, because the device does not deallocate.
func (p *pool) stopTracking() {
	p.tracksUsed = false
	for p.usedBlocks() > 0 {
		r, _ := p.takeUsed(^Hugeblock(0))
		p.putLast(r)
	}
}

// rotate moves half of the free hugeblocks, but no more than limit of each queue, from the head to
// the tail.
func (p *pool) rotate(limit Hugeblock) {
	p.fresh.rotate(limit)
	p.used.rotate(limit)
}

// end removes all hugeblocks from end on.
func (p *pool) end(end Hugeblock) {
	p.fresh.end(end)
	p.used.end(end)
	p.open.count = min(p.open.count, max(end, p.open.start)-p.open.start)
	p.free = p.fresh.free + p.used.free + p.open.count
}

// ring is a circular queue of runs. Its memory grows with the number of runs, not of hugeblocks.
type ring struct {
	runs []run // their number is a power of two
	head int
	n    int
	free Hugeblock
}

func (q *ring) at(i int) *run { return &q.runs[(q.head+i)&(len(q.runs)-1)] }

// first returns the run at the head. There must be one.
func (q *ring) first() *run { return q.at(0) }

// take removes up to want hugeblocks from the run at the head.
func (q *ring) take(want Hugeblock) (run, bool) {
	if q.n == 0 || want == 0 {
		return run{}, false
	}
	r := q.first()
	got := r.cut(want)
	if r.count == 0 {
		q.head = (q.head + 1) & (len(q.runs) - 1)
		q.n--
	}
	q.free -= got.count
	return got, true
}

// takeLast removes up to want hugeblocks from the run at the tail.
func (q *ring) takeLast(want Hugeblock) (run, bool) {
	if q.n == 0 || want == 0 {
		return run{}, false
	}
	r := q.at(q.n - 1)
	got := r.cut(want)
	if r.count == 0 {
		q.n--
	}
	q.free -= got.count
	return got, true
}

// give adds a run at the tail.
func (q *ring) give(r run) {
	if r.count == 0 {
		return
	}
	q.free += r.count
	if q.n > 0 {
		if last := q.at(q.n - 1); last.start+last.count == r.start {
			last.count += r.count
			return
		}
	}
	q.grow()
	q.n++
	*q.at(q.n - 1) = r
}

// untake adds a run at the head.
func (q *ring) untake(r run) {
	q.free += r.count
	if q.n > 0 {
		if first := q.first(); r.start+r.count == first.start {
			first.start, first.count = r.start, first.count+r.count
			return
		}
	}
	q.grow()
	q.head = (q.head - 1) & (len(q.runs) - 1)
	*q.at(0) = r
	q.n++
}

// rotate moves half of the hugeblocks, but no more than limit, from the head to the tail.
func (q *ring) rotate(limit Hugeblock) {
	for half := min(q.free/2, limit); half > 0; {
		r, _ := q.take(half)
		half -= r.count
		q.give(r)
	}
}

// end removes all hugeblocks from end on.
func (q *ring) end(end Hugeblock) {
	var left ring
	for q.n > 0 {
		r, _ := q.take(q.free)
		if r.start < end {
			left.give(run{r.start, min(r.count, end-r.start)})
		}
	}
	*q = left
}

func (q *ring) grow() {
	if q.n < len(q.runs) {
		return
	}
	runs := make([]run, max(16, 2*len(q.runs)))
	for i := range q.n {
		runs[i] = *q.at(i)
	}
	q.runs, q.head = runs, 0
}
