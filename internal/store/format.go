package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/mirror"
)

// segmentAlign is the alignment of partitions, unless hugeblocks are larger. It is a multiple of the erase units and stripes of
// devices.
const segmentAlign = nvmf.MiB

// minPartition is the minimum size of a partition, in hugeblocks and in bytes: smaller ones have no space for log, state and data.
const (
	minHugeblocks = 16
	minPartition  = 2 * nvmf.MiB
)

// pollEvery is the interval at which a rank reads the table of a target that another rank formats.
const pollEvery = 20 * time.Millisecond

// alignment returns the alignment of partitions.
func alignment(hugeblock nvmf.Bytes) nvmf.Bytes { return max(segmentAlign, hugeblock) }

// minLength returns the minimum length of a partition.
func minLength(hugeblock nvmf.Bytes) nvmf.Bytes {
	return max(minPartition, minHugeblocks*hugeblock)
}

// layout divides a namespace from first to end into partitions for slots ranks. It fails if they would be too small.
func layout(id *nvmf.Identity, cfg *config.Config, slots int, first, end nvmf.Bytes) ([]balancer.Segment, error) {
	least, align := minLength(cfg.Hugeblock), alignment(cfg.Hugeblock)
	segs, err := balancer.Segments(first, end, slots, align)
	if err == nil && segs[0].Length < least {
		err = fmt.Errorf("%s for each of %d ranks: %w", segs[0].Length, slots, microfs.ErrTooSmall)
	}
	if err == nil {
		err = microfs.CheckFormat(id, microfs.Segment(segs[0]), microfs.FormatOptions{Hugeblock: cfg.Hugeblock, NoDataCRC: !cfg.DataChecksum})
	}
	if err != nil {
		need := first.AlignUp(align) + id.Capacity() - end + nvmf.Bytes(slots)*least.AlignUp(align)
		return nil, fmt.Errorf("namespace of %s: %w; take one of at least %s (--size for the embedded target), or smaller hugeblocks",
			id.Capacity(), err, need)
	}
	return segs, nil
}

// CheckSize fails if a namespace of cfg.Size is too small for one rank.
func CheckSize(cfg *config.Config) error {
	const lba = 4 * nvmf.KiB
	id := &nvmf.Identity{LBASize: lba, Blocks: nvmf.LBA(cfg.Size / lba)}
	if _, err := layout(id, cfg, 1, parttable.HeadSize, id.Capacity()); err != nil {
		return fmt.Errorf("--size %s: %w", cfg.Size, err)
	}
	return nil
}

// A division is how a namespace is divided when it is formatted: segments for ranks, the singleton partition (absent if its length is 0), and the
// copy area, which begins where the usable part ends.
type division struct {
	ranks     []balancer.Segment
	singleton balancer.Segment
	usable    nvmf.Bytes
}

// divideNew divides the namespace of target t up to usable, where no partition is yet, among n of size ranks.
func divideNew(id *nvmf.Identity, cfg *config.Config, t, n, size int, usable nvmf.Bytes) (d division, err error) {
	d.usable = usable
	end := usable
	if size > 1 && t == 0 && !id.Private {
		d.singleton.Length = singletonLength(cfg, d.usable)
		end = (d.usable - d.singleton.Length).AlignDown(alignment(cfg.Hugeblock))
		d.singleton.Start = end
	}
	d.ranks, err = layout(id, cfg, n, parttable.HeadSize, end)
	if err != nil && d.singleton.Length > 0 && cfg.View == config.ViewRank {
		d.singleton = balancer.Segment{}
		d.ranks, err = layout(id, cfg, n, parttable.HeadSize, d.usable)
	}
	if err == nil && d.usable < id.Capacity() {
		_, err = layout(id, cfg, 1, d.usable, id.Capacity())
	}
	return d, err
}

// newTable returns the partition table of target t for the ranks of mapping, and the division as its entries.
func newTable(id *nvmf.Identity, cfg *config.Config, t int, mapping balancer.Mapping, d *division) (*parttable.Table, error) {
	table, err := emptyTable(id, cfg, t, d.usable)
	table.JobSize = mapping.Size()
	for slot, rank := range mapping.Ranks(t) {
		table.Entries = append(table.Entries, parttable.Entry{Rank: rank, Start: d.ranks[slot].Start, Length: d.ranks[slot].Length})
	}
	if d.singleton.Length > 0 {
		table.Entries = append(table.Entries, parttable.Entry{Rank: parttable.Singleton, Start: d.singleton.Start, Length: d.singleton.Length})
	}
	return table, err
}

// emptyTable returns the partition table of target t without a partition. The copy area begins where the usable part ends.
func emptyTable(id *nvmf.Identity, cfg *config.Config, t int, usable nvmf.Bytes) (*parttable.Table, error) {
	table := &parttable.Table{
		Name:      cfg.Name,
		UID:       uint32(os.Geteuid()),
		Namespace: id.UUID,
		JobSize:   1,
		Target:    t,
		Targets:   len(cfg.Targets),
		Hugeblock: cfg.Hugeblock,
		Created:   time.Now().UTC(),
	}
	if cfg.View == config.ViewJob {
		table.Incompatible = parttable.Shards
	}
	if cfg.CopiesSync {
		table.Incompatible |= parttable.Mirrored
	}
	if usable < id.Capacity() {
		table.Incompatible |= parttable.CopyArea
		table.Copies = parttable.Extent{Start: usable, Length: id.Capacity() - usable}
	}
	var err error
	table.Generation, err = parttable.NewGeneration()
	return table, err
}

// format formats dev as target t of the store, for the ranks that mapping has there. It leaves all partitions
// unformatted. It writes nothing to a namespace that is too small, and keeps an existing copy area.
func format(ctx context.Context, dev nvmf.Device, cfg *config.Config, t int, mapping balancer.Mapping) (*parttable.Table, error) {
	id, n := dev.Identity(), len(mapping.Ranks(t))
	if err := checkSlots(n); err != nil {
		return nil, err
	}
	before, err := readTable(ctx, cfg, dev)
	if err != nil && !errors.Is(err, parttable.ErrNoTable) {
		return nil, err
	}
	if before != nil && !before.Empty() {
		before = nil // the store of a single process, which the new table replaces
	}
	usable := id.Capacity() - copyLength(cfg, id)
	if before != nil {
		usable = before.End(id.Capacity())
	}
	d, err := divideNew(id, cfg, t, n, mapping.Size(), usable)
	if err != nil {
		return nil, err
	}
	table, err := newTable(id, cfg, t, mapping, &d)
	if err != nil {
		return nil, err
	}
	if before == nil {
		return table, writeNew(ctx, dev, cfg, table)
	}
	table.Generation, table.Created = before.Generation, before.Created
	return table, parttable.Extend(ctx, dev, table, superblocks(table.Entries))
}

// writeNew writes the table of a namespace that has none.
func writeNew(ctx context.Context, dev nvmf.Device, cfg *config.Config, table *parttable.Table) error {
	blank := superblocks(table.FileSystems())
	if start, length := mirror.States(dev.Identity()); !cfg.CopiesSync && length > 0 { // old states could make dev look like a side of a mirror
		blank = append(blank, parttable.Range{Start: start, Length: length})
	}
	if err := parttable.Begin(ctx, dev, blank); err != nil {
		return fmt.Errorf("formatting: %w", halfFormatted(err))
	}
	if err := parttable.Write(ctx, dev, table); err != nil {
		return fmt.Errorf("formatting: %w", halfFormatted(err))
	}
	return nil
}

// checkSlots fails if a table has no space for that many ranks and the singleton partition.
func checkSlots(slots int) error {
	if slots > parttable.MaxEntries-1 {
		return fmt.Errorf("%d ranks share the namespace, at most %d can: name more targets", slots, parttable.MaxEntries-1)
	}
	return nil
}

// superblocks returns the superblocks of unformatted partitions, which have to be zeros.
func superblocks(entries []parttable.Entry) (blank []parttable.Range) {
	for _, e := range entries {
		for _, at := range microfs.SuperblockOffsets(microfs.Segment{Start: e.Start, Length: e.Length}) {
			blank = append(blank, parttable.Range{Start: at, Length: 4 * nvmf.KiB})
		}
	}
	return blank
}

// await waits for the table that the lowest rank of target t writes.
func (o *opener) await(ctx context.Context, dev nvmf.Device, t int) (*parttable.Table, error) {
	first := o.mapping.Ranks(t)[0]
	o.opts.Logf("waiting for rank %d to format target %s", first, o.cfg.Targets[t])
	if o.opts.Formatted != nil {
		if err := o.opts.Formatted(); err != nil {
			return nil, fmt.Errorf("it was not formatted: %w", err)
		}
	}
	// Formatted may return before the table exists: another process of that rank may be about to write it.
	wait, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		table, err := parttable.Read(wait, dev)
		if err == nil && !o.undivided(table) || err != nil && !errors.Is(err, parttable.ErrNoTable) && wait.Err() == nil {
			return table, err
		}
		select {
		case <-wait.Done():
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("waiting for rank %d to format it: %w", first, err)
			}
			return nil, &WaitError{Rank: first, For: o.cfg.Timeout}
		case <-tick.C:
		}
	}
}
