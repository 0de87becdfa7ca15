package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// A store with one tree can have partitions for any number of ranks: further partitions are cut from free space of the
// others.

// Grow gives the store partitions for at least ranks ranks, and returns their number. p is the singleton partition,
// open for writing. Partitions that are open in another process keep their length. After a crash each target has its
// old partitions or its new ones.
//
// If Grow creates partitions, it creates them for at least cfg.MaxRanks ranks: space that ranks use cannot be given
// to other ranks later.
//
// If ranks is 0, Grow only returns the number of partitions. A store that ranks never used has one, the singleton
// partition.
//
// Errors: ENOSPC if the other partitions have no free space; those of the targets.
func (p *Partition) Grow(ctx context.Context, cfg *config.Config, ranks int, logf func(format string, args ...any)) (int, error) {
	table, err := readTable(ctx, cfg, p.Device)
	if err != nil {
		return 0, err
	}
	if table.JobSize >= ranks {
		return table.JobSize, nil
	}
	ranks = max(ranks, cfg.MaxRanks)
	mapping, err := mapRanks(cfg, cfg.Mapping, ranks)
	if err != nil {
		return 0, err
	}
	o := &opener{cfg: cfg, opts: Options{Logf: logf}}
	if table.JobSize == 1 {
		if err := p.divide(ctx, o, mapping); err != nil {
			return 0, err
		}
		return ranks, nil
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.closed {
		return 0, syscall.EBUSY
	}
	// In descending order: once the first table is written all targets have grown.
	for t := len(cfg.Targets) - 1; t >= 0; t-- {
		if err := p.growTarget(ctx, o, t, mapping); err != nil {
			return 0, fmt.Errorf("target %s: partitions for %d ranks: %w", cfg.Targets[t], ranks, err)
		}
	}
	return ranks, nil
}

// growTarget grows target t. A target without a table, or without a partition, is left to the ranks that will format it.
func (p *Partition) growTarget(ctx context.Context, o *opener, t int, mapping balancer.Mapping) (err error) {
	g := &growth{opener: o, t: t, dev: p.Device, singleton: p.FS, sweep: p.Sweep}
	if t > 0 {
		g.singleton = nil
		if g.dev, err = connect(ctx, o.cfg, o.cfg.Targets[t], false); err != nil {
			return err
		}
		defer func() { err = andClosing(err, g.dev.Close()) }()
		if _, err := fence(ctx, o.cfg, g.dev); err != nil {
			return err
		}
	}
	g.table, err = readTable(ctx, o.cfg, g.dev)
	if t > 0 && errors.Is(err, parttable.ErrNoTable) {
		return nil
	}
	if err == nil {
		err = g.table.Check(o.want(t, 0))
	}
	if err != nil || g.table.Empty() {
		return err
	}
	return g.run(ctx, mapping)
}

// A growth creates partitions on one target.
type growth struct {
	*opener
	t         int
	dev       nvmf.Device
	table     *parttable.Table
	singleton *microfs.FS                          // open for writing, if it is on this target
	sweep     func(rank int, fs *microfs.FS) error // or nil
	donors    []*Partition
}

func (g *growth) run(ctx context.Context, mapping balancer.Mapping) error {
	defer func() {
		for _, d := range g.donors {
			if err := d.Close(); err != nil {
				g.opts.Logf("%s, which was made shorter: %v", partitionName(d.Proc.Rank), err)
			}
		}
	}()
	var missing []int
	for _, rank := range mapping.Ranks(g.t) {
		if _, ok := g.table.Entry(rank); !ok {
			missing = append(missing, rank)
		}
	}
	if err := checkSlots(len(g.table.Entries) + len(missing)); err != nil {
		return err
	}
	segs, err := g.makeSpace(ctx, len(missing))
	if err != nil {
		return err
	}
	var made []parttable.Entry
	for i, rank := range missing {
		made = append(made, parttable.Entry{Rank: rank, Start: segs[i].Start, Length: segs[i].Length})
	}
	g.table.JobSize = mapping.Size()
	g.table.Entries = append(g.table.Entries, made...)
	slices.SortFunc(g.table.Entries, func(a, b parttable.Entry) int { return cmp.Compare(a.Start, b.Start) })
	return parttable.Extend(ctx, g.dev, g.table, superblocks(made))
}

// makeSpace returns n free segments of a namespace. It shortens partitions, the longest first, until the segments are
// nearly as long as an equal share.
func (g *growth) makeSpace(ctx context.Context, n int) ([]balancer.Segment, error) {
	if n == 0 {
		return nil, nil
	}
	align, least := alignment(g.table.Hugeblock), minLength(g.table.Hugeblock)
	usable := g.table.End(g.dev.Identity().Capacity())
	share := max((usable / nvmf.Bytes(len(g.table.Entries)+n)).AlignDown(align), least)
	order := make([]int, len(g.table.Entries))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(g.table.Entries[b].Length, g.table.Entries[a].Length)
	})
	for {
		segs := carve(g.free(usable), n, align)
		if len(segs) > 0 && (segs[0].Length >= share-share/4 || len(order) == 0 && segs[0].Length >= least) {
			return segs, nil
		}
		if len(order) == 0 {
			return nil, fmt.Errorf("no space for %d more partitions of at least %v: the others are used, or open in a process; start a run of programs that run at the same time with --max-ranks of the largest one, remove files (nvmecr cp copies them out), or take a larger namespace: %w",
				n, least, syscall.ENOSPC)
		}
		if err := g.shorten(ctx, &g.table.Entries[order[0]], share); err != nil {
			return nil, err
		}
		order = order[1:]
	}
}

// shorten shortens a partition to share, if it can. A partition that a process has open keeps its length.
func (g *growth) shorten(ctx context.Context, e *parttable.Entry, share nvmf.Bytes) error {
	align := alignment(g.table.Hugeblock)
	fs, free := g.singleton, share/8
	if e.Rank == parttable.Singleton {
		share = max(share, singletonLength(g.cfg, g.table.End(g.dev.Identity().Capacity())))
	} else {
		d, err := Open(ctx, g.cfg, Proc{Rank: e.Rank, Size: g.table.JobSize}, Options{Logf: g.opts.Logf})
		if err != nil {
			if !errors.As(err, new(*owner.BusyError)) { // a process on another host may have it open, or it is damaged
				g.opts.Logf("%s keeps its length: %v", partitionName(e.Rank), err)
			}
			return ctx.Err()
		}
		g.donors = append(g.donors, d)
		fs = d.FS
		if g.sweep != nil {
			if err := g.sweep(e.Rank, fs); err != nil {
				g.opts.Logf("%s may keep what nobody needs: %v", partitionName(e.Rank), err)
			}
		}
	}
	length, err := fs.Shrink(free, share, align, e.Length)
	if err == nil {
		e.Length = length
	}
	return err
}

// free returns the gaps between the partitions, in order.
func (g *growth) free(usable nvmf.Bytes) (gaps []balancer.Segment) {
	end := parttable.HeadSize
	for _, e := range g.table.Entries {
		if e.Start > end {
			gaps = append(gaps, balancer.Segment{Start: end, Length: e.Start - end})
		}
		end = e.Start + e.Length
	}
	if usable > end {
		gaps = append(gaps, balancer.Segment{Start: end, Length: usable - end})
	}
	return gaps
}

// carve returns n segments of equal length, the largest multiple of align for which n of them fit into the gaps; nil if
// there is none.
func carve(gaps []balancer.Segment, n int, align nvmf.Bytes) []balancer.Segment {
	fit := func(length nvmf.Bytes) (segs []balancer.Segment) {
		for _, gap := range gaps {
			for at := gap.Start.AlignUp(align); at+length <= gap.Start+gap.Length && len(segs) < n; at += length {
				segs = append(segs, balancer.Segment{Start: at, Length: length})
			}
		}
		return segs
	}
	var limit nvmf.Bytes
	for _, gap := range gaps {
		limit = max(limit, gap.Length)
	}
	low, high := nvmf.Bytes(0), limit/align+1 // in units of align: low fits, high does not
	for high-low > 1 {
		if mid := low + (high-low)/2; len(fit(mid*align)) == n {
			low = mid
		} else {
			high = mid
		}
	}
	if low == 0 {
		return nil
	}
	return fit(low * align)
}
