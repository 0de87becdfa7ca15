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

// partners returns for each target the one that mirrors it, in another failure domain: an address, or where all have one address a target. It is
// the same for targets of other addresses, as long as as many of them fail together.
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
	order := make([]int, len(targets)) // those of a domain side by side
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

// Domains returns the failure domains of targets: those at one address fail together, unless all of them are.
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

// CheckMirror refuses mirrors where there is no place for them.
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

// readFrom has reads of dev, the mirror whose home is id, be of one side, and returns its target.
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

// mirrorPatience is the part of the time-out for which a lost side is waited for: what waits for the mirror is still waiting then.
const mirrorPatience = 4 // 1/4

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
	dev, err := mirror.Open(ctx, dial, mirror.Options{ReadOnly: readOnly, Fresh: cfg.Fresh, Patience: cfg.Timeout / mirrorPatience})
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

// mayMirror fails if target t, which is part of no mirror yet, has the table of a store that keeps it: seen as half of the namespace it may look damaged.
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

// healing is claimed, and has the mount that is about to begin make both sides of the mirror dev the same: its last writer may have
// been killed.
func healing(dev nvmf.Device, claimed func(*microfs.Claim) (microfs.Late, error)) func(*microfs.Claim) (microfs.Late, error) {
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

// levelSuperblocks makes the superblocks of a partition the same on both sides of a mirror: they were read before it was claimed.
func levelSuperblocks(ctx context.Context, m *mirror.Device, e parttable.Entry) error {
	for _, at := range microfs.SuperblockOffsets(microfs.Segment{Start: e.Start, Length: e.Length}) {
		if err := m.Level(ctx, at, superblockSize); err != nil {
			return fmt.Errorf("superblocks on both sides of the mirror: %w", err)
		}
	}
	return nil
}

// levelHead makes table and run record the same on both sides of a mirror. The lease is about to be taken.
func levelHead(ctx context.Context, dev nvmf.Device) error {
	if m, ok := dev.(*mirror.Device); ok {
		return m.Level(ctx, 0, parttable.HeadSize)
	}
	return nil
}

// DegradedMirrors returns the targets without which a mirrored store goes on, and since when, if its runs have recorded that.
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
