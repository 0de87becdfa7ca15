package placement

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
)

// largeSite has 250 racks of 40 nodes and 4 targets, 10 racks in a row, two power lines in each rack.
func largeSite(tb testing.TB) (*topology.Topology, *site.Inventory) {
	var net, inv strings.Builder
	inv.WriteString("version: 1\nfailure-domains: [power, switch]\nnodes:\n")
	for rack := range 250 {
		fmt.Fprintf(&net, "SwitchName=rack%d Nodes=r%dn[1-40],r%ds[1-4]\n", rack, rack, rack)
		for line := range 2 {
			fmt.Fprintf(&inv, "  - {names: 'r%dn[%d-%d]', domains: {power: p%d}}\n", rack, 1+20*line, 20+20*line, 2*rack+line)
		}
	}
	for row := range 25 {
		fmt.Fprintf(&net, "SwitchName=row%d Switches=rack[%d-%d]\n", row, 10*row, 10*row+9)
	}
	net.WriteString("SwitchName=spine Switches=row[0-24]\n")
	inv.WriteString("targets:\n")
	for i := range 1000 {
		fmt.Fprintf(&inv, "  - {name: t%d, target: file:t%d, node: r%ds%d, domains: {power: p%d}}\n", i, i, i/4, i%4+1, 2*(i/4)+i%2)
	}
	topo, err := topology.ParseConf([]byte(net.String()))
	require.NoError(tb, err)
	inventory, err := site.Parse([]byte(inv.String()))
	require.NoError(tb, err)
	return topo, inventory
}

func largeJob(racks int) (job Job) {
	for i := range racks * 40 {
		job.Hosts = append(job.Hosts, Host{fmt.Sprintf("r%dn%d", i/40, i%40+1), 100})
	}
	return job
}

// BenchmarkPlan plans jobs of a large site: a million ranks on all 10,000 nodes, which write to all 1,000 targets,
// and half of that.
func BenchmarkPlan(b *testing.B) {
	net, inv := largeSite(b)
	for _, c := range []struct{ racks, targets int }{{250, 1000}, {125, 400}} {
		b.Run(fmt.Sprintf("%dx%d", c.racks*4000, c.targets), func(b *testing.B) {
			job := largeJob(c.racks)
			job.Targets = c.targets
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				p, err := New(job, net, inv)
				require.NoError(b, err)
				b.ReportMetric(float64(p.Hops)/float64(p.Ranks()), "hops/rank")
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/(1<<20), "MiB/op")
		})
	}
}

// TestLargeJob checks that a large job has equal loads, and that no rank shares a rack or a power line with its data.
func TestLargeJob(t *testing.T) {
	net, inv := largeSite(t)
	for racks, kind := range map[int]Kind{250: Spread, 100: Apart} {
		job := largeJob(racks)
		job.Targets = 4 * min(racks, 150)
		p, err := New(job, net, inv)
		require.NoError(t, err)
		require.Equal(t, kind, p.Kind)
		check(t, p, job)
		lowest, highest := p.Ranks(), 0
		for _, target := range p.Targets {
			lowest, highest = min(lowest, target.Ranks), max(highest, target.Ranks)
		}
		require.LessOrEqual(t, highest-lowest, 1)
		for _, s := range p.Shares {
			rack, _, _ := strings.Cut(job.Hosts[s.Host].Name, "n")
			require.False(t, strings.HasPrefix(p.Targets[s.Target].Node, rack+"s"))
		}
	}
}
