package balancer

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvmecr/balancer/hostlist"
)

// A plan by hosts says for each host where its ranks store, whichever ranks these are:
//
//	plan by hosts = part { ";" part }
//	part          = hosts "=" term { "," term }
//
// hosts is a list as Slurm has it, and the terms are for the ranks of each of them, in their order. By
// "cn[1-2]=0*28;cn3=0*14,1*14" those of cn1 and cn2 are on the first namespace. As long as nobody says where the ranks are, they
// fill the hosts in the order of the plan.

// part has the terms of one or more hosts.
type part struct {
	hosts []string
	terms []term
}

// parseParts parses a plan by hosts.
func parseParts(text string) (p Plan, err error) {
	seen := make(map[string]bool)
	period := 0
	for _, s := range strings.Split(text, ";") {
		list, rest, ok := strings.Cut(s, "=")
		if !ok {
			return Plan{}, fmt.Errorf("%q: each part of a plan by hosts is HOSTS=TARGETS, such as cn[1-2]=0*28", s)
		}
		var in part
		if in.hosts, err = hostlist.Expand(list); err != nil {
			return Plan{}, err
		}
		if in.terms, err = parseTerms(rest); err != nil {
			return Plan{}, err
		}
		for _, h := range in.hosts {
			if seen[h] {
				return Plan{}, fmt.Errorf("%q: host %s is listed twice", text, h)
			}
			seen[h] = true
			for _, t := range in.terms {
				p.add(t.devices, t.count)
				if period += t.count; period > maxPeriod {
					return Plan{}, fmt.Errorf("%q places more than %d ranks", text, maxPeriod)
				}
			}
		}
		p.parts = append(p.parts, in)
	}
	return p, nil
}

// ListByHosts returns the plan by hosts in which the r-th rank of hosts[h] is on targets[h][r]. Adjacent hosts with
// the same targets form one part.
func ListByHosts(hosts []string, targets [][]int) (p Plan) {
	for i, host := range hosts {
		terms := List(targets[i]).terms
		for _, t := range terms {
			p.add(t.devices, t.count)
		}
		last := len(p.parts) - 1
		if last < 0 || textOf(p.parts[last].terms) != textOf(terms) {
			p.parts = append(p.parts, part{terms: terms})
			last++
		}
		p.parts[last].hosts = append(p.parts[last].hosts, host)
	}
	return p
}

// add appends the home of the next count ranks.
func (p *Plan) add(devices []int, count int) {
	if last := len(p.terms) - 1; last >= 0 && slices.Equal(p.terms[last].devices, devices) {
		p.terms[last].count += count
		return
	}
	p.terms = append(p.terms, term{devices, count})
}

// ByHosts reports whether this is a plan by hosts, which At converts.
func (p Plan) ByHosts() bool { return len(p.parts) > 0 }

// Host returns the number of a host in a plan by hosts. Names with and without a domain match.
func (p Plan) Host(name string) (number int, err error) {
	short, _, _ := strings.Cut(name, ".")
	found := -1
	for _, part := range p.parts {
		for _, h := range part.hosts {
			if h == name {
				return number, nil
			}
			if s, _, _ := strings.Cut(h, "."); found < 0 && s == short && (s == h || short == name) {
				found = number
			}
			number++
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("this is host %s, and the mapping %s does not have it: plan for the hosts on which the job runs: %w", name, p, unix.EINVAL)
	}
	return found, nil
}

// At converts a plan by hosts to one by ranks; rank r is on the host of number hosts[r].
func (p Plan) At(hosts []int) (at Plan) {
	var terms [][]term
	for _, part := range p.parts {
		for range part.hosts {
			terms = append(terms, part.terms)
		}
	}
	next := make([]int, len(terms)) // number of ranks of each host so far
	for _, h := range hosts {
		at.add(home(terms[h], next[h]), 1)
		next[h]++
	}
	return at
}

// home returns the home of the n-th rank of terms.
func home(terms []term, n int) []int {
	period := 0
	for _, t := range terms {
		period += t.count
	}
	n %= period
	for _, t := range terms {
		if n < t.count {
			return t.devices
		}
		n -= t.count
	}
	return nil
}
