// Package topology reads how the nodes of a cluster are connected, from where its scheduler has it: Slurm's topology.conf
// (topology/tree and topology/block), topology.yaml, and SLURM_TOPOLOGY_ADDR.
//
// A Topology is a tree. Its leaves are nodes, what lies above them are switches, or the blocks of topology/block:
//
//	spine
//	├── rack1 ── cn1 cn2 st1
//	└── rack2 ── cn3 cn4 st2
//
// Storage hosts are nodes, too: a site names them in the same file, in Slurm as nodes of no partition.
//
// Reading is for one goroutine; a Topology that has been read may be used by many.
package topology

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// A Topology is a tree of switches and nodes. The zero value has none.
type Topology struct {
	switches []vertex
	names    map[string]int // vertices of switches by name
	nodes    map[string]int // vertex of the switch of each node
}

type vertex struct {
	name   string
	parent int // -1: none
}

// ErrTopology is wrapped by errors about the content of a topology.
var ErrTopology = errors.New("not a valid network topology")

// Load reads a file, in the format of topology.yaml if its name ends in .yaml, otherwise of topology.conf.
func Load(path string) (*Topology, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("network topology: %w", err)
	}
	parse := ParseConf
	if slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(path)) {
		parse = parseYAML
	}
	t, err := parse(data)
	if err == nil && len(t.switches) > 0 && len(t.nodes) == 0 {
		err = fmt.Errorf("no switch has nodes; is a word mistyped?: %w", ErrTopology)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func (t *Topology) addSwitch(name string) (int, error) {
	if _, ok := t.names[name]; ok {
		return 0, fmt.Errorf("switch or block %s is defined twice: %w", name, ErrTopology)
	}
	return t.vertex(name), nil
}

// vertex returns the number of a switch, and adds the switch if necessary.
func (t *Topology) vertex(name string) int {
	if v, ok := t.names[name]; ok {
		return v
	}
	if t.names == nil {
		t.names, t.nodes = make(map[string]int), make(map[string]int)
	}
	t.names[name] = len(t.switches)
	t.switches = append(t.switches, vertex{name, -1})
	return len(t.switches) - 1
}

// addNode connects a node to a switch.
func (t *Topology) addNode(name string, v int) error {
	if at, ok := t.nodes[name]; ok && at != v {
		return fmt.Errorf("node %s is at both %s and %s: %w", name, t.switches[at].name, t.switches[v].name, ErrTopology)
	}
	t.nodes[name] = v
	return nil
}

// addChild connects a switch to the one above.
func (t *Topology) addChild(parent, child int) error {
	c := &t.switches[child]
	if c.parent >= 0 && c.parent != parent {
		return fmt.Errorf("switch %s is below both %s and %s: %w", c.name, t.switches[c.parent].name, t.switches[parent].name, ErrTopology)
	}
	c.parent = parent
	for v := parent; v >= 0; v = t.switches[v].parent {
		if v == child {
			return fmt.Errorf("switch %s is below itself: %w", c.name, ErrTopology)
		}
	}
	return nil
}

// Switch returns the number of the switch of a node, or of the switch with this name. ok is false if the topology has
// neither.
func (t *Topology) Switch(name string) (v int, ok bool) {
	if v, ok = t.nodes[name]; !ok {
		v, ok = t.names[name]
	}
	return v, ok
}

// Name returns the name of a switch.
func (t *Topology) Name(v int) string { return t.switches[v].name }

// Nodes returns the number of nodes.
func (t *Topology) Nodes() int { return len(t.nodes) }

// path returns the switches from v to the top.
func (t *Topology) path(v int) (up []int) {
	for ; v >= 0; v = t.switches[v].parent {
		up = append(up, v)
	}
	return up
}

// Hops returns the number of switches between nodes at switch a and nodes at switch b: 1 at the same switch, 3 by way
// of a common parent. apart is true if the two are not connected; then the result is as if one more switch connected
// them.
func (t *Topology) Hops(a, b int) (hops int, apart bool) {
	up, down := t.path(a), t.path(b)
	for len(up) > 0 && len(down) > 0 && up[len(up)-1] == down[len(down)-1] {
		up, down = up[:len(up)-1], down[:len(down)-1]
	}
	hops = len(up) + len(down) + 1
	last := a
	if len(up) > 0 {
		last = up[len(up)-1]
	}
	return hops, a != b && len(up) > 0 && t.switches[last].parent < 0 && len(down) > 0
}
