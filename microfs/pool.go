package microfs

// run is a number of hugeblocks that follow each other.
type run struct{ start, count Hugeblock }

// pool is the circular pool of free runs: taken at the head, given back at
// the tail, both in O(1). Its memory follows the number of runs, not of
// hugeblocks.
type pool struct {
	ring []run // capacity is a power of two
	head int
	n    int
	free Hugeblock
}

// take removes up to want hugeblocks from the run at the head.
func (p *pool) take(want Hugeblock) (run, bool) {
	if p.n == 0 || want == 0 {
		return run{}, false
	}
	r := &p.ring[p.head]
	got := run{r.start, min(want, r.count)}
	r.start += got.count
	r.count -= got.count
	if r.count == 0 {
		p.head = (p.head + 1) & (len(p.ring) - 1)
		p.n--
	}
	p.free -= got.count
	return got, true
}

// give adds a run at the tail.
func (p *pool) give(r run) {
	if r.count == 0 {
		return
	}
	p.free += r.count
	if p.n > 0 {
		if last := &p.ring[(p.head+p.n-1)&(len(p.ring)-1)]; last.start+last.count == r.start {
			last.count += r.count
			return
		}
	}
	p.grow()
	p.ring[(p.head+p.n)&(len(p.ring)-1)] = r
	p.n++
}

// untake puts back what take has just handed out.
func (p *pool) untake(r run) {
	p.free += r.count
	if p.n > 0 {
		if first := &p.ring[p.head]; r.start+r.count == first.start {
			first.start, first.count = r.start, first.count+r.count
			return
		}
	}
	p.grow()
	p.head = (p.head - 1) & (len(p.ring) - 1)
	p.ring[p.head] = r
	p.n++
}

// rotate moves half of what is free from the head to the tail.
func (p *pool) rotate() {
	for half := p.free / 2; half > 0; {
		r, _ := p.take(half)
		half -= r.count
		p.give(r)
	}
}

func (p *pool) grow() {
	if p.n < len(p.ring) {
		return
	}
	ring := make([]run, max(16, 2*len(p.ring)))
	for i := range p.n {
		ring[i] = p.ring[(p.head+i)&(len(p.ring)-1)]
	}
	p.ring, p.head = ring, 0
}
