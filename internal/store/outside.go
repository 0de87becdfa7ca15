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
	// Hugeblock is the size all partitions of its target have.
	Hugeblock nvmf.Bytes
	// JobSize is how many ranks the job has.
	JobSize int
	// Tree is what the partitions hold.
	Tree parttable.Tree
	// Copies says that its target has a copy area.
	Copies bool
}

// Ranks lists the partitions of ranks, in their order. For errors see Partitions.
func Ranks(ctx context.Context, cfg *config.Config) ([]RankInfo, error) {
	infos, err := Partitions(ctx, cfg)
	return slices.DeleteFunc(infos, func(i RankInfo) bool { return i.Rank == parttable.Singleton }), err
}

// Partitions lists the partitions of the store in order of rank, the singleton partition last, read from the
// tables of all targets. The error is parttable.ErrNoTable if no target has a
// table, and ErrOnlyCopies if one has a copy area alone; targets without one are left out otherwise, a job with fewer ranks
// than targets leaves some unused, or with a copy area alone. Where some targets cannot be reached, it lists the partitions on the others, and
// the error is in nvmf.ErrUnreachable.
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

// singletonLast orders ranks, and the singleton partition behind them.
func singletonLast(a, b int) int { return cmp.Compare(uint(a), uint(b)) }

// readOwnTable reads the table of target t and checks that it is this store's, whatever
// the number of ranks.
func readOwnTable(ctx context.Context, cfg *config.Config, t int, dev nvmf.Device, anyUser bool) (*parttable.Table, error) {
	table, err := readTable(ctx, cfg, dev)
	if err != nil {
		return nil, err
	}
	w := want(cfg, t, len(cfg.Targets), 0)
	w.ReadOnly, w.AnyUser = true, anyUser
	return table, table.Check(w)
}

// Reset makes every target ready to be formatted for --fresh, whatever it holds,
// but for the table of another store or user, or of an unknown version: then nothing is
// written anywhere and the error says which. The same goes for a target that
// cannot keep processes of earlier runs from writing, where one of them may
// live: then the error is a *HeldError.
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
	// The reservation stays: the run that starts over has it from here on.
	return wipe(ctx, cfg, check, func(dev nvmf.Device, _ bool) error { return parttable.Begin(ctx, dev, nil) })
}

// replaceable returns the table of dev if --fresh may replace it, nil for something
// that is no table. Errors are parttable.ErrNoTable, and those of what may not be
// replaced.
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

// Release gives up the store on every target: the tables are wiped. A target
// without a table is left alone; one that holds anything but this store's
// makes it fail, with nothing written anywhere, also another user's for root.
// The error is a *HeldError if a process that wrote to it may live: reservations
// are given up, too, so that nothing would keep it from writing to what comes
// next.
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

// wipe asks check about every target, and if it has no objection fences those
// it said yes to, as far as they can be, and blanks them.
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

// eachTarget connects to the targets one after the other, and ends at the first error.
func eachTarget(ctx context.Context, cfg *config.Config, readOnly bool, f func(t int, id nvmf.TransportID, dev nvmf.Device) error) error {
	return visitTargets(ctx, cfg, readOnly, func(error) bool { return false }, f)
}

// eachReachable is eachTarget without those that cannot be reached, which are in the error.
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

// visitTargets leaves out those whose error in connecting skip takes.
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

// namespaces are those that were opened, by what they say of themselves.
type namespaces []struct {
	id       nvmf.TransportID
	identity nvmf.Identity
}

// add takes note of one. It fails with ErrSameNamespace if that is known by another
// address: a table on it would say that it is two.
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
