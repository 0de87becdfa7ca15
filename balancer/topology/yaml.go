package topology

import (
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// definition is a topology in topology.yaml(5).
type definition struct {
	Name    string `yaml:"topology"`
	Default bool   `yaml:"cluster_default"`
	Flat    bool   `yaml:"flat"`
	Tree    *struct {
		Switches []struct {
			Switch, Children, Nodes string
		}
	}
	Block *struct {
		Sizes  []int `yaml:"block_sizes"`
		Blocks []struct {
			Block, Nodes string
		}
	}
}

// parseYAML parses topology.yaml(5) and returns the default topology of the cluster, or the only one.
func parseYAML(data []byte) (*Topology, error) {
	var all []definition
	if err := yaml.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrTopology, err)
	}
	for _, d := range all {
		if d.Default || len(all) == 1 {
			t, err := d.topology()
			if err != nil {
				return nil, fmt.Errorf("topology %s: %w", d.Name, err)
			}
			return t, nil
		}
	}
	return nil, fmt.Errorf("none of %d topologies has cluster_default: true: %w", len(all), ErrTopology)
}

func (d *definition) topology() (*Topology, error) {
	t := new(Topology)
	switch {
	case d.Tree != nil:
		for _, s := range d.Tree.Switches {
			if err := t.connect(s.Switch, s.Children, s.Nodes); err != nil {
				return nil, err
			}
		}
	case d.Block != nil:
		var b blocks
		for _, n := range d.Block.Sizes {
			if err := b.sizes([]string{strconv.Itoa(n)}); err != nil {
				return nil, err
			}
		}
		for _, block := range d.Block.Blocks {
			if err := b.add(t, block.Block, block.Nodes); err != nil {
				return nil, err
			}
		}
		return t, b.addLarger(t)
	case !d.Flat:
		return nil, fmt.Errorf("neither tree, block nor flat: %w", ErrTopology)
	}
	return t, nil
}
