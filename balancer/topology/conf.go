package topology

import (
	"fmt"
	"strconv"
	"strings"

	"nvmecr/balancer/hostlist"
)

// ParseConf parses topology.conf(5). It ignores link speeds.
func ParseConf(data []byte) (*Topology, error) {
	t := new(Topology)
	var blocks blocks
	for number, line := range lines(string(data)) {
		if line == "" {
			continue
		}
		values, err := parameters(line)
		if err == nil {
			err = t.line(values, &blocks)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	return t, blocks.addLarger(t)
}

// lines returns the lines without comments. Lines continued by a backslash are joined.
func lines(text string) []string {
	list := strings.Split(text, "\n")
	for i := len(list) - 1; i >= 0; i-- {
		list[i], _, _ = strings.Cut(list[i], "#")
		list[i] = strings.TrimSpace(list[i])
		if begin, ok := strings.CutSuffix(list[i], "\\"); ok && i+1 < len(list) {
			list[i], list[i+1] = begin+" "+list[i+1], ""
		}
	}
	return list
}

// parameters parses Name=value pairs. The returned names are in lower case.
func parameters(line string) (map[string]string, error) {
	values := make(map[string]string)
	for _, word := range strings.Fields(line) {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not Name=value: %w", word, ErrTopology)
		}
		values[strings.ToLower(name)] = value
	}
	return values, nil
}

func (t *Topology) line(values map[string]string, b *blocks) error {
	switch {
	case values["switchname"] != "":
		return t.connect(values["switchname"], values["switches"], values["nodes"])
	case values["blockname"] != "":
		return b.add(t, values["blockname"], values["nodes"])
	case values["blocksizes"] != "":
		return b.sizes(strings.Split(values["blocksizes"], ","))
	}
	return fmt.Errorf("neither SwitchName, BlockName nor BlockSizes: %w", ErrTopology)
}

// connect adds the children of a switch. The switch may have been added before, as a child.
func (t *Topology) connect(name, switches, nodes string) error {
	v := t.vertex(name)
	children, err := hostlist.Expand(switches)
	if err != nil {
		return fmt.Errorf("switches of %s: %w", name, err)
	}
	for _, child := range children {
		if err := t.addChild(v, t.vertex(child)); err != nil {
			return err
		}
	}
	return t.attach(v, nodes)
}

func (t *Topology) attach(v int, nodes string) error {
	names, err := hostlist.Expand(nodes)
	if err != nil {
		return fmt.Errorf("nodes of %s: %w", t.switches[v].name, err)
	}
	for _, node := range names {
		if err := t.addNode(node, v); err != nil {
			return err
		}
	}
	return nil
}

// blocks are the blocks of topology/block. Consecutive blocks form larger blocks.
type blocks struct {
	numbers []int // vertices of the blocks, in order
	size    []int // nodes of a block of each level; the first is the base
}

func (b *blocks) add(t *Topology, name, nodes string) error {
	v, err := t.addSwitch(name)
	if err != nil {
		return err
	}
	b.numbers = append(b.numbers, v)
	return t.attach(v, nodes)
}

func (b *blocks) sizes(texts []string) error {
	for _, s := range texts {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || len(b.size) > 0 && (n <= b.size[len(b.size)-1] || n%b.size[0] != 0) {
			return fmt.Errorf("block size %q is not a multiple of the one before: %w", s, ErrTopology)
		}
		b.size = append(b.size, n)
	}
	return nil
}

// addLarger adds larger blocks above the blocks, and one block above all.
func (b *blocks) addLarger(t *Topology) error {
	if len(b.numbers) == 0 {
		return nil
	}
	below := b.numbers
	for level := 1; level < len(b.size); level++ {
		each := b.size[level] / b.size[level-1]
		var row []int
		for i, v := range below {
			if i%each == 0 {
				row = append(row, t.vertex(fmt.Sprintf("blocks of %d nodes, number %d", b.size[level], i/each+1)))
			}
			if err := t.addChild(row[i/each], v); err != nil {
				return err
			}
		}
		below = row
	}
	top := t.vertex("all blocks")
	for _, v := range below {
		if err := t.addChild(top, v); err != nil {
			return err
		}
	}
	return nil
}
