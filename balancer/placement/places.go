package placement

import (
	"maps"

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
