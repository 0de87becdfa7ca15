// Package placement decides which storage targets a job gets, and which ranks write to which of them: the first half of the paper's
// storage balancer (section III.F). Package balancer has the second, the segments of a target.
//
// What fails together is a failure domain: a node, the nodes of a switch, whatever a site's inventory names (power, cooling). A rank and its
// data ought to have none in common, or one failure takes both. New looks for a plan in this order, and takes the first that there is:
//
//  1. Apart: no target is in a domain of any node of the job.
//  2. Spread: no rank shares a domain with its own target.
//  3. The same two, without the widest kind of domain, then without the two widest, and so on: at the end with the node alone. To share
//     a domain of a kind that is left out costs a rank as much as the longest way more.
//  4. Distant: as few ranks as can be share a node with their target, and targets are as far away as can be.
//
// All but the first are told (Plan.Warnings), and refused if Job.Strict is set.
//
// Within each, targets take equal loads, or loads in proportion to their bandwidths where all are known, but for one rank. Targets are chosen
// greedily, the fewest switches away first, and the unloaded first; for the targets that are chosen, the sum of the distances is the least that
// there is (a minimum cost flow). Nodes of one switch and the same domains are one class, and so are targets, so that the time depends on
// how many classes there are.
//
// Everything is deterministic, and depends on the order of what is given, not on names. All functions are pure and safe for concurrent use.
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

// RanksPerTarget is the most that the paper puts on one SSD: with 56 to 112 its bandwidth is used best (section III.F).
const RanksPerTarget = 112

// A Host is a node of the job.
type Host struct {
	Name  string
	Ranks int
}

// A Job is what a plan is for.
type Job struct {
	Hosts []Host // in the order of their ranks
	// Targets is how many the job gets. 0: as many as RankBandwidth needs, where that and those of all targets are known, else one for
	// RanksPerTarget ranks.
	Targets       int
	RankBandwidth nvmf.Bytes // that one rank writes in a second; 0: not known
	RankCapacity  nvmf.Bytes // that one rank needs; 0: not known, any target will do
	Strict        bool       // refuse what is not Apart
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

// A Plan is which rank writes where.
type Plan struct {
	Kind    Kind
	Domains []string // the kinds of domains that hold, the widest first
	Targets []Target // in the order in which ranks use them
	Shares  []Share  // in the order of ranks
	Hops    int      // the sum of the ranks' distances, in switches
	// Warnings are what the user is told.
	Warnings []string

	places
	job  Job
	home []int // the first share of each host
}

// A Target is one that the job gets.
type Target struct {
	site.Target
	Ranks int // that write there
}

// A Share is a number of consecutive ranks of one host that write to one target.
type Share struct {
	Host   int // index into Job.Hosts
	Target int // index into Plan.Targets
	Ranks  int
	Hops   int // switches between the two
}

// What New returns where there is no plan.
var (
	ErrTooFew = errors.New("the site has too few targets")
	ErrShared = errors.New("ranks would share a failure domain with their data")
)

// New plans a job. The topology may lack nodes and targets: these are taken to be farther away than any other, which is told, and for a strict job to
// share a switch with all. Errors: ErrTooFew, ErrShared
// (for a strict job).
func New(job Job, net *topology.Topology, inv *site.Inventory) (*Plan, error) {
	p, err := newProblem(job, net, inv)
	if err != nil {
		return nil, err
	}
	for n := 0; n <= len(inv.Domains); n++ {
		p.hold(inv.Domains[n:])
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
	p.hold(nil)
	s := p.solve(Distant)
	if s == nil {
		return nil, fmt.Errorf("%d targets for %d ranks of %s each: %w", p.want, p.ranks, p.job.RankCapacity, ErrTooFew)
	}
	return p.plan(s, Distant, len(inv.Domains)), nil
}

// refusal says why a strict job has no plan.
func (p *problem) refusal() error {
	p.hold(p.inv.Domains)
	apart := 0
	for d := range p.devices {
		if p.apart(d) {
			apart += len(p.devices[d].targets)
		}
	}
	unknown := ""
	if lost := p.lostOf(p.job.Hosts, p.inv.Targets); len(lost) > 0 {
		unknown = fmt.Sprintf(" (the topology does not have %s)", few(lost))
	}
	return fmt.Errorf("%d of %d targets are outside of the job's failure domains (%s), and %d are wanted%s; plan for fewer targets or fewer nodes, or without --strict: %w",
		apart, p.available, strings.Join(p.inv.Domains, ", "), p.want, unknown, ErrShared)
}

// plan writes a solution down: classes become hosts and targets again.
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

// warn says what is not as it should be.
func (p *Plan) warn(ignored int) {
	say := func(format string, args ...any) { p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...)) }
	kept := strings.Join(p.Domains, ", ")
	switch {
	case p.Kind == Distant:
		say("%d ranks share their node with their target, since there is no other way: data and process are lost together", p.shared())
	case ignored > 0:
		say("targets that share no %s with their ranks are too few: %s alone are kept apart", strings.Join(p.inv.Domains[:ignored], ", "), kept)
	}
	if p.Kind == Spread {
		say("targets outside of all of the job's domains are too few: each rank is apart from its own target, but one failure may end ranks and take the data of others")
	}
	var targets []site.Target
	for _, t := range p.Targets {
		targets = append(targets, t.Target)
	}
	if lost := p.lostOf(p.job.Hosts, targets); len(lost) > 0 {
		say("the topology does not have %s: whether a switch fails with ranks and their data is not known there", few(lost))
	}
	for _, t := range p.Targets {
		if t.Health != site.OK {
			say("target %s is %s", t.Name, t.Health)
		}
	}
}

// few names the first of a list.
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

// Ranks returns how many the job has.
func (p *Plan) Ranks() (n int) {
	for _, h := range p.job.Hosts {
		n += h.Ranks
	}
	return n
}

// Mapping is the plan by hosts, as --mapping has it.
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
