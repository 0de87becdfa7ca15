package topology

import (
	"fmt"
	"strings"
)

// AddAddress adds the switches of a job's own node, from the variables SLURM_TOPOLOGY_ADDR (spine.rack1.cn1) and
// SLURM_TOPOLOGY_ADDR_PATTERN (switch.switch.node).
func (t *Topology) AddAddress(address, pattern string) error {
	names, kinds := strings.Split(address, "."), strings.Split(pattern, ".")
	last := len(kinds) - 1
	if len(names) < len(kinds) || kinds[last] != "node" {
		return fmt.Errorf("address %q of pattern %q: %w", address, pattern, ErrTopology)
	}
	names[last] = strings.Join(names[last:], ".") // node names may contain dots
	above := -1
	for i, kind := range kinds[:last] {
		if kind != "switch" && kind != "block" {
			return fmt.Errorf("address %q of pattern %q has a %q: %w", address, pattern, kind, ErrTopology)
		}
		v := t.vertex(names[i])
		if above >= 0 {
			if err := t.addChild(above, v); err != nil {
				return err
			}
		}
		above = v
	}
	if above < 0 {
		return nil // topology/flat
	}
	return t.addNode(names[last], above)
}
