package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// AllRanks selects every rank of a store.
const AllRanks = -2

// FoundTable and FoundTableCopy are kinds of findings, in addition to those of microfs: both copies of a partition
// table are damaged, or one is.
const (
	FoundTable     microfs.FindingKind = "table"
	FoundTableCopy microfs.FindingKind = "table-copy"
)

// CheckOptions are the options of Check. Target gets the report of each target, in their order, and Part the report
// of each partition, in the order of ranks. Check calls Target first. With Repair it calls Target last, with the
// findings that remain.
type CheckOptions struct {
	Rank   int  // the rank to check, parttable.Singleton, or AllRanks
	Repair bool // repair what can be repaired
	Target func(*TargetReport)
	Part   func(*PartReport)
}

// A TargetReport has the findings about a namespace as a whole.
type TargetReport struct {
	Target   nvmf.TransportID
	Findings []microfs.Finding // about the partition table; offsets are in the namespace
	Err      error             // reason why the target could not be checked
}

// A PartReport has the findings about a rank's partition.
type PartReport struct {
	Rank    int // or parttable.Singleton, or parttable.Copies
	Target  nvmf.TransportID
	Segment microfs.Segment
	// CheckReport has the current findings: after the repair, if there was one.
	*microfs.CheckReport
	Repaired []string // messages about the repairs
	Err      error    // reason why the partition could not be checked or repaired
}

// Check examines the tables and partitions of the store, and calls o's functions with the findings. Without o.Repair it
// writes nothing and can run while a job runs. To repair a partition it becomes the owner of the partition, as the rank
// that writes does, and fences earlier writers: cfg.Run is a new run. The error is about the store as a whole: the
// store is another user's, or no target has a table (parttable.ErrNoTable). If only some targets have no table, they
// are left out.
func Check(ctx context.Context, cfg *config.Config, o CheckOptions) error {
	if len(cfg.Targets) == 0 {
		return ErrNoTarget
	}
	var parts []partCheck
	var reports []*TargetReport
	var missing error
	for t, id := range cfg.Targets {
		c := partCheck{cfg: cfg, t: t}
		r := &TargetReport{Target: id, Findings: []microfs.Finding{}}
		if c.dev, r.Err = connect(ctx, cfg, id, true); r.Err == nil {
			defer c.dev.Close() // nothing was written
			var foreign error
			if foreign, r.Err = c.inspect(ctx, r, o.Repair); foreign != nil {
				return fmt.Errorf("target %s: %w", id, foreign)
			}
		}
		if errors.Is(r.Err, parttable.ErrNoTable) {
			missing = fmt.Errorf("target %s: %w", id, r.Err)
			continue
		}
		if reports = append(reports, r); !o.Repair {
			o.Target(r)
		}
		if c.table == nil {
			continue
		}
		for _, e := range c.table.FileSystems() {
			if o.Rank == AllRanks || o.Rank == e.Rank {
				c.entry, c.keeper = e, e.Rank == c.table.Keeper() && len(r.Findings) > 0
				parts = append(parts, c)
			}
		}
	}
	if len(reports) == 0 {
		return missing
	}
	slices.SortFunc(parts, func(a, b partCheck) int { return singletonLast(a.entry.Rank, b.entry.Rank) })
	for i := range parts {
		r := parts[i].check(ctx, o.Repair)
		if (r.Rank == parttable.Singleton || r.Rank == parttable.Copies) && r.Err == nil && r.Unformatted {
			continue // an unused partition of this kind is normal
		}
		o.Part(r)
	}
	for _, r := range reports {
		if !o.Repair {
			break
		}
		if r.Err == nil {
			r.recheck(ctx, cfg)
		}
		o.Target(r)
	}
	return nil
}

// inspect checks the table of c's target. foreign is not nil if the table does not match the configuration, for
// example if it is another store's.
func (c *partCheck) inspect(ctx context.Context, r *TargetReport, repair bool) (foreign, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	health, err := parttable.Inspect(ctx, c.dev)
	if err != nil {
		return nil, err
	}
	if health.Table == nil && !errors.Is(health.Err, parttable.ErrCorrupt) {
		return nil, health.Err
	}
	if r.Findings = tableFindings(health); health.Table == nil {
		return nil, nil
	}
	w := want(c.cfg, c.t, len(c.cfg.Targets), 0)
	w.ReadOnly, w.AnyUser = !repair, !repair && os.Geteuid() == 0
	c.table = health.Table
	return c.table.Check(w), nil
}

// recheck checks a table after its repair.
func (r *TargetReport) recheck(ctx context.Context, cfg *config.Config) {
	c := partCheck{cfg: cfg, t: slices.Index(cfg.Targets, r.Target)}
	if c.dev, r.Err = connect(ctx, cfg, r.Target, true); r.Err != nil {
		return
	}
	defer c.dev.Close() // nothing was written
	var foreign error
	if foreign, r.Err = c.inspect(ctx, r, true); r.Err == nil {
		r.Err = foreign
	}
}

// tableFindings returns the findings about the two copies of a table.
func tableFindings(h *parttable.Health) []microfs.Finding {
	list := []microfs.Finding{}
	kind, severity, remedy := FoundTable, microfs.Loss, "its partitions cannot be found: start over with --fresh"
	if h.Table != nil {
		kind, severity, remedy = FoundTableCopy, microfs.Repairable, "the other copy is good"
	}
	switch {
	case h.Table == nil:
	case h.Table.Empty(): // no rank's run repairs a table without partitions
		remedy += "; --repair writes it again"
	default:
		remedy += fmt.Sprintf("; --repair of rank %d, or its next run, writes it again", h.Table.Keeper())
	}
	for slot, err := range h.Copies {
		if err == nil {
			continue
		}
		f := microfs.Finding{
			Kind: kind, Severity: severity, Where: fmt.Sprintf("partition table, copy %d", slot),
			Offset: int64(parttable.CopyOffset(slot)), What: err.Error(), Remedy: remedy,
		}
		if errors.Is(err, parttable.ErrOutdated) {
			f.Severity = microfs.Note
		}
		list = append(list, f)
	}
	return list
}

// partCheck is the check of one partition.
type partCheck struct {
	cfg    *config.Config
	t      int // number of the target
	dev    nvmf.Device
	table  *parttable.Table
	entry  parttable.Entry
	keeper bool // the table is damaged, and the repair of this rank includes it
}

func (c *partCheck) check(ctx context.Context, repair bool) *PartReport {
	e := c.entry
	r := &PartReport{Rank: e.Rank, Target: c.cfg.Targets[c.t], Segment: microfs.Segment{Start: e.Start, Length: e.Length}}
	o := microfs.CheckOptions{Generation: c.table.Generation, Timeout: c.cfg.Timeout}
	if r.CheckReport, r.Err = microfs.Check(ctx, c.dev, r.Segment, o); r.Err != nil || !repair {
		return r
	}
	if c.keeper || len(r.Findings) > 0 {
		if r.Err = c.repair(ctx, r); r.Err == nil {
			r.CheckReport, r.Err = microfs.Check(ctx, c.dev, r.Segment, o)
		}
	}
	return r
}

// repair becomes the owner of the partition, as Open does, and repairs it.
func (c *partCheck) repair(ctx context.Context, r *PartReport) (err error) {
	o := &opener{
		cfg: c.cfg, proc: Proc{Rank: r.Rank, Size: c.table.JobSize}, home: balancer.Device{Target: c.t},
		opts: Options{Logf: func(format string, args ...any) { r.Repaired = append(r.Repaired, fmt.Sprintf(format, args...)) }},
	}
	p := &Partition{Proc: o.proc, Target: r.Target, ready: make(chan struct{})}
	defer close(p.ready)
	if err := o.own(ctx, p); err != nil {
		return err
	}
	defer func() { err = andClosing(err, p.Close()) }()
	if err := quiet(ctx, c.cfg, c.dev, c.table, false); err != nil {
		return err
	}
	if p.Device, err = connect(ctx, c.cfg, r.Target, false); err != nil {
		return err
	}
	if o.reserve, err = fence(ctx, c.cfg, p.Device); err != nil {
		return err
	}
	if p.Table, err = o.table(ctx, p.Device, c.t, false); err != nil {
		return err
	}
	entry, ok := o.entry(p.Table)
	if !ok || (r.Segment != microfs.Segment{Start: entry.Start, Length: entry.Length}) {
		return errors.New("the partition table has changed meanwhile: start again")
	}
	if r.Unformatted || len(r.Findings) == 0 {
		return nil
	}
	mo, err := o.mountOptions(p)
	if err != nil {
		return err
	}
	_, err = microfs.Repair(ctx, p.Device, r.Segment, mo)
	return err
}
