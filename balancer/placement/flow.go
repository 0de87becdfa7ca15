package placement

// network is a flow of ranks: from the source to classes of hosts, to classes of targets, to the sink. A class of n targets takes
// n quotas, and through the vertex extra one rank more each, as many as the quotas leave:
//
//	source ── hosts ──(distance)── targets ── sink
//	                                   └── extra ──┘
type network struct {
	p     *problem
	taken []int
	arcs  []arc   // each followed by its reverse
	from  [][]int // arcs of each vertex
	pair  []int   // arc of [host class * device classes + device class], -1: none
	level []int   // of each vertex, in the search for paths
	next  []int
	dist  []int32
}

type arc struct {
	to   int
	left int // remaining capacity
	cost int32
}

// Vertices.
const (
	source = iota
	sink
	extra
	firstHost
)

func (f *network) host(h int) int   { return firstHost + h }
func (f *network) device(d int) int { return firstHost + len(f.p.hosts) + d }

// network creates the flow network for the chosen targets.
func (p *problem) network(taken, quotas []int, kind Kind) *network {
	n := firstHost + len(p.hosts) + len(p.devices)
	f := &network{p: p, taken: taken, from: make([][]int, n), pair: make([]int, len(p.hosts)*len(p.devices))}
	left := p.ranks
	for d, k := range taken {
		if k > 0 {
			left -= k * quotas[d]
			f.add(f.device(d), sink, k*quotas[d], 0)
			if quotas[d] < p.devices[d].limit {
				f.add(f.device(d), extra, k, 0)
			}
		}
	}
	f.add(extra, sink, max(left, 0), 0)
	for h := range p.hosts {
		f.add(source, f.host(h), p.hosts[h].ranks, 0)
		for d, k := range taken {
			f.pair[h*len(p.devices)+d] = -1
			if k > 0 && (kind == Distant || !p.shares(h, d)) {
				f.pair[h*len(p.devices)+d] = len(f.arcs)
				f.add(f.host(h), f.device(d), p.ranks, p.cost(h, d, kind))
			}
		}
	}
	return f
}

func (f *network) add(from, to, capacity int, cost int32) {
	f.from[from] = append(f.from[from], len(f.arcs))
	f.from[to] = append(f.from[to], len(f.arcs)+1)
	f.arcs = append(f.arcs, arc{to, capacity, cost}, arc{from, 0, -cost})
}

// run finds a maximum flow of minimum cost: it fills cheapest paths until there are none.
func (f *network) run() (flow int) {
	f.level, f.next, f.dist = make([]int, len(f.from)), make([]int, len(f.from)), make([]int32, len(f.from))
	for f.distances() {
		for f.layers() {
			for i := range f.next {
				f.next[i] = 0
			}
			for n := f.push(source, f.p.ranks); n > 0; n = f.push(source, f.p.ranks) {
				flow += n
			}
		}
	}
	return flow
}

const unreached = int32(1) << 30

// distances computes the cost of the cheapest path to each vertex (Bellman and Ford, with a queue). It returns false
// if no path leads to the sink.
func (f *network) distances() bool {
	for v := range f.dist {
		f.dist[v] = unreached
	}
	f.dist[source] = 0
	queue, queued := []int{source}, make([]bool, len(f.from))
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		queued[v] = false
		for _, i := range f.from[v] {
			a := &f.arcs[i]
			if a.left > 0 && f.dist[v]+a.cost < f.dist[a.to] {
				f.dist[a.to] = f.dist[v] + a.cost
				if !queued[a.to] {
					queue, queued[a.to] = append(queue, a.to), true
				}
			}
		}
	}
	return f.dist[sink] < unreached
}

// layers numbers the vertices by their distance, in arcs, along cheapest paths (Dinitz). It returns false if no path
// leads to the sink.
func (f *network) layers() bool {
	for v := range f.level {
		f.level[v] = -1
	}
	f.level[source] = 0
	queue := []int{source}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, i := range f.from[v] {
			if a := &f.arcs[i]; f.cheapest(v, a) && f.level[a.to] < 0 {
				f.level[a.to] = f.level[v] + 1
				queue = append(queue, a.to)
			}
		}
	}
	return f.level[sink] >= 0
}

// cheapest reports whether an arc from v has capacity left and is on a cheapest path.
func (f *network) cheapest(v int, a *arc) bool { return a.left > 0 && f.dist[v]+a.cost == f.dist[a.to] }

// push sends a flow of up to n from v to the sink through the layers.
func (f *network) push(v, n int) int {
	if v == sink {
		return n
	}
	for ; f.next[v] < len(f.from[v]); f.next[v]++ {
		i := f.from[v][f.next[v]]
		a := &f.arcs[i]
		if !f.cheapest(v, a) || f.level[a.to] != f.level[v]+1 {
			continue
		}
		if sent := f.push(a.to, min(n, a.left)); sent > 0 {
			a.left -= sent
			f.arcs[i^1].left += sent
			return sent
		}
	}
	return 0
}

// shares returns the flow between classes.
func (f *network) shares() [][]int {
	flow := make([][]int, len(f.p.hosts))
	for h := range flow {
		flow[h] = make([]int, len(f.p.devices))
		for d := range flow[h] {
			if i := f.pair[h*len(f.p.devices)+d]; i >= 0 {
				flow[h][d] = f.arcs[i^1].left
			}
		}
	}
	return flow
}

// stuck returns the classes of hosts from which ranks without a target could be moved, after run.
func (f *network) stuck() []bool {
	seen := make([]bool, len(f.from))
	seen[source] = true
	queue := []int{source}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, i := range f.from[v] {
			if a := &f.arcs[i]; a.left > 0 && !seen[a.to] {
				seen[a.to] = true
				queue = append(queue, a.to)
			}
		}
	}
	return seen[firstHost : firstHost+len(f.p.hosts)]
}

// slack returns how many more ranks the targets of a class could take.
func (f *network) slack(d int) (n int) {
	for _, i := range f.from[f.device(d)] {
		if a := &f.arcs[i]; a.to == sink || a.to == extra {
			n += a.left
		}
	}
	return n
}
