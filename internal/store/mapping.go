package store

import (
	"fmt"
	"slices"

	"nvmecr/balancer"
	"nvmecr/internal/config"
)

// mapRanks maps the ranks of a job of that size onto the targets, if they have room.
func mapRanks(cfg *config.Config, plan balancer.Plan, size int) (balancer.Mapping, error) {
	m, err := plan.Map(size, len(cfg.Targets))
	if err == nil {
		err = checkSlots((size-1)/len(cfg.Targets) + 1) // of the fullest, at least
	}
	return m, err
}

// ResolveMapping makes the mapping of cfg the one that the partition tables record. ranks are those
// that Ranks has found. It fails where the mapping names targets that are not there. While some targets are not formatted, as after a
// crash of the first run or where one was lost and replaced, the ranks that no table has go to those, unless the mapping agrees with the tables.
func ResolveMapping(cfg *config.Config, ranks []RankInfo) error {
	const most = 1 << 31
	if _, err := cfg.Mapping.Map(most, len(cfg.Targets)); err != nil {
		return err
	}
	if len(ranks) == 0 || ranks[0].JobSize == 1 {
		return nil
	}
	recorded, size := make([]int, len(ranks)), ranks[0].JobSize
	for i, r := range ranks {
		recorded[i] = slices.Index(cfg.Targets, r.Target)
	}
	differ, err := disagreement(cfg, cfg.Mapping, ranks, recorded)
	switch {
	case err == nil && differ < 0:
		return nil
	case len(ranks) != size:
		if recorded = complete(len(cfg.Targets), size, ranks, recorded); recorded == nil {
			return fmt.Errorf("store %q: the partition tables of its targets have %d of %d ranks: start over with --fresh, which deletes the checkpoints", cfg.Name, len(ranks), size)
		}
		cfg.Mapping = balancer.List(recorded)
		return nil
	}
	cfg.Mapping = balancer.Plan{}
	if differ, err = disagreement(cfg, cfg.Mapping, ranks, recorded); err != nil || differ >= 0 {
		cfg.Mapping = balancer.List(recorded)
	}
	return nil
}

// complete returns on which target each of size ranks is, where recorded says it of some: the others are on the targets that have no rank, the same number
// on each. nil: there are none.
func complete(targets, size int, ranks []RankInfo, recorded []int) (all []int) {
	known := make(map[int]int)
	for i, r := range ranks {
		known[r.Rank] = recorded[i]
	}
	var blank []int
	for t := range targets {
		if !slices.Contains(recorded, t) {
			blank = append(blank, t)
		}
	}
	if len(blank) == 0 {
		return nil
	}
	for rank, placed := 0, 0; rank < size; rank++ {
		at, ok := known[rank]
		if !ok {
			at = blank[placed*len(blank)/(size-len(known))]
			placed++
		}
		all = append(all, at)
	}
	return all
}

// disagreement returns the first of the ranks that plan has on another target than the tables; -1 is
// none.
func disagreement(cfg *config.Config, plan balancer.Plan, ranks []RankInfo, recorded []int) (int, error) {
	m, err := mapRanks(cfg, plan, ranks[0].JobSize)
	if err != nil {
		return 0, err
	}
	for i, r := range ranks {
		home, err := m.Home(r.Rank)
		if err != nil || home[0].Target != recorded[i] {
			return i, err
		}
	}
	return -1, nil
}
