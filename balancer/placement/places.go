package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
)

// places locates nodes and targets.
type places struct {
	net *topology.Topology
	inv *site.Inventory
}

// host returns the place of a node.
func (p places) host(name string) location { return p.locate(name, "", p.inv.Of(name)) }

// target returns the place of a target. The domains of its node apply to it, too, unless the target has entries of
// its own.
func (p places) target(t *site.Target) location {
	domains := maps.Clone(p.inv.Of(t.Node))
	if domains == nil {
		domains = t.Domains
	} else {
		maps.Copy(domains, t.Domains)
	}
	return p.locate(t.Node, t.Switch, domains)
}

// locate returns the place of a node or a switch.
func (p places) locate(node, atSwitch string, domains map[string]string) location {
	w := location{at: -1}
	for _, name := range []string{node, atSwitch} {
		if at, ok := p.net.Switch(name); ok && w.at < 0 && name != "" {
			w.at = at
		}
	}
	for _, kind := range p.inv.Domains {
		value := domains[kind]
		if kind == site.Switch && w.at >= 0 {
			value = p.net.Name(w.at)
		}
		w.domains = append(w.domains, value)
	}
	return w
}

// unlocated reports whether the switch of a place is unknown although it matters: the topology has nodes, but not this
// one.
func (p places) unlocated(w location) bool {
	return w.at < 0 && p.net.Nodes() > 0 && slices.Contains(p.inv.Domains, site.Switch)
}

// allUnlocated returns those of some hosts and targets that the topology does not have.
func (p places) allUnlocated(hosts []Host, targets []site.Target) (names []string) {
	for _, h := range hosts {
		if p.unlocated(p.host(h.Name)) {
			names = append(names, "node "+h.Name)
		}
	}
	for _, t := range targets {
		if p.unlocated(p.target(&t)) {
			names = append(names, fmt.Sprintf("%s of target %s", cmp.Or(t.Node, t.Switch, "the node"), t.Name))
		}
	}
	return names
}
