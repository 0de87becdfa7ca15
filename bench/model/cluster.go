package model

import (
	"fmt"
	"math/bits"
	"strings"

	"nvmecr/balancer/placement"
	"nvmecr/balancer/site"
	"nvmecr/balancer/topology"
)

// A cluster for placements that use the topology. It has racks of nodes with
// coresOfNode ranks each, which a job fills in order, and targets in the same racks.
const (
	racks       = 4
	coresOfNode = 28
)

// plan returns the balancer's plan for a job on the cluster.
func plan(ranks, targets int) (*placement.Plan, error) {
	nodes := (ranks + coresOfNode - 1) / coresOfNode
	var conf, inv strings.Builder
	for r := range racks {
		fmt.Fprintf(&conf, "SwitchName=rack%d", r)
		if first, last := r*nodes/racks, (r+1)*nodes/racks; first < last {
			fmt.Fprintf(&conf, " Nodes=n[%d-%d]", first, last-1)
		}
		conf.WriteString("\n")
	}
	fmt.Fprintf(&conf, "SwitchName=spine Switches=rack[0-%d]\n", racks-1)
	inv.WriteString("version: 1\ntargets:\n")
	for t := range targets {
		fmt.Fprintf(&inv, "  - {name: t%d, target: file:t%d, switch: rack%d}\n", t, t, rackOfTarget(t, targets))
	}
	net, err := topology.ParseConf([]byte(conf.String()))
	if err != nil {
		return nil, err
	}
	i, err := site.Parse([]byte(inv.String()))
	if err != nil {
		return nil, err
	}
	job := placement.Job{Targets: targets}
	for n := range nodes {
		job.Hosts = append(job.Hosts, placement.Host{Name: fmt.Sprintf("n%d", n), Ranks: min(coresOfNode, ranks-n*coresOfNode)})
	}
	return placement.New(job, net, i)
}

func rackOfTarget(t, targets int) int { return t * racks / targets }

func rackOfRank(rank, ranks int) int {
	nodes := (ranks + coresOfNode - 1) / coresOfNode
	node := rank / coresOfNode
	for r := range racks {
		if node < (r+1)*nodes/racks {
			return r
		}
	}
	return racks - 1
}

func planned(ranks, targets int, size uint64, _ uint64) []uint64 {
	loads := make([]uint64, targets)
	p, err := plan(ranks, targets)
	if err != nil {
		return loads // without ranks nothing is placed
	}
	for i, t := range p.Targets {
		loads[i] = uint64(t.Ranks) * size
	}
	return loads
}

// Sharing returns the part of the ranks with data in their own rack, for three
// placements: by the balancer's plan, by the rank's number, and by a hash of the file's
// name.
func Sharing(ranks, targets int, trial uint64) (byPlan, byRank, byHash float64, err error) {
	p, err := plan(ranks, targets)
	if err != nil {
		return 0, 0, 0, err
	}
	rank := 0
	for _, s := range p.Shares {
		for range s.Ranks {
			var t int
			if _, err := fmt.Sscanf(p.Targets[s.Target].Name, "t%d", &t); err != nil {
				return 0, 0, 0, err
			}
			hashed, _ := bits.Mul64(nameHash(rank, trial), uint64(targets))
			own := rackOfRank(rank, ranks)
			for _, c := range []struct {
				target int
				sum    *float64
			}{{t, &byPlan}, {rank % targets, &byRank}, {int(hashed), &byHash}} {
				if rackOfTarget(c.target, targets) == own {
					*c.sum += 1 / float64(ranks)
				}
			}
			rank++
		}
	}
	return byPlan, byRank, byHash, nil
}
