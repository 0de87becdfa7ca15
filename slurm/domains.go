package slurm

import (
	"cmp"
	"slices"

	"nvmecr/balancer/site"
)

// The targets of a node fail together. So a job with copies gets only so many targets of a node that enough other
// nodes are left for the copies.

// maxPerNode returns how many of a job's targets may be on one node.
func (r Request) maxPerNode(targets int) int {
	data, parity := r.Copies.Shards()
	switch {
	case r.CopiesSync:
		return targets / 2 // each target is mirrored on another node
	case data > 0:
		return (targets - 1) / (data + parity - 1) // as many nodes as shards are needed
	}
	return targets - 1
}

// limitPerNode removes targets of nodes that would have too many targets of a job with copies, counting those that the job
// has. Of each node it keeps the healthiest and least loaded targets.
func (h *Hooks) limitPerNode(targets []site.Target, r Request, has []LeasedSpot) []site.Target {
	on, all := make(map[string]int), r.Targets
	for _, spot := range has {
		if t, err := h.target(spot.Target); err == nil && t.Health != site.Failed {
			on[t.Node]++
			all++
		}
	}
	perNode, size := r.maxPerNode(all), sizeOn(r, r.Targets)
	targets = slices.DeleteFunc(targets, func(t site.Target) bool {
		return t.Health == site.Failed || t.Health == site.Drained || t.Capacity > 0 && t.Capacity < size
	})
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := targets[i], targets[j]
		return cmp.Or(-cmp.Compare(a.Health, b.Health), cmp.Compare(a.Load, b.Load)) // ok before degraded
	})
	var left []int
	for _, i := range order {
		if node := targets[i].Node; on[node] < perNode {
			on[node]++
			left = append(left, i)
		}
	}
	slices.Sort(left) // keep the order of the inventory, on which plans depend
	list := make([]site.Target, len(left))
	for n, i := range left {
		list[n] = targets[i]
	}
	return list
}
