package slurm

import (
	"cmp"
	"slices"

	"nvmecr/balancer/site"
)

// The targets of one node fail together. So a job with copies gets no more of them than leave its copies other nodes.

// perNode returns how many of a job's targets may be on one node.
func (r Request) perNode(targets int) int {
	data, parity := r.Copies.Shards()
	switch {
	case r.CopiesSync:
		return targets / 2 // each of them is mirrored on another node
	case data > 0:
		return (targets - 1) / (data + parity - 1) // there are as many nodes as shards
	}
	return targets - 1
}

// apart leaves no more targets of a node than a job with copies may have there, beside those that it has: the least loaded.
func (h *Hooks) apart(targets []site.Target, r Request, has []LeasedSpot) []site.Target {
	on, all := make(map[string]int), r.Targets
	for _, spot := range has {
		if t, err := h.target(spot.Target); err == nil && t.Health != site.Failed {
			on[t.Node]++
			all++
		}
	}
	perNode, size := r.perNode(all), sizeOn(r, r.Targets)
	targets = slices.DeleteFunc(targets, func(t site.Target) bool {
		return t.Health == site.Failed || t.Health == site.Drained || t.Capacity > 0 && t.Capacity < size
	})
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := targets[i], targets[j]
		return cmp.Or(-cmp.Compare(a.Health, b.Health), cmp.Compare(a.Load, b.Load)) // what is ok comes before what is degraded
	})
	var left []int
	for _, i := range order {
		if node := targets[i].Node; on[node] < perNode {
			on[node]++
			left = append(left, i)
		}
	}
	slices.Sort(left) // a plan depends on the order of the inventory
	list := make([]site.Target, len(left))
	for n, i := range left {
		list[n] = targets[i]
	}
	return list
}
