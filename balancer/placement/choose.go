package placement

import (
	"math/bits"
	"slices"

	"nvmecr/balancer/site"
)

// solution says how many ranks of each class of hosts write to each class of targets.
type solution struct {
	p     *problem
	flow  [][]int // ranks, [host class][device class]
	taken []int   // targets of each device class

	quota [][]int // ranks that each chosen target still gets, while next distributes them
}

// next assigns up to n ranks of host class h to a target. It returns the class of the target, the target, and the
// number of ranks.
func (s *solution) next(h, n int) (d int, t *site.Target, ranks int) {
	if s.quota == nil {
		s.share()
	}
	for s.flow[h][d] == 0 {
		d++
	}
	at := 0
	for s.quota[d][at] == 0 {
		at++
	}
	ranks = min(n, s.flow[h][d], s.quota[d][at])
	s.flow[h][d] -= ranks
	s.quota[d][at] -= ranks
	return d, s.p.devices[d].targets[at], ranks
}

// share divides the ranks of each class of targets into equal quotas.
func (s *solution) share() {
	s.quota = make([][]int, len(s.taken))
	for d, n := range s.taken {
		total := 0
		for h := range s.flow {
			total += s.flow[h][d]
		}
		s.quota[d] = make([]int, n)
		for i := range n {
			s.quota[d][i] = (total + i) / n // the sum of the quotas is total
		}
		slices.Reverse(s.quota[d])
	}
}

// solve chooses targets for a kind of plan, and the best flow to them. It returns nil if there is no such plan.
func (p *problem) solve(kind Kind) *solution {
	open := make([]int, len(p.devices)) // number of targets of each class that may be chosen
	for d := range p.devices {
		if kind != Apart || p.apart(d) {
			open[d] = len(p.devices[d].targets)
		}
	}
	if sum(open) < p.want {
		return nil
	}
	taken := p.choose(open, kind)
	s := p.assign(taken, kind)
	for tries := 0; s == nil && tries < 4*p.want+16; tries++ {
		if !p.exchange(taken, open, kind) {
			break
		}
		s = p.assign(taken, kind)
	}
	if s == nil && kind == Spread {
		s = p.search(open)
	}
	if s != nil && len(p.hosts)*len(p.devices) <= smallProblem {
		s = p.improve(taken, open, kind, s)
	}
	return s
}

// smallProblem is the maximum number of pairs of classes for which a plan is improved by exchanging single targets.
const smallProblem = 4096

// choose chooses the targets one after the other: each time the one that can take most of a fair load, at the fewest
// switches from its ranks. The chosen targets may not be able to take all ranks.
func (p *problem) choose(open []int, kind Kind) []int {
	taken, left := make([]int, len(p.devices)), make([]int, len(p.hosts))
	for h := range p.hosts {
		left[h] = p.hosts[h].ranks
	}
	near := p.nearest(kind)
	inDomain := make(map[string]int) // number of chosen targets in each domain
	for n := range p.want {
		quota := (sum(left) + p.want - n - 1) / (p.want - n)
		best, bestRank := -1, rank{}
		for d := range p.devices {
			if taken[d] == open[d] {
				continue
			}
			filled, hops := p.fill(d, near[d], left, quota, nil)
			r := rank{quota - filled, p.worn(d), hops, p.devices[d].targets[0].Load, inDomain[p.devices[d].key()]}
			if best < 0 || r.less(bestRank) {
				best, bestRank = d, r
			}
		}
		p.fill(best, near[best], left, quota, left)
		taken[best]++
		inDomain[p.devices[best].key()]++
	}
	return taken
}

// rank compares targets, the most important criterion first: ranks left without a target, health, sum of distances,
// load, number of its domains that are in use already.
type rank [5]int

func (r rank) less(o rank) bool { return slices.Compare(r[:], o[:]) < 0 }

func (p *problem) worn(d int) int {
	if p.devices[d].targets[0].Health != site.OK {
		return 1
	}
	return 0
}

// nearest lists the classes of hosts that may use each class of targets, the best first.
func (p *problem) nearest(kind Kind) [][]int {
	lists := make([][]int, len(p.devices))
	for d := range p.devices {
		for h := range p.hosts {
			if kind == Distant || !p.shares(h, d) {
				lists[d] = append(lists[d], h)
			}
		}
		slices.SortStableFunc(lists[d], func(a, b int) int { return int(p.cost(a, d, kind) - p.cost(b, d, kind)) })
	}
	return lists
}

// fill assigns quota of the remaining ranks to a target of class d, the nearest first. It stores the ranks that
// remain then in into, if not nil.
func (p *problem) fill(d int, near, left []int, quota int, into []int) (filled, hops int) {
	quota = min(quota, p.devices[d].limit)
	for _, h := range near {
		n := min(left[h], quota-filled)
		if n == 0 {
			continue
		}
		filled, hops = filled+n, hops+n*int(p.penalisedDistance(h, d))
		if into != nil {
			into[h] -= n
		}
		if filled == quota {
			break
		}
	}
	return filled, hops
}

// cost returns the cost of a rank of class h on a target of class d.
func (p *problem) cost(h, d int, kind Kind) int32 {
	if kind != Distant {
		return p.penalisedDistance(h, d)
	}
	cost := int32(p.unknownDistance) - p.distance[h][d] // prefer distant targets
	if p.shares(h, d) {
		cost += int32(p.unknownDistance) * 1000
	}
	return cost
}

// penalisedDistance returns the distance of two classes, plus a penalty for each common domain of a kind that is ignored: if not
// all ranks can be kept apart from their data, those are that can be.
func (p *problem) penalisedDistance(h, d int) int32 {
	return p.distance[h][d] + int32(p.unknownDistance*bits.OnesCount64(p.shared[h][d]&^p.respected))
}

// assign returns the minimum cost flow to the chosen targets, or nil if they cannot take all ranks.
func (p *problem) assign(taken []int, kind Kind) *solution {
	quotas, ok := p.quotas(taken)
	if !ok {
		return nil
	}
	f := p.network(taken, quotas, kind)
	if f.run() < p.ranks {
		return nil
	}
	return &solution{p: p, flow: f.shares(), taken: slices.Clone(taken)}
}

// quotas returns the number of ranks of one target of each chosen class, rounded down: equal for all, or by
// bandwidth. Each may take one more. ok is false if the targets cannot take all ranks.
func (p *problem) quotas(taken []int) ([]int, bool) {
	quotas := make([]int, len(taken))
	weight := func(d int) float64 {
		if p.weighted {
			return float64(p.devices[d].targets[0].Bandwidth)
		}
		return 1
	}
	full := make([]bool, len(taken))
	for ranks := p.ranks; ; {
		total := 0.0
		for d, n := range taken {
			if !full[d] {
				total += float64(n) * weight(d)
			}
		}
		if total == 0 {
			return quotas, ranks <= 0
		}
		again := false
		for d, n := range taken {
			if n == 0 || full[d] {
				continue
			}
			quotas[d] = int(float64(ranks) * weight(d) / total * (1 + 1e-12))
			if quotas[d] >= p.devices[d].limit { // the others take the rest
				quotas[d], full[d], again = p.devices[d].limit, true, true
			}
		}
		if !again {
			return quotas, true
		}
		ranks = p.ranks
		for d, n := range taken {
			if full[d] {
				ranks -= n * quotas[d]
			}
		}
		if ranks < 0 { // more than enough, also with equal quotas
			ranks = 0
		}
	}
}

// exchange replaces a target that is not needed by one that ranks without a target may use.
func (p *problem) exchange(taken, open []int, kind Kind) bool {
	quotas, ok := p.quotas(taken)
	if !ok {
		return p.exchangeForLarger(taken, open)
	}
	f := p.network(taken, quotas, kind)
	f.run()
	stuck := f.stuck() // host classes with ranks without a target, and those that compete
	in, gain := -1, 0
	for d := range p.devices {
		if taken[d] == open[d] {
			continue
		}
		helps := 0
		for h := range p.hosts {
			if stuck[h] && !p.shares(h, d) {
				helps += p.hosts[h].ranks
			}
		}
		if helps > gain {
			in, gain = d, helps
		}
	}
	out, slack := -1, 0
	for d := range p.devices {
		if s := f.slack(d); taken[d] > 0 && d != in && (out < 0 || s > slack) {
			out, slack = d, s
		}
	}
	if in < 0 || out < 0 {
		return false
	}
	taken[in]++
	taken[out]--
	return true
}

// exchangeForLarger replaces the target with the smallest limit by one with a larger limit.
func (p *problem) exchangeForLarger(taken, open []int) bool {
	in, out := -1, -1
	for d := range p.devices {
		if taken[d] < open[d] && (in < 0 || p.devices[d].limit > p.devices[in].limit) {
			in = d
		}
		if taken[d] > 0 && (out < 0 || p.devices[d].limit < p.devices[out].limit) {
			out = d
		}
	}
	if in < 0 || out < 0 || p.devices[in].limit <= p.devices[out].limit {
		return false
	}
	taken[in]++
	taken[out]--
	return true
}

// maxChoices is the maximum number of choices that search tries.
const maxChoices = 20_000

// search tries all choices of targets, if there are few enough.
func (p *problem) search(open []int) (found *solution) {
	choices := 1
	for _, n := range open {
		if choices *= n + 1; choices > maxChoices {
			return nil
		}
	}
	taken := make([]int, len(open))
	var try func(d, left int)
	try = func(d, left int) {
		switch {
		case found != nil:
		case d == len(open):
			if left == 0 {
				found = p.assign(taken, Spread)
			}
		default:
			for n := min(open[d], left); n >= 0; n-- {
				taken[d] = n
				try(d+1, left-n)
			}
		}
	}
	try(0, p.want)
	return found
}

// improve exchanges targets while that reduces the distances.
func (p *problem) improve(taken, open []int, kind Kind, s *solution) *solution {
	best := p.total(s, kind)
	for improved := true; improved; {
		improved = false
		for out := range taken {
			for in := range taken {
				if in == out || taken[out] == 0 || taken[in] == open[in] || p.worn(in) > p.worn(out) {
					continue
				}
				taken[out]--
				taken[in]++
				if t := p.assign(taken, kind); t != nil && p.total(t, kind) < best {
					s, best, improved = t, p.total(t, kind), true
					continue
				}
				taken[out]++
				taken[in]--
			}
		}
	}
	return s
}

func (p *problem) total(s *solution, kind Kind) (cost int) {
	for h, row := range s.flow {
		for d, n := range row {
			cost += n * int(p.cost(h, d, kind))
		}
	}
	return cost
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}
