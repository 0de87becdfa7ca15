package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// A RankInfo is one partition of a store.
type RankInfo struct {
	Rank    int // or parttable.Singleton
	Target  nvmf.TransportID
	Segment microfs.Segment
	// Hugeblock is the hugeblock size of all partitions on its target.
	Hugeblock nvmf.Bytes
	// JobSize is the number of ranks of the job.
	JobSize int
	// Tree is the kind of tree of the store.
	Tree parttable.Tree
	// Copies is true if its target has a copy area.
	Copies bool
}

// Ranks lists the partitions of ranks, in their order. For errors see Partitions.
func Ranks(ctx context.Context, cfg *config.Config) ([]RankInfo, error) {
	infos, err := Partitions(ctx, cfg)
	return slices.DeleteFunc(infos, func(i RankInfo) bool { return i.Rank == parttable.Singleton }), err
}

// Partitions lists the partitions of the store in order of rank, the singleton partition last, from the tables of all targets. The
// error is parttable.ErrNoTable if no target has a table, and ErrOnlyCopies if a target has a copy area and none has a partition.
// Targets without a partition are ignored otherwise: a job with fewer ranks than targets leaves some unused, or with a copy area only.
// If some targets cannot be reached, it lists the partitions on the others, and the error wraps nvmf.ErrUnreachable.
func Partitions(ctx context.Context, cfg *config.Config) ([]RankInfo, error) {
	var infos []RankInfo
	var missing error
	found := false
	err := eachReachable(ctx, cfg, true, func(t int, id nvmf.TransportID, dev nvmf.Device) error {
		table, err := readOwnTable(ctx, cfg, t, dev, os.Geteuid() == 0)
		if errors.Is(err, parttable.ErrNoTable) {
			if !errors.Is(missing, ErrOnlyCopies) {
				missing = fmt.Errorf("target %s: %w", id, err)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if table.Empty() {
			missing = fmt.Errorf("target %s: %w", id, ErrOnlyCopies)
			return nil
		}
		found = true
		for _, e := range table.Entries {
			infos = append(infos, RankInfo{e.Rank, id, microfs.Segment{Start: e.Start, Length: e.Length}, table.Hugeblock, table.JobSize, table.Tree(), table.Copies.Length > 0})
		}
		return nil
	})
	if err == nil && !found {
		err = missing
	}
	slices.SortFunc(infos, func(a, b RankInfo) int { return singletonLast(a.Rank, b.Rank) })
	return infos, err
}

// singletonLast compares ranks; the singleton partition is last.
func singletonLast(a, b int) int { return cmp.Compare(uint(a), uint(b)) }

// readOwnTable reads the table of target t and checks that it is the table of this store, for any number of ranks.
func readOwnTable(ctx context.Context, cfg *config.Config, t int, dev nvmf.Device, anyUser bool) (*parttable.Table, error) {
	table, err := readTable(ctx, cfg, dev)
	if err != nil {
		return nil, err
	}
	w := want(cfg, t, len(cfg.Targets), 0)
	w.ReadOnly, w.AnyUser = true, anyUser
	return table, table.Check(w)
}

// Reset prepares every target to be formatted for --fresh, whatever its content. It fails, and writes nothing, if a target has the
// table of another store or user, or of an unknown version. It fails with a *HeldError if a target cannot fence processes of earlier
// runs, and one of them may live.
func Reset(ctx context.Context, cfg *config.Config) error {
	check := func(dev nvmf.Device) (bool, error) {
		table, err := replaceable(ctx, cfg, dev)
		switch {
		case errors.Is(err, parttable.ErrNoTable):
			return false, nil
		case table == nil || err != nil:
			return err == nil, err
		case dev.Identity().Reservations:
			return true, nil
		}
		return true, quiet(ctx, cfg, dev, table, true)
	}
	// The reservation stays, for the run that starts over.
	return wipe(ctx, cfg, check, func(dev nvmf.Device, _ bool) error { return parttable.Begin(ctx, dev, nil) })
}

// replaceable returns the table of dev if --fresh may replace it; nil for content that is no table. Errors are parttable.ErrNoTable,
// and those for content that must not be replaced.
func replaceable(ctx context.Context, cfg *config.Config, dev nvmf.Device) (*parttable.Table, error) {
	table, err := readTable(ctx, cfg, dev)
	switch {
	case errors.Is(err, parttable.ErrForeign), errors.Is(err, parttable.ErrCorrupt):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return table, table.Check(want(cfg, 0, 0, 0))
}

// Release deletes the store on every target by wiping the tables. A target without a table is left alone. If a target
// has other content than this store, Release fails, and writes nothing. It fails also for root, if the store is
// another user's. The error is a *HeldError if a process that wrote to the store may live: Release ends the
// reservation, so nothing would keep that process from writing to later content.
func Release(ctx context.Context, cfg *config.Config) (released int, err error) {
	check := func(dev nvmf.Device) (bool, error) {
		table, err := readTable(ctx, cfg, dev)
		if errors.Is(err, parttable.ErrNoTable) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if err := table.Check(want(cfg, 0, 0, 0)); err != nil {
			return false, err
		}
		if err := quiet(ctx, cfg, dev, table, true); err != nil {
			return false, err
		}
		released++
		return true, nil
	}
	err = wipe(ctx, cfg, check, func(dev nvmf.Device, reserved bool) error {
		err := parttable.Wipe(ctx, dev)
		if m, ok := dev.(*mirror.Device); ok && err == nil {
			err = m.Forget(ctx)
		}
		if r, ok := dev.(nvmf.Reserver); ok && reserved && err == nil {
			err = r.Unreserve(ctx, reservationKey(cfg.Run))
		}
		return err
	})
	return released, err
}

// wipe calls check for every target. If there is no error, it fences the targets for which check returned true, if possible, and blanks
// them.
func wipe(ctx context.Context, cfg *config.Config, check func(nvmf.Device) (bool, error), blank func(dev nvmf.Device, reserved bool) error) error {
	doomed := make([]bool, len(cfg.Targets))
	err := eachTarget(ctx, cfg, false, func(t int, _ nvmf.TransportID, dev nvmf.Device) (err error) {
		doomed[t], err = check(dev)
		return err
	})
	if err != nil {
		return err
	}
	return eachTarget(ctx, cfg, false, func(t int, _ nvmf.TransportID, dev nvmf.Device) error {
		if !doomed[t] {
			return nil
		}
		reserve, err := fence(ctx, cfg, dev)
		if err == nil {
			err = deallocateAll(ctx, cfg, dev)
		}
		if err == nil {
			err = blank(dev, reserve != nil)
		}
		return err
	})
}

// eachTarget calls f for each target in turn, until the first error.
func eachTarget(ctx context.Context, cfg *config.Config, readOnly bool, f func(t int, id nvmf.TransportID, dev nvmf.Device) error) error {
	return visitTargets(ctx, cfg, readOnly, func(error) bool { return false }, f)
}

// eachReachable is eachTarget, except that it leaves out targets that cannot be reached. Its error names these.
func eachReachable(ctx context.Context, cfg *config.Config, readOnly bool, f func(t int, id nvmf.TransportID, dev nvmf.Device) error) error {
	var away error
	err := visitTargets(ctx, cfg, readOnly, func(err error) bool {
		gone := errors.Is(err, nvmf.ErrUnreachable)
		if gone {
			away = errors.Join(away, err)
		}
		return gone
	}, f)
	return errors.Join(err, away)
}

// visitTargets is eachTarget, except that it leaves out targets for whose connection error skip returns true.
func visitTargets(ctx context.Context, cfg *config.Config, readOnly bool, skip func(error) bool, f func(t int, id nvmf.TransportID, dev nvmf.Device) error) error {
	if len(cfg.Targets) == 0 {
		return ErrNoTarget
	}
	var seen namespaces
	for t, id := range cfg.Targets {
		dev, err := connect(ctx, cfg, id, readOnly)
		if err != nil && skip(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := seen.add(id, dev); err != nil {
			return andClosing(err, dev.Close())
		}
		if err := andClosing(f(t, id, dev), dev.Close()); err != nil {
			return fmt.Errorf("target %s: %w", id, err)
		}
	}
	return nil
}

// namespaces are the opened namespaces with their identities.
type namespaces []struct {
	id       nvmf.TransportID
	identity nvmf.Identity
}

// add adds a namespace. It fails with ErrSameNamespace if the namespace was opened under another address: it would
// have to be two targets of the store.
func (n *namespaces) add(id nvmf.TransportID, dev nvmf.Device) error {
	identity := *dev.Identity()
	for _, known := range *n {
		if !identity.Private && identity.Same(&known.identity) {
			return fmt.Errorf("%w: %s and %s both have UUID %s; name it once: there is no multipath, a connection that is lost is made again to the same address",
				ErrSameNamespace, known.id, id, identity.UUID)
		}
	}
	*n = append(*n, struct {
		id       nvmf.TransportID
		identity nvmf.Identity
	}{id, identity})
	return nil
}
