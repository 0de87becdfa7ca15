package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/balancer"
	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/nvmf"
)

// cluster has two racks with two compute nodes and a storage node each, and a third rack with storage only.
const cluster = `
SwitchName=rack1 Nodes=cn[1-2],st1
SwitchName=rack2 Nodes=cn[3-4],st2
SwitchName=rack3 Nodes=st3
SwitchName=row1 Switches=rack[1-2]
SwitchName=spine Switches=row1,rack3
`

func read(t *testing.T, net, inventory string) (*topology.Topology, *site.Inventory) {
	t.Helper()
	topo, err := topology.ParseConf([]byte(net))
	require.NoError(t, err)
	inv, err := site.Parse([]byte("version: 1\n" + inventory))
	require.NoError(t, err)
	return topo, inv
}

func targets(list ...string) string {
	text := "targets:\n"
	for _, t := range list {
		text += "  - {" + t + "}\n"
	}
	return text
}

func hosts(ranks int, names ...string) (list []Host) {
	for _, n := range names {
		list = append(list, Host{n, ranks})
	}
	return list
}

func names(p *Plan) (list []string) {
	for _, t := range p.Targets {
		list = append(list, t.Name)
	}
	return list
}

func TestPlans(t *testing.T) {
	st := func(n int, more string) string {
		return fmt.Sprintf("name: st%d, target: file:tcp:%d, node: st%d%s", n, n, n, more)
	}
	three := targets(st(1, ""), st(2, ""), st(3, ""))
	for _, c := range []struct {
		what, inventory string
		job             Job
		kind            Kind
		domains         []string
		targets         []string
		mapping         string
		hops            int
	}{
		{"near, but outside", three, Job{Hosts: hosts(2, "cn1", "cn2"), Targets: 1}, Apart, []string{"switch", "node"}, []string{"st2"}, "0*4", 4 * 3},
		{"two outside", three, Job{Hosts: hosts(2, "cn1", "cn2"), Targets: 2}, Apart, []string{"switch", "node"}, []string{"st2", "st3"}, "0*2,1*2", 2*3 + 2*4},
		{"all racks", three, Job{Hosts: hosts(2, "cn1", "cn3"), Targets: 2}, Spread, []string{"switch", "node"}, []string{"st2", "st1"}, "0*2,1*2", 4 * 3},
		{"one outside is enough", three, Job{Hosts: hosts(2, "cn1", "cn3"), Targets: 1}, Apart, []string{"switch", "node"}, []string{"st3"}, "0*4", 4 * 4},
		{"odd ranks", three, Job{Hosts: []Host{{"cn1", 3}, {"cn3", 2}}, Targets: 2}, Spread, []string{"switch", "node"}, []string{"st2", "st3", "st1"}[:0], "", 0},
		{"by the paper's rule", three, Job{Hosts: hosts(112, "cn1", "cn2")}, Apart, []string{"switch", "node"}, []string{"st2", "st3"}, "0*112,1*112", 112*3 + 112*4},
		{"more targets than ranks", three, Job{Hosts: hosts(1, "cn1"), Targets: 3}, Apart, []string{"switch", "node"}, []string{"st2"}, "0", 3},
		{"drained", targets(st(1, ""), st(2, ", health: drained"), st(3, "")), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Apart, []string{"switch", "node"}, []string{"st3"}, "0*2", 2 * 4},
		{"degraded comes last", targets(st(1, ""), st(2, ", health: degraded"), st(3, "")), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Apart, []string{"switch", "node"}, []string{"st3"}, "0*2", 2 * 4},
		{"unloaded first", targets(st(2, ", load: 7"), "name: st2b, target: file:b, node: st2"), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Apart, []string{"switch", "node"}, []string{"st2b"}, "0*2", 2 * 3},
		{"power", "nodes: [{names: cn1, domains: {power: a}}]\n" + targets(st(2, ", domains: {power: a}"), st(3, "")), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Apart,
			[]string{"power", "switch", "node"}, []string{"st3"}, "0*2", 2 * 4},
		{"power is ignored", "nodes: [{names: cn1, domains: {power: a}}]\n" + targets(st(1, ""), st(2, ", domains: {power: a}")), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Apart,
			[]string{"switch", "node"}, []string{"st2"}, "0*2", 2 * 3},
		{"the rack, too", targets(st(1, "")), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Apart, []string{"node"}, []string{"st1"}, "0*2", 2},
		{"even the node", targets("name: own, target: file:o, node: cn1"), Job{Hosts: hosts(2, "cn1"), Targets: 1}, Distant, []string{"node"}, []string{"own"}, "0*2", 0},
		{"of two nodes each has the other's", targets("name: a, target: file:a, node: cn1", "name: b, target: file:b, node: cn2"), Job{Hosts: hosts(2, "cn1", "cn2"), Targets: 2},
			Spread, []string{"node"}, []string{"b", "a"}, "0*2,1*2", 4},
		{"not in the topology", targets("name: x, target: file:x", st(3, "")), Job{Hosts: hosts(1, "cn1"), Targets: 1}, Apart, []string{"switch", "node"}, []string{"st3"}, "0", 4},
		{"by bandwidth", targets(st(2, ", bandwidth: 3GB"), st(3, ", bandwidth: 1GB")), Job{Hosts: hosts(4, "cn1", "cn2"), Targets: 2}, Apart, []string{"switch", "node"},
			[]string{"st2", "st3"}, "0*6,1*2", 6*3 + 2*4},
		{"by need", targets(st(2, ", bandwidth: 1GB"), st(3, ", bandwidth: 1GB")), Job{Hosts: hosts(15, "cn1"), RankBandwidth: 100e6}, Apart, []string{"switch", "node"},
			[]string{"st2", "st3"}, "", 0},
		{"by capacity", targets(st(2, ", capacity: 2GB"), st(3, ", capacity: 20GB")), Job{Hosts: hosts(6, "cn1"), Targets: 2, RankCapacity: 1e9}, Apart, []string{"switch", "node"},
			[]string{"st2", "st3"}, "0*2,1*4", 2*3 + 4*4},
		{"the one with enough capacity", targets(st(2, ", capacity: 2GB"), st(3, ", capacity: 20GB")), Job{Hosts: hosts(6, "cn1"), Targets: 1, RankCapacity: 1e9}, Apart,
			[]string{"switch", "node"}, []string{"st3"}, "0*6", 6 * 4},
	} {
		t.Run(c.what, func(t *testing.T) {
			net, inv := read(t, cluster, c.inventory)
			p, err := New(c.job, net, inv)
			require.NoError(t, err)
			assert.Equal(t, c.kind, p.Kind)
			assert.Equal(t, c.domains, p.Domains)
			assert.Equal(t, c.kind == Apart && len(c.domains) == len(inv.Domains)+1, len(p.Warnings) == 0, p.Warnings)
			if len(c.targets) > 0 {
				assert.Equal(t, c.targets, names(p))
			}
			if c.mapping != "" {
				assert.Equal(t, c.mapping, inOrder(p))
				assert.Equal(t, c.hops, p.Hops)
			}
			check(t, p, c.job)
		})
	}
}

// inOrder returns the mapping for ranks that fill the hosts in order.
func inOrder(p *Plan) string {
	var list []int
	for _, s := range p.Shares {
		list = append(list, slices.Repeat([]int{s.Target}, s.Ranks)...)
	}
	return balancer.List(list).String()
}

func TestMapping(t *testing.T) {
	net, inv := read(t, cluster, targets("name: a, target: file:a, node: st1", "name: b, target: file:b, node: st2"))
	p, err := New(Job{Hosts: []Host{{"cn1", 2}, {"cn2", 2}, {"cn3", 3}}, Targets: 2}, net, inv)
	require.NoError(t, err)
	assert.Equal(t, "cn[1-2]=0*2;cn3=1*3", p.Mapping().String())
}

// check checks that a plan keeps its promises.
func check(t *testing.T, p *Plan, job Job) {
	t.Helper()
	ranks := make([]int, len(job.Hosts))
	loads := make([]int, len(p.Targets))
	for _, s := range p.Shares {
		require.Positive(t, s.Ranks)
		ranks[s.Host] += s.Ranks
		loads[s.Target] += s.Ranks
	}
	for h, n := range ranks {
		require.Equal(t, job.Hosts[h].Ranks, n)
		total := 0
		for _, s := range p.Host(h) {
			require.Equal(t, h, s.Host)
			total += s.Ranks
		}
		require.Equal(t, n, total)
	}
	for i, target := range p.Targets {
		require.Equal(t, loads[i], target.Ranks)
	}
	_, err := p.Mapping().Map(p.Ranks(), len(p.Targets))
	require.NoError(t, err)
}

func TestRefuses(t *testing.T) {
	three := targets("name: a, target: file:a, node: st1", "name: b, target: file:b, node: st2, capacity: 1GB", "name: c, target: file:c, node: st3, health: failed")
	for _, c := range []struct {
		job  Job
		is   error
		says string
	}{
		{Job{Hosts: hosts(1, "cn1", "cn2", "cn3"), Targets: 3}, ErrTooFew, "3 targets are wanted, and 2 of 3 are available"},
		{Job{Hosts: hosts(1, "cn1", "cn3"), Targets: 2, Strict: true}, ErrShared, "0 of 2 targets are outside of the job's failure domains (switch), and 2 are wanted"},
		{Job{Hosts: hosts(9, "cn1"), Targets: 1, RankCapacity: 2 * nvmf.GiB}, nil, ""},
		{Job{Hosts: hosts(0, "cn1")}, nil, "host cn1 has 0 ranks"},
		{Job{Hosts: hosts(1, "cn1", "cn1")}, nil, "twice"},
		{Job{}, nil, "without ranks"},
	} {
		net, inv := read(t, cluster, three)
		_, err := New(c.job, net, inv)
		if c.is != nil {
			assert.ErrorIs(t, err, c.is)
		}
		if c.says != "" {
			assert.ErrorContains(t, err, c.says)
		}
	}
	net, inv := read(t, cluster, targets("name: a, target: file:a, node: st1, capacity: 3GB", "name: b, target: file:b, node: st2, capacity: 4GB"))
	_, err := New(Job{Hosts: hosts(9, "cn1"), Targets: 2, RankCapacity: 1e9}, net, inv)
	assert.ErrorIs(t, err, ErrTooFew)
}

// randomSite returns a small site with domains that cross the racks.
func randomSite(r *rand.Rand, word string) (*topology.Topology, *site.Inventory, Job) {
	net, job := "", Job{}
	racks := 1 + r.IntN(4)
	inventory := ""
	nodes := ""
	for i := range racks {
		net += fmt.Sprintf("SwitchName=%srack%d Nodes=%ss%d\n", word, i, word, i)
	}
	if racks > 2 {
		net += fmt.Sprintf("SwitchName=%srow Switches=%srack0,%srack1\nSwitchName=%stop Switches=%srow", word, word, word, word, word)
		for i := 2; i < racks; i++ {
			net += fmt.Sprintf(",%srack%d", word, i)
		}
		net += "\n"
	}
	for i := range 1 + r.IntN(5) {
		name := fmt.Sprintf("%scn%d", word, i)
		net += fmt.Sprintf("SwitchName=%srack%d Nodes=%s\n", word, r.IntN(racks), name)
		nodes += fmt.Sprintf("  - {names: %s, domains: {power: %sp%d}}\n", name, word, r.IntN(3))
		job.Hosts = append(job.Hosts, Host{name, 1 + r.IntN(3)})
	}
	list := 1 + r.IntN(6)
	for i := range list {
		inventory += fmt.Sprintf("  - {name: %st%d, target: file:t, switch: %srack%d, domains: {power: %sp%d}, load: %d}\n", word, i, word, r.IntN(racks), word, r.IntN(3), r.IntN(2))
	}
	job.Targets = 1 + r.IntN(list)
	topo, err := topology.ParseConf([]byte(net))
	if err != nil {
		panic(err)
	}
	inv, err := site.Parse([]byte("version: 1\nfailure-domains: [power, switch]\nnodes:\n" + nodes + "targets:\n" + inventory))
	if err != nil {
		panic(err)
	}
	return topo, inv, job
}

// exact returns the minimum cost, which is the sum of distances if all domains are respected, of all placements with
// equal loads on any choice of targets. allowed reports whether a host may use a target. ok is false if there is no
// placement.
func exact(p *problem, allowed func(h, d int) bool) (best int, ok bool) {
	var devices []int // class of each target
	for d := range p.devices {
		for range p.devices[d].targets {
			devices = append(devices, d)
		}
	}
	var ranks []int
	for h, host := range p.job.Hosts {
		for range host.Ranks {
			ranks = append(ranks, p.hostClass[h])
		}
	}
	for choice := range 1 << len(devices) {
		var taken []int
		for i, d := range devices {
			if choice>>i&1 == 1 {
				taken = append(taken, d)
			}
		}
		if len(taken) != p.want {
			continue
		}
		if cost, found := cheapest(p, ranks, taken, allowed); found && (!ok || cost < best) {
			best, ok = cost, true
		}
	}
	return best, ok
}

// cheapest tries all placements with equal loads.
func cheapest(p *problem, ranks, taken []int, allowed func(h, d int) bool) (int, bool) {
	quota, more := len(ranks)/len(taken), len(ranks)%len(taken)
	costs := map[string]int{string(make([]byte, len(taken))): 0}
	for _, h := range ranks {
		next := make(map[string]int)
		for loads, cost := range costs {
			full := 0
			for _, n := range []byte(loads) {
				if int(n) > quota {
					full++
				}
			}
			for i, d := range taken {
				n := int(loads[i])
				if n > quota || n == quota && full == more || !allowed(h, d) {
					continue
				}
				l := []byte(loads)
				l[i]++
				c := cost + int(p.penalisedDistance(h, d))
				if old, ok := next[string(l)]; !ok || c < old {
					next[string(l)] = c
				}
			}
		}
		costs = next
	}
	best, ok := 0, false
	for _, cost := range costs {
		if !ok || cost < best {
			best, ok = cost, true
		}
	}
	return best, ok
}

// costOf returns the same cost for a plan.
func costOf(p *problem, plan *Plan) (cost int) {
	for _, s := range plan.Shares {
		d := slices.IndexFunc(p.devices, func(d deviceClass) bool {
			return slices.ContainsFunc(d.targets, func(t *site.Target) bool { return t.Name == plan.Targets[s.Target].Name })
		})
		cost += s.Ranks * int(p.penalisedDistance(p.hostClass[s.Host], d))
	}
	return cost
}

// factor is the maximum ratio of a plan's distances to the minimum: targets are chosen greedily.
const factor = 1.25

// TestAgainstExactSearch compares plans for small sites with an exact search: no rank shares a domain with its target
// if that is possible, loads differ by at most one rank, and distances are near the minimum.
func TestAgainstExactSearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	worst := 1.0
	for range 1500 {
		one := r.Uint64()
		net, inv, job := randomSite(rand.New(rand.NewPCG(one, 0)), "")
		plan, err := New(job, net, inv)
		require.NoError(t, err)
		check(t, plan, job)
		lowest, highest := plan.Ranks(), 0
		for _, target := range plan.Targets {
			lowest, highest = min(lowest, target.Ranks), max(highest, target.Ranks)
		}
		require.LessOrEqual(t, highest-lowest, 1, one)

		p, err := newProblem(job, net, inv)
		require.NoError(t, err)
		require.Len(t, plan.Targets, p.want)
		for ignored := 0; ignored <= 2; ignored++ {
			p.respect(inv.Domains[ignored:])
			apart, isApart := exact(p, func(_, d int) bool { return p.apart(d) })
			spread, isSpread := exact(p, func(h, d int) bool { return !p.shares(h, d) })
			best := spread
			if isApart {
				best = apart
			}
			if !isApart && !isSpread {
				continue
			}
			require.Equal(t, append(slices.Clone(inv.Domains[ignored:]), site.Node), plan.Domains, one)
			require.Equal(t, isApart, plan.Kind == Apart, one)
			cost := costOf(p, plan)
			require.LessOrEqual(t, float64(cost), factor*float64(best), one)
			worst = max(worst, float64(cost)/float64(best))
			break
		}
		job.Strict = true
		strict, err := New(job, net, inv)
		p.respect(inv.Domains)
		if _, ok := exact(p, func(_, d int) bool { return p.apart(d) }); ok {
			require.NoError(t, err)
			require.Equal(t, plan.Shares, strict.Shares)
		} else {
			require.ErrorIs(t, err, ErrShared)
		}

		again, err := New(job, net, inv) // plans are deterministic
		if err == nil {
			require.Equal(t, strict.Shares, again.Shares)
		}
		net, inv, job = randomSite(rand.New(rand.NewPCG(one, 0)), "zz")
		renamed, err := New(job, net, inv)
		require.NoError(t, err)
		require.Equal(t, plan.Shares, renamed.Shares, one)
	}
	t.Logf("the costliest plan has %.2f times the least distances", worst)
}

// TestUnequalRacks checks that, if racks have unequal numbers of ranks and not all ranks can be kept apart from their
// data, those are that can be.
func TestUnequalRacks(t *testing.T) {
	st := func(n int) string { return fmt.Sprintf("name: st%d, target: file:%d, node: st%d", n, n, n) }
	net, inv := read(t, cluster, targets(st(1), st(2)))
	p, err := New(Job{Hosts: []Host{{"cn1", 3}, {"cn2", 3}, {"cn3", 2}, {"cn4", 2}}, Targets: 2}, net, inv)
	require.NoError(t, err)
	assert.Equal(t, []string{"node"}, p.Domains)
	both := 0
	for _, f := range p.Failures() {
		if f.Kind == site.Switch {
			both += f.Both
		}
	}
	assert.Equal(t, 1, both, "of six ranks in a rack one has to have its data there")
}

// TestNotInTheTopology checks the warning about a node that the topology lacks, as after a typing error.
func TestNotInTheTopology(t *testing.T) {
	const st1, st9 = "name: st1, target: file:1, node: st1", "name: st9, target: file:9, node: st9"
	for _, c := range []struct {
		what, net, inventory string
		host                 string
		strict               bool
		told                 string // "": no warning
		refused              bool
	}{
		{"a target", cluster, targets(st9), "cn3", false, "does not have st9 of target st9: ", false},
		{"a target, strict", cluster, targets(st9), "cn3", true, "does not have st9 of target st9)", true},
		{"another target, strict", cluster, targets(st9, st1), "cn3", true, "", false},
		{"a node", cluster, targets(st1), "cn9", false, "does not have node cn9: ", false},
		{"a node, strict", cluster, targets(st1), "cn9", true, "does not have node cn9)", true},
		{"switches do not matter", cluster, "failure-domains: [power]\n" + targets(st9), "cn9", true, "", false},
		{"there are no switches", "", targets(st9), "cn9", true, "", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			net, inv := read(t, c.net, c.inventory)
			p, err := New(Job{Hosts: hosts(1, c.host), Targets: 1, Strict: c.strict}, net, inv)
			if c.refused {
				require.ErrorIs(t, err, ErrShared)
				require.ErrorContains(t, err, c.told)
				return
			}
			require.NoError(t, err)
			if c.told == "" {
				assert.Empty(t, p.Warnings)
				return
			}
			require.Len(t, p.Warnings, 1)
			assert.Contains(t, p.Warnings[0], c.told)
		})
	}
}
