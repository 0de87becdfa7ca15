package bench

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"nvmecr/balancer/placement"
	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
	"nvmecr/bench/result"
	"nvmecr/bench/stats"
)

// The largest planned job, and its limit.
const (
	planRacks     = 250
	planNodes     = 40 // in a rack
	planRanks     = 100
	planTargets   = 4 // in a rack
	planTimeLimit = time.Second
	planMemory    = 1 << 30
)

// plan measures the planning of a job of a million ranks, including reading the files.
func (g *goalRun) plan(context.Context) error {
	conf, inventory, job := largeSite()
	var times stats.Sample
	var allocated float64
	rounds := 5
	if g.Quick {
		rounds = 1
	}
	for range rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		net, err := topology.ParseConf(conf)
		if err != nil {
			return err
		}
		inv, err := site.Parse(inventory)
		if err != nil {
			return err
		}
		if _, err := placement.New(job, net, inv); err != nil {
			return err
		}
		times = append(times, time.Since(begin).Seconds())
		runtime.ReadMemStats(&after)
		allocated = max(allocated, float64(after.TotalAlloc-before.TotalAlloc))
	}
	what := fmt.Sprintf("plan of %s ranks on %s nodes and %s targets", result.Whole.Format(planRacks*planNodes*planRanks), result.Whole.Format(planRacks*planNodes),
		result.Whole.Format(planRacks*planTargets))
	g.add(result.Goal{What: what, Limit: planTimeLimit.Seconds(), AtMost: true, Unit: result.Duration, Measured: result.Middle(times), Beside: "the files are read, too"})
	g.add(result.Goal{What: what + ": all that is allocated", Limit: planMemory, AtMost: true, Unit: result.Size, Measured: result.Exactly(allocated)})
	return nil
}

// largeSite returns a site of racks with two power lines each, and a job on all of its
// nodes.
func largeSite() (conf, inventory []byte, job placement.Job) {
	var net, inv strings.Builder
	inv.WriteString("version: 1\nfailure-domains: [power, switch]\nnodes:\n")
	for rack := range planRacks {
		fmt.Fprintf(&net, "SwitchName=rack%d Nodes=r%dn[1-%d],r%ds[1-%d]\n", rack, rack, planNodes, rack, planTargets)
		for line := range 2 {
			half := planNodes / 2
			fmt.Fprintf(&inv, "  - {names: 'r%dn[%d-%d]', domains: {power: p%d}}\n", rack, 1+half*line, half+half*line, 2*rack+line)
		}
		for n := range planNodes {
			job.Hosts = append(job.Hosts, placement.Host{Name: fmt.Sprintf("r%dn%d", rack, n+1), Ranks: planRanks})
		}
	}
	fmt.Fprintf(&net, "SwitchName=spine Switches=rack[0-%d]\n", planRacks-1)
	inv.WriteString("targets:\n")
	job.Targets = planRacks * planTargets
	for i := range job.Targets {
		fmt.Fprintf(&inv, "  - {name: t%d, target: 'trtype:TCP traddr:10.0.%d.%d subnqn:nqn.2014-08.org.example:t%d ns:1', node: r%ds%d, domains: {power: p%d}}\n", i, i/250, i%250+1, i, i/planTargets, i%planTargets+1, 2*(i/planTargets)+i%2)
	}
	return []byte(net.String()), []byte(inv.String()), job
}
