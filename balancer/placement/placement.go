// Package placement decides which storage targets a job gets, and which ranks write to which of them: the first half of the paper's
// storage balancer (section III.F). Package balancer has the second, the segments of a target.
//
// A failure domain is what fails together: a node, the nodes of a switch, or other kinds that the site's inventory names (power,
// cooling). A rank and its data should have no domain in common, so that one failure does not take both. New tries these kinds of
// plans in order, and returns the first that is possible:
//
//  1. Apart: no target is in a domain of any node of the job.
//  2. Spread: no rank shares a domain with its own target.
//  3. The same two, ignoring the widest kind of domain, then the two widest kinds, and so on, until only the node counts. Sharing a
//     domain of an ignored kind adds the maximum distance to the cost of a rank.
//  4. Distant: as few ranks as possible share a node with their target, and targets are as far away as possible.
//
// Every plan but the first kind has warnings (Plan.Warnings), and is refused if Job.Strict is set.
//
// Targets have equal loads, or loads in proportion to their bandwidths if all are known, except for one rank. Targets are chosen
// greedily: the nearest first, in number of switches, and of these the least loaded. For the chosen targets the sum of distances is
// minimal (a minimum cost flow). Nodes with the same switch and domains form a class, and so do targets, so that the computing time
// depends on the number of classes.
//
// Plans are deterministic. They depend on the order of the input, not on names. All functions are pure and safe for concurrent use.
package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"nvmecr/balancer"
	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/nvmf"
)

// RanksPerTarget is the maximum number of ranks on one SSD in the paper: 56 to 112 use its bandwidth best (section
// III.F).
const RanksPerTarget = 112

// A Host is a node of the job.
type Host struct {
	Name  string
	Ranks int
}

// A Job is the job to plan for.
type Job struct {
	Hosts []Host // in the order of their ranks
	// Targets is the number of targets. 0: as many as RankBandwidth needs, if that and the bandwidths of all targets
	// are known, otherwise one for RanksPerTarget ranks.
	Targets       int
	RankBandwidth nvmf.Bytes // bytes that a rank writes per second; 0: unknown
	RankCapacity  nvmf.Bytes // space that a rank needs; 0: unknown
	Strict        bool       // refuse a plan that is not Apart
}

// A Kind says how far ranks are from their data.
type Kind int

// Kinds of plans, the best first.
const (
	Apart Kind = iota
	Spread
	Distant
)

func (k Kind) String() string { return [...]string{"apart", "spread", "distant"}[k] }

// A Plan maps the ranks of a job to targets.
type Plan struct {
	Kind    Kind
	Domains []string // kinds of domains that the plan respects, the widest first
	Targets []Target // in the order in which ranks use them
	Shares  []Share  // in the order of ranks
	Hops    int      // sum of the distances of ranks to their targets, in switches
	// Warnings are messages for the user.
	Warnings []string

	places
	job  Job
	home []int // index of the first share of each host
}

// A Target is a target of the plan.
type Target struct {
	site.Target
	Ranks int // number of ranks that write to it
}

// A Share is a number of consecutive ranks of one host that write to one target.
type Share struct {
	Host   int // index into Job.Hosts
	Target int // index into Plan.Targets
	Ranks  int
	Hops   int // switches between host and target
}

// Errors of New.
var (
	ErrTooFew = errors.New("the site has too few targets")
	ErrShared = errors.New("ranks would share a failure domain with their data")
)

// New plans a job. Nodes and targets that the topology lacks count as farther away than all others, with a warning;
// for a strict job they count as sharing a switch with all. Errors: ErrTooFew; ErrShared, for a strict job.
func New(job Job, net *topology.Topology, inv *site.Inventory) (*Plan, error) {
	p, err := newProblem(job, net, inv)
	if err != nil {
		return nil, err
	}
	for n := 0; n <= len(inv.Domains); n++ {
		p.respect(inv.Domains[n:])
		for _, kind := range []Kind{Apart, Spread} {
			if n == 0 && kind == Apart || !job.Strict {
				if s := p.solve(kind); s != nil {
					return p.plan(s, kind, n), nil
				}
			}
		}
	}
	if job.Strict {
		return nil, p.refusal()
	}
	p.respect(nil)
	s := p.solve(Distant)
	if s == nil {
		return nil, fmt.Errorf("%d targets for %d ranks of %s each: %w", p.want, p.ranks, p.job.RankCapacity, ErrTooFew)
	}
	return p.plan(s, Distant, len(inv.Domains)), nil
}

// refusal returns the reason why a strict job has no plan.
func (p *problem) refusal() error {
	p.respect(p.inv.Domains)
	apart := 0
	for d := range p.devices {
		if p.apart(d) {
			apart += len(p.devices[d].targets)
		}
	}
	unknown := ""
	if lost := p.allUnlocated(p.job.Hosts, p.inv.Targets); len(lost) > 0 {
		unknown = fmt.Sprintf(" (the topology does not have %s)", few(lost))
	}
	return fmt.Errorf("%d of %d targets are outside of the job's failure domains (%s), and %d are wanted%s; plan for fewer targets or fewer nodes, or without --strict: %w",
		apart, p.available, strings.Join(p.inv.Domains, ", "), p.want, unknown, ErrShared)
}

// plan converts a solution for classes to a plan for hosts and targets.
func (p *problem) plan(s *solution, kind Kind, ignored int) *Plan {
	plan := &Plan{Kind: kind, Domains: append(slices.Clone(p.inv.Domains[ignored:]), site.Node), places: p.places, job: p.job}
	number := make(map[*site.Target]int)
	for h, host := range p.job.Hosts {
		plan.home = append(plan.home, len(plan.Shares))
		for left := host.Ranks; left > 0; {
			d, t, n := s.next(p.hostClass[h], left)
			i, ok := number[t]
			if !ok {
				i = len(plan.Targets)
				number[t] = i
				plan.Targets = append(plan.Targets, Target{Target: *t})
			}
			hops := p.hops(p.hostClass[h], d)
			plan.Shares = append(plan.Shares, Share{Host: h, Target: i, Ranks: n, Hops: hops})
			plan.Targets[i].Ranks += n
			plan.Hops += n * hops
			left -= n
		}
	}
	plan.warn(ignored)
	return plan
}

// warn adds warnings about rules that the plan breaks.
func (p *Plan) warn(ignored int) {
	say := func(format string, args ...any) { p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...)) }
	kept := strings.Join(p.Domains, ", ")
	switch {
	case p.Kind == Distant:
		say("%d ranks share their node with their target, since there is no better plan: data and process are lost together", p.shared())
	case ignored > 0:
		say("there are too few targets that share no %s with their ranks: they only have different %s", strings.Join(p.inv.Domains[:ignored], ", "), kept)
	}
	if p.Kind == Spread {
		say("there are too few targets outside of the job's domains: each rank shares none with its own target, but one failure may end ranks and lose the data of others")
	}
	var targets []site.Target
	for _, t := range p.Targets {
		targets = append(targets, t.Target)
	}
	if lost := p.allUnlocated(p.job.Hosts, targets); len(lost) > 0 {
		say("the topology does not have %s: whether these share a switch with ranks or data is unknown", few(lost))
	}
	for _, t := range p.Targets {
		if t.Health != site.OK {
			say("target %s is %s", t.Name, t.Health)
		}
	}
}

// few formats the first names of a list.
func few(names []string) string {
	const most = 4
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// shared returns how many ranks have their target on their own node.
func (p *Plan) shared() (n int) {
	for _, s := range p.Shares {
		if p.Targets[s.Target].Node == p.job.Hosts[s.Host].Name {
			n += s.Ranks
		}
	}
	return n
}

// Ranks returns the number of ranks.
func (p *Plan) Ranks() (n int) {
	for _, h := range p.job.Hosts {
		n += h.Ranks
	}
	return n
}

// Mapping returns the plan by hosts in the form of --mapping.
func (p *Plan) Mapping() balancer.Plan {
	hosts, targets := make([]string, len(p.job.Hosts)), make([][]int, len(p.job.Hosts))
	for i, h := range p.job.Hosts {
		hosts[i] = h.Name
		for _, s := range p.Host(i) {
			targets[i] = append(targets[i], slices.Repeat([]int{s.Target}, s.Ranks)...)
		}
	}
	return balancer.ListByHosts(hosts, targets)
}

// Host returns the shares of a host's ranks, in their order.
func (p *Plan) Host(host int) []Share {
	end := len(p.Shares)
	if host+1 < len(p.home) {
		end = p.home[host+1]
	}
	return p.Shares[p.home[host]:end]
}
