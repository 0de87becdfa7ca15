package store

import (
	"context"
	"errors"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// Unreleased returns the ranks whose partitions were not unmounted by their last writer. That process lives, or was
// killed.
func Unreleased(ctx context.Context, cfg *config.Config) (ranks []int, err error) {
	err = eachTarget(ctx, cfg, true, func(t int, _ nvmf.TransportID, dev nvmf.Device) error {
		table, err := readOwnTable(ctx, cfg, t, dev, false)
		if errors.Is(err, parttable.ErrNoTable) {
			return nil
		}
		if err != nil {
			return err
		}
		claims, err := microfs.NewClaimReader(ctx, dev)
		if err != nil {
			return err
		}
		defer claims.Close()
		for _, e := range table.Entries {
			if e.Rank == parttable.Singleton || table.JobSize == 1 {
				continue
			}
			claim, err := claims.Last(microfs.Segment{Start: e.Start, Length: e.Length})
			switch {
			case errors.Is(err, microfs.ErrUnformatted):
			case err != nil:
				return err
			case claim != nil && !claim.Released:
				ranks = append(ranks, e.Rank)
			}
		}
		return nil
	})
	return ranks, err
}
