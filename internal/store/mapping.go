package store

import (
	"fmt"
	"slices"

	"nvmecr/balancer"
	"nvmecr/internal/config"
)

// mapRanks maps the ranks of a job of the given size to the targets. It fails if a table has no space for the ranks
// of a target.
func mapRanks(cfg *config.Config, plan balancer.Plan, size int) (balancer.Mapping, error) {
	m, err := plan.Map(size, len(cfg.Targets))
	if err == nil {
		err = checkSlots((size-1)/len(cfg.Targets) + 1) // a lower bound for the ranks of the target with the most
	}
	return m, err
}

// ResolveMapping sets the mapping of cfg to that of the partition tables. ranks are the ranks that Ranks has found. It
// fails if the mapping names targets that do not exist. Some targets may be unformatted, after a crash of the first
// run, or after a target was lost and replaced. Then the ranks that are in no table go to those targets, unless the
// mapping agrees with the tables.
func ResolveMapping(cfg *config.Config, ranks []RankInfo) error {
	const limit = 1 << 31
	if _, err := cfg.Mapping.Map(limit, len(cfg.Targets)); err != nil {
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

// Missing returns the ranks of the job that are not among those that Ranks has found: their target was lost and replaced, or the first run of the
// store crashed.
func Missing(ranks []RankInfo) (missing []int) {
	if len(ranks) == 0 || ranks[0].JobSize == len(ranks) {
		return nil
	}
	known := make(map[int]bool)
	for _, r := range ranks {
		known[r.Rank] = true
	}
	for rank := range ranks[0].JobSize {
		if !known[rank] {
			missing = append(missing, rank)
		}
	}
	return missing
}

// complete returns the target of each of size ranks. recorded has the targets of ranks; complete spreads the other
// ranks evenly over the targets that have no rank. It returns nil if there is no such target.
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

// disagreement returns the index of the first of ranks that plan has on another target than the tables; -1 if there
// is none.
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
