package store

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"nvmecr/balancer"
	"nvmecr/internal/config"
	"nvmecr/internal/owner"
	"nvmecr/internal/panics"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// The limits of the singleton partition in a store that ranks have formatted.
const (
	singletonPart   = 32 // 1/32
	singletonMin    = 8 * nvmf.MiB
	singletonMax    = nvmf.GiB
	singletonBlocks = 32 // minimum number of hugeblocks
	singletonShare  = 8  // no singleton partition if its minimum size exceeds 1/8
)

// In a store with one tree the singleton partition has all names, and the data that job scripts write.
const (
	indexPart = 16 // 1/16
	indexMax  = 64 * nvmf.GiB
)

// singletonLength returns the size of the singleton partition that ranks leave in a namespace of the given capacity.
// 0 means that they leave none.
func singletonLength(cfg *config.Config, capacity nvmf.Bytes) nvmf.Bytes {
	align, least := alignment(cfg.Hugeblock), max(singletonMin, singletonBlocks*cfg.Hugeblock)
	if cfg.View == config.ViewJob {
		return max(min(capacity/indexPart, indexMax), min(least, capacity/2)).AlignDown(align)
	}
	n := max(min(capacity/singletonPart, singletonMax), least).AlignDown(align)
	if n > capacity/singletonShare {
		return 0
	}
	return n
}

// dividePause is the pause between two requests to divide the store.
const dividePause = 20 * time.Millisecond

// makeTable formats target t. If the singleton partition is all of the target, makeTable divides it among the ranks
// of this job instead. A lock excludes other processes of this host that use the singleton partition: they may be
// about to format the target themselves.
func (o *opener) makeTable(ctx context.Context, dev nvmf.Device, t int) (*parttable.Table, error) {
	if o.proc.Singleton() || t != 0 || dev.Identity().Private {
		return o.format(ctx, dev, t) // this process has the lock, or none is needed
	}
	wait, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	group, key := LockGroup(o.cfg.Run), lockKey(o.cfg, parttable.Singleton)
	for {
		lock, err := owner.Acquire(wait, group, key, "", nil)
		if err == nil {
			table, err := o.makeAsOwner(ctx, dev, t)
			return table, andClosing(err, lock.Release())
		}
		var busy *owner.BusyError
		if !errors.As(err, &busy) || busy.Silent {
			return nil, notDivided(o.proc.Size, err)
		}
		err = owner.Divide(wait, group, key, uint32(o.proc.Size), o.cfg.Mapping.String())
		if err == nil {
			return readTable(ctx, o.cfg, dev)
		}
		if !errors.As(err, new(*owner.BusyError)) || wait.Err() != nil {
			return nil, notDivided(o.proc.Size, err)
		}
		time.Sleep(dividePause)
	}
}

// makeAsOwner is makeTable for the process that has the lock of the singleton partition.
func (o *opener) makeAsOwner(ctx context.Context, dev nvmf.Device, t int) (*parttable.Table, error) {
	table, err := readTable(ctx, o.cfg, dev)
	if errors.Is(err, parttable.ErrNoTable) {
		return o.format(ctx, dev, t)
	}
	if err == nil {
		err = table.Check(o.want(t, 0))
	}
	if err != nil || !o.undivided(table) {
		return table, err
	}
	entry, ok := table.SingletonEntry()
	if !ok {
		return nil, fmt.Errorf("store %q: the target has no partition of rank 0", o.cfg.Name)
	}
	singleton := &opener{cfg: o.cfg, proc: Proc{Size: 1}, opts: Options{Logf: o.opts.Logf}, reserve: o.reserve}
	p := &Partition{Device: dev, Target: o.cfg.Targets[t], Table: table, Proc: singleton.proc}
	if err := singleton.mount(ctx, p, entry); err != nil {
		return nil, notDivided(o.proc.Size, err)
	}
	err = andClosing(p.divide(ctx, o, o.mapping), p.FS.Unmount())
	if err != nil {
		return nil, notDivided(o.proc.Size, err)
	}
	return readTable(ctx, o.cfg, dev)
}

// format formats target t for the ranks of this job.
func (o *opener) format(ctx context.Context, dev nvmf.Device, t int) (*parttable.Table, error) {
	o.opts.Logf("formatting target %s for %d ranks", o.cfg.Targets[t], o.proc.Size)
	return format(ctx, dev, o.cfg, t, o.mapping)
}

func notDivided(ranks int, err error) error {
	return fmt.Errorf("a job script or a program without a launcher has written to the store, which cannot be divided among %d ranks: %w", ranks, err)
}

// Divided reports whether this process has divided the store since it opened p: then p.Table lacks the new ranks.
func (p *Partition) Divided() bool {
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.divided
}

// onDivide answers the request of a rank of this host to the owner of the singleton partition.
func (p *Partition) onDivide(o *opener, ranks int, by string) (err error) {
	defer panics.Contain("the division of the store", &err)
	plan, err := balancer.ParsePlan(by)
	if err != nil {
		return err
	}
	mapping, err := mapRanks(o.cfg, plan, ranks)
	if err != nil {
		return err
	}
	<-p.ready
	if p.FS == nil {
		return syscall.EBUSY // Open failed, and is about to release the lock
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.cfg.Timeout)
	defer cancel()
	err = p.divide(ctx, o, mapping)
	if err == nil && o.opts.OnDivide != nil {
		o.opts.OnDivide()
	}
	return err
}

// divide makes the singleton partition p shorter, and gives the space behind it to the ranks of mapping. After a
// crash the store is either undivided or completely divided.
func (p *Partition) divide(ctx context.Context, o *opener, mapping balancer.Mapping) error {
	p.changing.Lock() // keeps Close from releasing the partition's lock before the table is written
	defer p.changing.Unlock()
	if p.closed {
		return syscall.EBUSY
	}
	size, ranks := mapping.Size(), mapping.Ranks(0)
	table, err := readTable(ctx, o.cfg, p.Device)
	if err == nil && table.JobSize != 1 {
		return table.Check(o.want(0, size)) // done by an earlier request
	}
	if err != nil {
		return err
	}
	if err := checkSlots(len(ranks)); err != nil {
		return err
	}
	cfg := *o.cfg
	cfg.Hugeblock = table.Hugeblock
	id, align, slots := p.Device.Identity(), alignment(table.Hugeblock), len(ranks)
	usable := table.End(id.Capacity())
	singleton, _ := table.SingletonEntry()
	// A store that leaves much less space to ranks is refused here, because users would notice that only when it is full.
	end := min(usable/2, usable-min(usable, nvmf.Bytes(slots)*minLength(table.Hugeblock).AlignUp(align))).AlignDown(align)
	free := max(singletonLength(&cfg, usable), segmentAlign)
	if _, err := layout(id, &cfg, slots, singleton.Start+free, usable); err != nil {
		return err // the store is too small for the ranks, even without files in the singleton partition
	}
	singleton.Rank = parttable.Singleton
	if singleton.Length, err = p.FS.Shrink(free, 0, align, end-min(end, singleton.Start)); errors.Is(err, microfs.ErrInUse) {
		return fmt.Errorf("%w; less than half of the namespace would be left for ranks: copy out what is needed (nvmecr cp), and start over with --fresh", err)
	}
	if err != nil {
		return err
	}
	segs, err := layout(id, &cfg, slots, singleton.Start+singleton.Length, usable)
	if err != nil {
		return err
	}
	table.JobSize, table.Entries = size, []parttable.Entry{singleton}
	for slot, s := range segs {
		table.Entries = append(table.Entries, parttable.Entry{Rank: ranks[slot], Start: s.Start, Length: s.Length})
	}
	if err := parttable.Extend(ctx, p.Device, table, superblocks(table.Entries[1:])); err != nil {
		return fmt.Errorf("dividing the store among %d ranks: %w", size, err)
	}
	p.divided = true
	o.opts.Logf("the store is divided: %s for job scripts and programs without a launcher, and %d ranks", singleton.Length, size)
	return nil
}
