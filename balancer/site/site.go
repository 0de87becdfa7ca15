// Package site reads a site's inventory: the storage targets that jobs may get namespaces of, where they are, and which failure domains
// there are apart from the network. The file is YAML, of this form; only name, and target or admin, have to be there:
//
//	version: 1
//	failure-domains: [cooling, power, switch]  # what separates a job from its data, the widest first
//	nodes:                                     # of compute nodes, what the topology does not have
//	  - names: cn[1-16]
//	    domains: {power: pdu1, cooling: row1}
//	targets:
//	  - name: st1a
//	    target: trtype:TCP traddr:10.0.0.1 subnqn:nqn.2014-08.org.example:st1a ns:1
//	    admin: [ssh, root@st1, nvmecr, admin, --provisioner, "nvmecr:/run/nvmecr.sock"]  # makes namespaces for jobs, see package slurm
//	    node: st1             # in the topology; or switch: the switch that it is at
//	    capacity: 3.2TB       # that may be given to jobs
//	    bandwidth: 2.4GB      # for writing, each second
//	    domains: {power: pdu9}
//	    load: 28              # ranks of other jobs that write there
//	    health: ok            # or degraded: the last to be taken; or failed, drained: never
//
// All functions are pure and safe for concurrent use.
package site

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"go.yaml.in/yaml/v3"

	"nvmecr/balancer/hostlist"
	"nvmecr/nvmf"
)

// Kinds of failure domains that have no entries in domains: the node itself, and its switch.
const (
	Node   = "node"
	Switch = "switch"
)

// Health of a target.
const (
	OK       = "ok"
	Degraded = "degraded"
	Failed   = "failed"
	Drained  = "drained"
)

// An Inventory describes the storage of a site.
type Inventory struct {
	// Domains are the kinds of failure domains, the widest first. Node, the narrowest kind, may be missing.
	Domains []string
	Targets []Target
	// nodes has the domains of each node, by kind.
	nodes map[string]map[string]string
}

// A Target is a storage target of the site.
type Target struct {
	Name      string
	Target    string   // its transport id, in the form of --target; "" if
	Admin     []string // command that creates these namespaces: nvmecr admin
	Node      string   // node of the target, in the topology
	Switch    string   // switch of the target, if the topology does not have Node
	Capacity  nvmf.Bytes
	Bandwidth nvmf.Bytes // per second; 0: unknown
	Domains   map[string]string
	Load      int // number of ranks of other jobs
	Health    string
}

// Of returns the domains of a node by kind, without those of the topology.
func (i *Inventory) Of(node string) map[string]string { return i.nodes[node] }

// ErrInventory is wrapped by errors about the content of an inventory.
var ErrInventory = errors.New("not a valid inventory of a site")

// file is the structure of the file.
type file struct {
	Version int
	Domains []string `yaml:"failure-domains"`
	Nodes   []struct {
		Names   string
		Domains map[string]string
	}
	Targets []struct {
		Name, Target, Node, Switch string
		Admin                      []string
		Capacity, Bandwidth        size
		Domains                    map[string]string
		Load                       int
		Health                     string
	}
}

// size is a number of bytes such as 3.2TB or 40GiB.
type size nvmf.Bytes

func (s *size) UnmarshalYAML(n *yaml.Node) error {
	v, err := humanize.ParseBytes(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is not a size such as 3.2TB or 40GiB", n.Line, n.Value)
	}
	*s = size(v)
	return nil
}

// Load reads a file.
func Load(path string) (*Inventory, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	i, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return i, nil
}

// Parse reads the text of a file.
func Parse(data []byte) (*Inventory, error) {
	var f file
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true) // refuse mistyped words
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrInventory, err)
	}
	if f.Version != 1 {
		return nil, fmt.Errorf("version %d, and this program reads version 1: %w", f.Version, ErrInventory)
	}
	i := &Inventory{Domains: f.Domains, nodes: make(map[string]map[string]string)}
	for _, n := range f.Nodes {
		names, err := hostlist.Expand(n.Names)
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		for _, name := range names {
			if i.nodes[name] != nil {
				return nil, fmt.Errorf("nodes: %s is listed twice: %w", name, ErrInventory)
			}
			i.nodes[name] = n.Domains
		}
	}
	seen, admins := make(map[string]bool), make(map[string]string)
	for _, t := range f.Targets {
		target := Target{t.Name, t.Target, t.Admin, t.Node, t.Switch, nvmf.Bytes(t.Capacity), nvmf.Bytes(t.Bandwidth), t.Domains, t.Load, t.Health}
		if target.Health == "" {
			target.Health = OK
		}
		if err := target.check(seen); err != nil {
			return nil, err
		}
		if other, taken := admins[strings.Join(t.Admin, " ")]; taken && len(t.Admin) > 0 {
			return nil, fmt.Errorf("targets %s and %s have the same admin command: %w", other, t.Name, ErrInventory)
		}
		admins[strings.Join(t.Admin, " ")] = t.Name
		i.Targets = append(i.Targets, target)
	}
	return i, i.checkDomains()
}

func (t *Target) check(seen map[string]bool) error {
	switch {
	case t.Name == "" || t.Target == "" && len(t.Admin) == 0:
		return fmt.Errorf("target %q needs a name, and a target or an admin command: %w", t.Name, ErrInventory)
	case seen[t.Name]:
		return fmt.Errorf("target %s is listed twice: %w", t.Name, ErrInventory)
	case t.Load < 0:
		return fmt.Errorf("target %s has a load of %d ranks: %w", t.Name, t.Load, ErrInventory)
	case !slices.Contains([]string{OK, Degraded, Failed, Drained}, t.Health):
		return fmt.Errorf("target %s: health %q is none of ok, degraded, failed, drained: %w", t.Name, t.Health, ErrInventory)
	}
	if _, err := nvmf.ParseTransportID(t.Target); t.Target != "" && err != nil {
		return fmt.Errorf("target %s: %w: %w", t.Name, err, ErrInventory)
	}
	seen[t.Name] = true
	return nil
}

// checkDomains sets the kinds of domains if the file does not list them: all kinds that it uses, by name, and the
// switch last.
func (i *Inventory) checkDomains() error {
	used := make(map[string]bool)
	for _, domains := range i.nodes {
		for kind := range domains {
			used[kind] = true
		}
	}
	for _, t := range i.Targets {
		for kind := range t.Domains {
			used[kind] = true
		}
	}
	for _, own := range []string{Node, Switch} {
		if used[own] {
			return fmt.Errorf("domains: %s follows from the topology, and from the target's %s: %w", own, own, ErrInventory)
		}
	}
	if i.Domains == nil {
		for kind := range used {
			i.Domains = append(i.Domains, kind)
		}
		slices.Sort(i.Domains)
		i.Domains = append(i.Domains, Switch)
	}
	for kind := range used {
		if !slices.Contains(i.Domains, kind) {
			return fmt.Errorf("domains: failure-domains does not have %s: %w", kind, ErrInventory)
		}
	}
	for n, kind := range i.Domains {
		if slices.Contains(i.Domains[:n], kind) || kind == "" {
			return fmt.Errorf("failure-domains has %q twice, or empty: %w", kind, ErrInventory)
		}
	}
	return nil
}
