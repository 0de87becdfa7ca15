package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// With --copies-sync the first half of each target is mirrored in the second half of another one (package mirror). All of this package
// sees a device of half the size: table, run record and partitions are in the mirror.

// partners returns for each target the one that mirrors it, in another failure domain: an address, or a target if all have one address.
// The result does not depend on the addresses themselves, only on how many targets share each.
func partners(targets []nvmf.TransportID) ([]int, error) {
	domains := Domains(targets)
	first, most := make(map[string]int), 0
	for t, d := range domains {
		if _, ok := first[d]; !ok {
			first[d] = t
		}
	}
	for d := range first {
		n := 0
		for _, other := range domains {
			if other == d {
				n++
			}
		}
		most = max(most, n)
	}
	if n := len(targets); n < 2 || 2*most > n {
		return nil, fmt.Errorf("--copies-sync: each target is mirrored on one at another address, and %d of %d have one address: name at least two, and at most half of them at one address: %w",
			most, n, errors.ErrUnsupported)
	}
	order := make([]int, len(targets)) // sorted by domain
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(first[domains[a]], first[domains[b]]) })
	partner := make([]int, len(targets))
	for i, t := range order {
		partner[t] = order[(i+most)%len(order)]
	}
	return partner, nil
}

// Domains returns the failure domain of each target. Targets at one address fail together. If all targets are at one
// address, each is a domain of its own.
func Domains(targets []nvmf.TransportID) (list []string) {
	for _, t := range targets {
		list = append(list, t.Address)
	}
	if !slices.ContainsFunc(list, func(d string) bool { return d != list[0] }) {
		for i := range list {
			list[i] = fmt.Sprint(i)
		}
	}
	return list
}

// CheckMirror returns an error if the targets cannot mirror each other.
func CheckMirror(targets []nvmf.TransportID) error {
	_, err := partners(targets)
	return err
}

// mirrorSides returns the targets of the mirror whose home is target t.
func mirrorSides(cfg *config.Config, t int) ([2]nvmf.TransportID, error) {
	partner, err := partners(cfg.Targets)
	if err != nil {
		return [2]nvmf.TransportID{}, err
	}
	return [2]nvmf.TransportID{cfg.Targets[t], cfg.Targets[partner[t]]}, nil
}

// A mirrorSide is a choice between the sides of mirrors.
type mirrorSide int

const (
	eitherSide mirrorSide = iota
	homeSide
	partnerSide
)

// readFrom makes dev, the mirror whose home is id, read from one side, and returns the target of that side.
func readFrom(cfg *config.Config, dev nvmf.Device, id nvmf.TransportID, side mirrorSide) (nvmf.TransportID, error) {
	m, ok := dev.(*mirror.Device)
	if !ok {
		return id, nil
	}
	s := int(side - homeSide)
	if err := m.ReadFrom(s); err != nil {
		return id, err
	}
	sides, err := mirrorSides(cfg, slices.Index(cfg.Targets, id))
	return sides[s], err
}

// mirrorTimeoutDivisor divides the time-out for a lost side, so that users of the mirror do not run into their own time-out.
const mirrorTimeoutDivisor = 4 // 1/4

// connectMirror opens the mirror whose home is target t.
func connectMirror(ctx context.Context, cfg *config.Config, t int, readOnly bool) (nvmf.Device, error) {
	sides, err := mirrorSides(cfg, t)
	if err != nil {
		return nil, err
	}
	var dial [2]mirror.Dial
	for s, id := range sides {
		dial[s] = func(ctx context.Context) (nvmf.Device, error) { return connectTo(ctx, cfg, id, readOnly) }
	}
	dev, err := mirror.Open(ctx, dial, mirror.Options{ReadOnly: readOnly, Fresh: cfg.Fresh, Patience: cfg.Timeout / mirrorTimeoutDivisor})
	if err != nil {
		return nil, fmt.Errorf("targets %s and %s, its mirror: %w", sides[0], sides[1], err)
	}
	if dev.New() {
		if err := mayMirror(ctx, cfg, t); err != nil {
			return nil, andClosing(fmt.Errorf("target %s: %w", sides[0], err), dev.Close())
		}
	}
	return dev, nil
}

// mayMirror fails if target t, which is not in a mirror yet, has the table of a store that must be kept. It reads the
// table from the whole namespace: the first half alone, as in a mirror, could make the table look damaged.
func mayMirror(ctx context.Context, cfg *config.Config, t int) (err error) {
	dev, err := connectTo(ctx, cfg, cfg.Targets[t], true)
	if err != nil {
		return err
	}
	defer func() { err = andClosing(err, dev.Close()) }()
	table, err := readTable(ctx, cfg, dev)
	switch {
	case errors.Is(err, parttable.ErrNoTable), cfg.Fresh && (errors.Is(err, parttable.ErrForeign) || errors.Is(err, parttable.ErrCorrupt)):
		return nil
	case err != nil:
		return err
	case cfg.Fresh:
		return table.Check(want(cfg, 0, 0, 0))
	}
	return table.Check(want(cfg, t, len(cfg.Targets), 0))
}

// synchronising calls claimed, and makes the following mount synchronise both sides of the mirror dev, whose last writer may have been
// killed.
func synchronising(dev nvmf.Device, claimed func(*microfs.Claim) (microfs.Late, error)) func(*microfs.Claim) (microfs.Late, error) {
	m, ok := dev.(*mirror.Device)
	if !ok {
		return claimed
	}
	return func(last *microfs.Claim) (microfs.Late, error) {
		late, err := claimed(last)
		m.Heal(err == nil)
		return late, err
	}
}

const superblockSize = 4 * nvmf.KiB

// equaliseSuperblocks makes the superblocks of a partition equal on both sides of a mirror: they were read before the partition was
// claimed.
func equaliseSuperblocks(ctx context.Context, m *mirror.Device, e parttable.Entry) error {
	for _, at := range microfs.SuperblockOffsets(microfs.Segment{Start: e.Start, Length: e.Length}) {
		if err := m.Level(ctx, at, superblockSize); err != nil {
			return fmt.Errorf("superblocks on both sides of the mirror: %w", err)
		}
	}
	return nil
}

// equaliseHead makes table and run record equal on both sides of a mirror, before the lease is taken.
func equaliseHead(ctx context.Context, dev nvmf.Device) error {
	if m, ok := dev.(*mirror.Device); ok {
		return m.Level(ctx, 0, parttable.HeadSize)
	}
	return nil
}

// DegradedMirrors returns the lost targets of a mirrored store, and since when they are lost, if its runs have recorded that.
func DegradedMirrors(ctx context.Context, cfg *config.Config) (lost []nvmf.TransportID, since time.Time, err error) {
	err = eachTarget(ctx, cfg, true, func(t int, _ nvmf.TransportID, dev nvmf.Device) error {
		m, ok := dev.(*mirror.Device)
		if !ok {
			return nil
		}
		only, alone := m.Alone()
		if !alone {
			return nil
		}
		sides, err := mirrorSides(cfg, t)
		if err != nil {
			return err
		}
		if !slices.Contains(lost, sides[1-only]) {
			lost = append(lost, sides[1-only])
		}
		f, err := readRecord(ctx, cfg, dev)
		if err == nil && f.Record != nil {
			since = earlier(since, f.Record.Degraded)
		}
		return err
	})
	return lost, since, err
}
