package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
)

// places knows where nodes and targets are.
type places struct {
	net *topology.Topology
	inv *site.Inventory
}

// host says where a node is.
func (p places) host(name string) where { return p.locate(name, "", p.inv.Of(name)) }

// target says where a target is. What the inventory says of its node holds for it, too, but for what it says of the target itself.
func (p places) target(t *site.Target) where {
	domains := maps.Clone(p.inv.Of(t.Node))
	if domains == nil {
		domains = t.Domains
	} else {
		maps.Copy(domains, t.Domains)
	}
	return p.locate(t.Node, t.Switch, domains)
}

// locate says where a node or a switch is.
func (p places) locate(node, atSwitch string, domains map[string]string) where {
	w := where{at: -1}
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

// lost reports whether it is not known which switch a place shares with others, although that matters: the topology, which has nodes, does not have
// this one.
func (p places) lost(w where) bool {
	return w.at < 0 && p.net.Nodes() > 0 && slices.Contains(p.inv.Domains, site.Switch)
}

// lostOf returns what the topology does not have of some hosts and targets.
func (p places) lostOf(hosts []Host, targets []site.Target) (names []string) {
	for _, h := range hosts {
		if p.lost(p.host(h.Name)) {
			names = append(names, "node "+h.Name)
		}
	}
	for _, t := range targets {
		if p.lost(p.target(&t)) {
			names = append(names, fmt.Sprintf("%s of target %s", cmp.Or(t.Node, t.Switch, "the node"), t.Name))
		}
	}
	return names
}
