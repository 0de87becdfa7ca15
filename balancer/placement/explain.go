package placement

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"nvmecr/balancer/hostlist"
	"nvmecr/balancer/site"
)

// A Failure is the effect of the failure of one domain on the job.
type Failure struct {
	Kind string `json:"kind"` // kind of domain, or "target"
	Name string `json:"name"`
	Ends int    `json:"ends"` // number of ranks that run in the domain
	Data int    `json:"data"` // number of ranks whose data is in the domain
	Both int    `json:"both"` // number of ranks that are lost with their data
}

// kindTarget is the kind of the domain that is a single target.
const kindTarget = "target"

// Failures lists the domains with ranks of the job or their data: the widest kinds first, and of each kind the
// largest effects first.
func (p *Plan) Failures() []Failure {
	type key struct{ kind, name string }
	found := make(map[key]*Failure)
	add := func(kind, name string) *Failure {
		f := found[key{kind, name}]
		if f == nil {
			f = &Failure{Kind: kind, Name: name}
			found[key{kind, name}] = f
		}
		return f
	}
	at := make([][][2]string, len(p.Targets))
	for i := range p.Targets {
		t := &p.Targets[i].Target
		at[i] = append(p.domains(p.target(t), t.Node), [2]string{kindTarget, t.Name})
	}
	for _, s := range p.Shares {
		name := p.job.Hosts[s.Host].Name
		own := p.domains(p.host(name), name)
		for _, d := range own {
			add(d[0], d[1]).Ends += s.Ranks
		}
		for _, d := range at[s.Target] {
			f := add(d[0], d[1])
			f.Data += s.Ranks
			if slices.Contains(own, d) {
				f.Both += s.Ranks
			}
		}
	}
	kinds := append(slices.Clone(p.inv.Domains), site.Node, kindTarget)
	list := make([]Failure, 0, len(found))
	for _, f := range found {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), cmp.Compare(b.Both, a.Both), cmp.Compare(b.Data, a.Data),
			cmp.Compare(b.Ends, a.Ends), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// domains lists the domains of a place as pairs of kind and name.
func (p *Plan) domains(w location, node string) (list [][2]string) {
	for k, kind := range p.inv.Domains {
		if w.domains[k] != "" {
			list = append(list, [2]string{kind, w.domains[k]})
		}
	}
	if node != "" {
		list = append(list, [2]string{site.Node, node})
	}
	return list
}

// Explain writes tables: the targets of ranks, the load of each target, and the effect of each failure.
func (p *Plan) Explain(w io.Writer) error {
	fmt.Fprintf(w, "%d ranks on %d nodes, %d targets, %s: ", p.Ranks(), len(p.job.Hosts), len(p.Targets), p.Kind)
	switch p.Kind {
	case Apart:
		fmt.Fprintf(w, "no target shares its %s with any rank\n", alternatives(p.Domains))
	case Spread:
		fmt.Fprintf(w, "no rank shares its %s with its own target\n", alternatives(p.Domains))
	default:
		fmt.Fprintf(w, "ranks share even their node with their target\n")
	}
	fmt.Fprintf(w, "a rank and its target are %.1f switches apart on average\n\n", float64(p.Hops)/float64(p.Ranks()))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "RANKS\tNODES\tWRITE TO\tSWITCHES BETWEEN\n")
	rank := 0
	for _, g := range p.groups() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", span(rank, g.ranks), hostlist.Compress(g.hosts), p.Targets[g.target].Name, g.hops)
		rank += g.ranks
	}
	fmt.Fprintf(t, "\nTARGET\tRANKS\tOF OTHER JOBS\tAT\tADDRESS\n")
	for i := range p.Targets {
		target := &p.Targets[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", target.Name, target.Ranks, target.Load, p.place(target), target.Target.Target)
	}
	fmt.Fprintf(t, "\nFAILURE OF\tENDS RANKS\tTAKES THE DATA OF\tBOTH OF\n")
	quiet := 0
	for _, f := range p.Failures() {
		if f.Kind == site.Node && f.Data == 0 {
			quiet++
			continue
		}
		fmt.Fprintf(t, "%s %s\t%d\t%d\t%d\n", f.Kind, f.Name, f.Ends, f.Data, f.Both)
	}
	if quiet > 0 {
		fmt.Fprintf(t, "each of %d nodes\tits own\t0\t0\n", quiet)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return nil
}

// alternatives joins words: "power, switch or node".
func alternatives(words []string) string {
	text := words[0]
	for i, w := range words[1:] {
		if i == len(words)-2 {
			text += " or " + w
		} else {
			text += ", " + w
		}
	}
	return text
}

// place returns the node or the switch of a target.
func (p *Plan) place(t *Target) string {
	if w := p.target(&t.Target); w.at >= 0 {
		return p.net.Name(w.at)
	}
	return "?"
}

func span(first, n int) string {
	if n == 1 {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, first+n-1)
}

// A group is a range of consecutive ranks of one or several hosts that write to one target, at one distance.
type group struct {
	hosts               []string
	target, ranks, hops int
}

func (p *Plan) groups() (list []group) {
	for _, s := range p.Shares {
		name := p.job.Hosts[s.Host].Name
		last := len(list) - 1
		if last < 0 || list[last].target != s.Target || list[last].hops != s.Hops {
			list = append(list, group{target: s.Target, hops: s.Hops})
			last++
		}
		g := &list[last]
		g.ranks += s.Ranks
		if len(g.hosts) == 0 || g.hosts[len(g.hosts)-1] != name {
			g.hosts = append(g.hosts, name)
		}
	}
	return list
}
