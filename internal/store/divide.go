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

// The solo partition of a store for ranks: a part of the namespace within bounds.
const (
	soloPart   = 32 // 1/32
	soloMin    = 8 * nvmf.MiB
	soloMax    = nvmf.GiB
	soloBlocks = 32 // hugeblocks at least
	soloShare  = 8  // none where that is more than 1/8
)

// The solo partition of a store with one tree has the names, and what job scripts write.
const (
	indexPart = 16 // 1/16
	indexMax  = 64 * nvmf.GiB
)

// soloLength is how much of a namespace of that capacity ranks leave for the solo
// partition; 0 is none.
func soloLength(cfg *config.Config, capacity nvmf.Bytes) nvmf.Bytes {
	align, least := alignment(cfg.Hugeblock), max(soloMin, soloBlocks*cfg.Hugeblock)
	if cfg.View == config.ViewJob {
		return max(min(capacity/indexPart, indexMax), min(least, capacity/2)).AlignDown(align)
	}
	n := max(min(capacity/soloPart, soloMax), least).AlignDown(align)
	if n > capacity/soloShare {
		return 0
	}
	return n
}

// askPause is between two attempts to have the store divided.
const askPause = 20 * time.Millisecond

// makeTable formats target t, or divides it among the ranks of this job if all of it is
// the solo partition. Processes of this host that use the solo partition, and may be about
// to format the target themselves, take turns with it.
func (o *opener) makeTable(ctx context.Context, dev nvmf.Device, t int) (*parttable.Table, error) {
	if o.place.Alone() || t != 0 || dev.Identity().Private {
		return o.format(ctx, dev, t) // the lock is ours, or there is none
	}
	wait, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
	defer cancel()
	group, key := LockGroup(o.cfg.Run), lockKey(o.cfg, parttable.Solo)
	for {
		lock, err := owner.Acquire(wait, group, key, "", nil)
		if err == nil {
			table, err := o.makeAsOwner(ctx, dev, t)
			return table, andClosing(err, lock.Release())
		}
		var busy *owner.BusyError
		if !errors.As(err, &busy) || busy.Silent {
			return nil, notDivided(o.place.Size, err)
		}
		err = owner.Divide(wait, group, key, uint32(o.place.Size), o.cfg.Mapping.String())
		if err == nil {
			return readTable(ctx, o.cfg, dev)
		}
		if !errors.As(err, new(*owner.BusyError)) || wait.Err() != nil {
			return nil, notDivided(o.place.Size, err)
		}
		time.Sleep(askPause)
	}
}

// makeAsOwner is makeTable for the process that has the lock of the solo partition.
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
	entry, ok := table.SoloEntry()
	if !ok {
		return nil, fmt.Errorf("store %q: the target has no partition of rank 0", o.cfg.Name)
	}
	solo := &opener{cfg: o.cfg, place: Place{Size: 1}, opts: Options{Logf: o.opts.Logf}, reserve: o.reserve}
	p := &Partition{Device: dev, Target: o.cfg.Targets[t], Table: table, Place: solo.place}
	if err := solo.mount(ctx, p, entry); err != nil {
		return nil, notDivided(o.place.Size, err)
	}
	err = andClosing(p.divide(ctx, o, o.mapping), p.FS.Unmount())
	if err != nil {
		return nil, notDivided(o.place.Size, err)
	}
	return readTable(ctx, o.cfg, dev)
}

// format formats target t for the ranks of this job.
func (o *opener) format(ctx context.Context, dev nvmf.Device, t int) (*parttable.Table, error) {
	o.opts.Logf("formatting target %s for %d ranks", o.cfg.Targets[t], o.place.Size)
	return format(ctx, dev, o.cfg, t, o.mapping)
}

func notDivided(ranks int, err error) error {
	return fmt.Errorf("a job script or a program without a launcher has written to the store, which cannot be divided among %d ranks: %w", ranks, err)
}

// Divided reports whether this process has divided the store since it opened p: there are
// ranks that p.Table does not know.
func (p *Partition) Divided() bool {
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.divided
}

// onDivide answers a rank of this host that has asked the owner of the solo partition.
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
		return syscall.EBUSY // it could not be opened, and the lock will be free
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.cfg.Timeout)
	defer cancel()
	err = p.divide(ctx, o, mapping)
	if err == nil && o.opts.OnDivide != nil {
		o.opts.OnDivide()
	}
	return err
}

// divide makes the solo partition shorter, which p is, and gives what lies behind to the
// ranks of mapping. A crash leaves the store as it was, or divided.
func (p *Partition) divide(ctx context.Context, o *opener, mapping balancer.Mapping) error {
	p.changing.Lock() // the lock must not be given up before the table is written
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
	room := table.End(id.Capacity())
	solo, _ := table.SoloEntry()
	// Ranks that get much less than in a store of their own would find out when it is full.
	end := min(room/2, room-min(room, nvmf.Bytes(slots)*minLength(table.Hugeblock).AlignUp(align))).AlignDown(align)
	free := max(soloLength(&cfg, room), segmentAlign)
	if _, err := layout(id, &cfg, slots, solo.Start+free, room); err != nil {
		return err // were there no files
	}
	solo.Rank = parttable.Solo
	if solo.Length, err = p.FS.Shrink(free, 0, align, end-min(end, solo.Start)); errors.Is(err, microfs.ErrInUse) {
		return fmt.Errorf("%w; less than half of the namespace would be left for ranks: copy out what is needed (nvmecr cp), and start over with --fresh", err)
	}
	if err != nil {
		return err
	}
	segs, err := layout(id, &cfg, slots, solo.Start+solo.Length, room)
	if err != nil {
		return err
	}
	table.JobSize, table.Entries = size, []parttable.Entry{solo}
	for slot, s := range segs {
		table.Entries = append(table.Entries, parttable.Entry{Rank: ranks[slot], Start: s.Start, Length: s.Length})
	}
	if err := parttable.Extend(ctx, p.Device, table, superblocks(table.Entries[1:])); err != nil {
		return fmt.Errorf("dividing the store among %d ranks: %w", size, err)
	}
	p.divided = true
	o.opts.Logf("the store is divided: %s for job scripts and programs without a launcher, and %d ranks", solo.Length, size)
	return nil
}
