package balancer

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"nvmecr/balancer/hostlist"
)

// A Plan places the ranks of a job, whatever their number. The zero value is round
// robin. Its text form, which ParsePlan reads, is
//
//	plan = "round-robin" | term { "," term }
//	term = device { "+" device } [ "*" count ]
//
// Each term is the home of the next count ranks, one without a count, from rank 0 on;
// behind the last term the first one follows again. A device is the number of a
// namespace, from 0, in the order in which they are named; behind a "+" there are
// those for copies. "0*28,1*28" has 28 ranks each on two namespaces in turn. A plan by hosts has terms for
// each host (At).
type Plan struct {
	terms []term
	parts []part // parts of a plan by hosts; terms then has the homes for ranks that fill the hosts in their order
}

// term is the home of count ranks.
type term struct {
	devices []int
	count   int
}

const roundRobinText = "round-robin"

// maxPeriod is the maximum number of ranks of all terms of a plan.
const maxPeriod = 1 << 31

// ParsePlan parses the text form of a plan; "" is round robin.
func ParsePlan(text string) (Plan, error) {
	if text == "" || text == roundRobinText {
		return Plan{}, nil
	}
	if strings.Contains(text, "=") {
		return parseParts(text)
	}
	terms, err := parseTerms(text)
	return Plan{terms: terms}, err
}

func parseTerms(text string) (terms []term, err error) {
	period := 0
	for _, s := range strings.Split(text, ",") {
		t, err := parseTerm(s)
		if err != nil {
			return nil, err
		}
		if period += t.count; period > maxPeriod {
			return nil, fmt.Errorf("%q places more than %d ranks", text, maxPeriod)
		}
		terms = append(terms, t)
	}
	return terms, nil
}

func parseTerm(s string) (t term, err error) {
	devices, count, counted := strings.Cut(s, "*")
	t.count = 1
	if counted {
		if t.count, err = strconv.Atoi(count); err != nil || t.count < 1 || t.count > maxPeriod {
			return t, fmt.Errorf("%q: %q is not a number of ranks", s, count)
		}
	}
	for _, text := range strings.Split(devices, "+") {
		d, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return t, fmt.Errorf("%q: %q is not the number of a target, from 0; name what ranks use as 0*28,1*28, or say %s", s, text, roundRobinText)
		}
		if slices.Contains(t.devices, int(d)) {
			return t, fmt.Errorf("%q: target %d twice in one home", s, d)
		}
		t.devices = append(t.devices, int(d))
	}
	return t, nil
}

// List returns the plan in which rank r is on targets[r]. Behind the last target the list repeats.
func List(targets []int) (p Plan) {
	for _, d := range targets {
		p.add([]int{d}, 1)
	}
	return p
}

// String returns the text form.
func (p Plan) String() string {
	if len(p.terms) == 0 {
		return roundRobinText
	}
	if !p.ByHosts() {
		return textOf(p.terms)
	}
	var parts []string
	for _, part := range p.parts {
		parts = append(parts, hostlist.Compress(part.hosts)+"="+textOf(part.terms))
	}
	return strings.Join(parts, ";")
}

func textOf(terms []term) string {
	var b strings.Builder
	for i, t := range terms {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, d := range t.devices {
			if j > 0 {
				b.WriteByte('+')
			}
			b.WriteString(strconv.Itoa(d))
		}
		if t.count > 1 {
			fmt.Fprintf(&b, "*%d", t.count)
		}
	}
	return b.String()
}

// Map returns the mapping of a job with size ranks on targets namespaces. A job of one rank is always on the first
// namespace. Map fails if the plan names a namespace that does not exist, or leaves the first one unused: the first
// partition table also belongs to job scripts.
func (p Plan) Map(size, targets int) (Mapping, error) {
	if len(p.terms) == 0 || size == 1 {
		return RoundRobin(size, targets)
	}
	if err := check(size, targets); err != nil {
		return nil, err
	}
	m := &listed{size: size, loads: map[int]int{}}
	for _, t := range p.terms {
		home := homes{first: m.period, count: t.count}
		for _, d := range t.devices {
			if d >= targets {
				return nil, fmt.Errorf("the mapping %s names target %d, and there are targets 0 to %d", p, d, targets-1)
			}
			home.devices = append(home.devices, Device{Target: d, Slot: m.loads[d]})
			m.loads[d] += t.count
		}
		m.homes = append(m.homes, home)
		m.period += t.count
	}
	if len(m.first(0)) == 0 || m.first(0)[0].first >= size {
		return nil, fmt.Errorf("the mapping %s has none of %d ranks on target 0: name the targets in an order in which the first one is used", p, size)
	}
	return m, nil
}

// listed is the mapping of a repeating list of homes.
type listed struct {
	size, period int
	homes        []homes
	loads        map[int]int // number of ranks of one period on each namespace
}

// homes are the homes of count ranks from first on. The slots are those of rank first.
type homes struct {
	first, count int
	devices      []Device
}

func (m *listed) Size() int { return m.size }

func (m *listed) Home(rank int) (Home, error) {
	if err := checkRank(rank, m.size); err != nil {
		return nil, err
	}
	round, at := rank/m.period, rank%m.period
	h := m.homes[sort.Search(len(m.homes), func(i int) bool { return m.homes[i].first > at })-1]
	home := make(Home, len(h.devices))
	for i, d := range h.devices {
		home[i] = Device{Target: d.Target, Slot: round*m.loads[d.Target] + d.Slot + at - h.first}
	}
	return home, nil
}

// first returns the homes of the first period that have a device on target.
func (m *listed) first(target int) (on []homes) {
	for _, h := range m.homes {
		if slices.ContainsFunc(h.devices, func(d Device) bool { return d.Target == target }) {
			on = append(on, h)
		}
	}
	return on
}

func (m *listed) Ranks(target int) (ranks []int) {
	on := m.first(target)
	for begin := 0; len(on) > 0 && begin < m.size; begin += m.period {
		for _, h := range on {
			for r := begin + h.first; r < min(begin+h.first+h.count, m.size); r++ {
				ranks = append(ranks, r)
			}
		}
	}
	return ranks
}
