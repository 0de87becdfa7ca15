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
)

// segmentAlign is what partitions start on a multiple of, unless hugeblocks
// are larger: the erase units and stripes of devices divide it.
const segmentAlign = nvmf.MiB

// minPartition is the least a partition may have, in hugeblocks and in bytes:
// below it there is no room for log, state and data.
const (
	minHugeblocks = 16
	minPartition  = 2 * nvmf.MiB
)

// pollEvery is how often a rank looks whether its target has been formatted.
const pollEvery = 20 * time.Millisecond

// alignment is what partitions start on a multiple of.
func alignment(hugeblock nvmf.Bytes) nvmf.Bytes { return max(segmentAlign, hugeblock) }

// minLength is the least length of a partition.
func minLength(hugeblock nvmf.Bytes) nvmf.Bytes {
	return max(minPartition, minHugeblocks*hugeblock)
}

// layout cuts a namespace from first to end into partitions for so many ranks. It fails
// where they would be too small.
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

// CheckSize fails if a namespace of cfg.Size is too small for even one rank.
func CheckSize(cfg *config.Config) error {
	const lba = 4 * nvmf.KiB
	id := &nvmf.Identity{LBASize: lba, Blocks: nvmf.LBA(cfg.Size / lba)}
	if _, err := layout(id, cfg, 1, parttable.HeadSize, id.Capacity()); err != nil {
		return fmt.Errorf("--size %s: %w", cfg.Size, err)
	}
	return nil
}

// format makes dev target number t of the store, for the ranks that mapping has there, and
// leaves all its partitions unformatted. Nothing is written to a namespace
// that is too small.
func format(ctx context.Context, dev nvmf.Device, cfg *config.Config, t int, mapping balancer.Mapping) (*parttable.Table, error) {
	id := dev.Identity()
	ranks, size := mapping.Ranks(t), mapping.Size()
	if err := checkSlots(len(ranks)); err != nil {
		return nil, err
	}
	room, solo := id.Capacity()-copyLength(cfg, id), nvmf.Bytes(0)
	end := room
	if size > 1 && t == 0 && !id.Private {
		solo = soloLength(cfg, room)
		end = (room - solo).AlignDown(alignment(cfg.Hugeblock))
	}
	segs, err := layout(id, cfg, len(ranks), parttable.HeadSize, end)
	if err != nil && solo > 0 && cfg.View == config.ViewRank {
		solo = 0
		segs, err = layout(id, cfg, len(ranks), parttable.HeadSize, room)
	}
	if err == nil && room < id.Capacity() {
		_, err = layout(id, cfg, 1, room, id.Capacity())
	}
	if err != nil {
		return nil, err
	}
	table := &parttable.Table{
		Name:      cfg.Name,
		UID:       uint32(os.Geteuid()),
		Namespace: id.UUID,
		JobSize:   size,
		Target:    t,
		Targets:   len(cfg.Targets),
		Hugeblock: cfg.Hugeblock,
		Created:   time.Now().UTC(),
	}
	if cfg.View == config.ViewJob {
		table.Incompatible = parttable.Shards
	}
	if room < id.Capacity() {
		table.Incompatible |= parttable.CopyArea
		table.Copies = parttable.Extent{Start: room, Length: id.Capacity() - room}
	}
	if table.Generation, err = parttable.NewGeneration(); err != nil {
		return nil, err
	}
	for slot, s := range segs {
		table.Entries = append(table.Entries, parttable.Entry{
			Rank: ranks[slot], Start: s.Start, Length: s.Length,
		})
	}
	if solo > 0 {
		table.Entries = append(table.Entries, parttable.Entry{Rank: parttable.Solo, Start: end, Length: solo})
	}
	if err := parttable.Begin(ctx, dev, superblocks(table.FileSystems())); err != nil {
		return nil, fmt.Errorf("formatting: %w", halfFormatted(err))
	}
	if err := parttable.Write(ctx, dev, table); err != nil {
		return nil, fmt.Errorf("formatting: %w", halfFormatted(err))
	}
	return table, nil
}

// checkSlots fails if a table has no room for so many ranks, and the solo partition.
func checkSlots(slots int) error {
	if slots > parttable.MaxEntries-1 {
		return fmt.Errorf("%d ranks share the namespace, at most %d can: name more targets", slots, parttable.MaxEntries-1)
	}
	return nil
}

// superblocks are what has to be zeros where partitions are not formatted yet.
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
	// Also then: another process of that rank may be about to write the table.
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
