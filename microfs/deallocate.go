package microfs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// What files no longer take goes back to the device in batches, by Deallocate
// (Dataset Management), while the application does something else. To the log a
// Deallocate is a write of a free hugeblock that nobody will read: it obeys the
// rule of data (rule 1 of package oplog), so it may be in flight, absent, or torn
// at a crash. Only hugeblocks of the pool are deallocated: the record that freed
// them has settled, and is durable where the device has a volatile cache. FS.mu
// is held from the submission to the completion, so none is taken meanwhile; with
// a connection that is lost they are retired like those that were being written.

// deallocator gives used hugeblocks back in the background. Guarded by FS.mu.
type deallocator struct {
	wake    chan struct{} // capacity 1: something is used
	waiting bool          // the goroutine looks again by itself

	// since and taken say what the pool had handed out when a second began; demand is
	// what it handed out in the one before.
	since  time.Time
	taken  uint64
	demand Hugeblock
	// lost is when a connection was lost with a batch in flight: whoever needs the
	// device next reconnects.
	lost time.Time

	runs []run
	cmds [deallocateRuns]nvmf.Command
	list [deallocateRuns]*nvmf.Command
}

const (
	// deallocateBatch is the most that is deallocated under the lock at a time. A
	// write that comes meanwhile waits for a fraction of what it takes itself.
	deallocateBatch = 8 * nvmf.MiB
	deallocateRuns  = 32
	// restTime is how long nothing may have been changed before the application
	// counts as doing something else: then everything used is deallocated.
	restTime = 2 * time.Second
	// busyPause is between batches while the application writes.
	busyPause = 100 * time.Millisecond
	// demandTime is for how long used hugeblocks are kept for a busy application,
	// which will take them again.
	demandTime = 8 * time.Second
	// lastDeallocation is how long the end of the file system may take for it.
	lastDeallocation = 250 * time.Millisecond
)

// init has the pool keep apart what is used, if the device can deallocate it.
func (d *deallocator) init(fs *FS) {
	fs.pool.long = max(1, Hugeblock(longRun/fs.g.hugeblock))
	fs.pool.keeps = fs.dev.Identity().CanDeallocate
	d.since = time.Now()
	d.wake = make(chan struct{}, 1)
}

// consider wakes the goroutine if there is something to do. Called with FS.mu
// held at the end of every operation.
func (d *deallocator) consider(fs *FS) {
	if d.waiting || !fs.pool.keeps || fs.pool.spent() == 0 && len(fs.limbo) == 0 {
		return
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// routineDeallocate deallocates in the background.
func (fs *FS) routineDeallocate() {
	quit := fs.ckpt.quit
	timer := time.NewTimer(0) // one for all: nothing is allocated while the application writes
	defer timer.Stop()
	for {
		select {
		case <-quit:
			return
		case <-fs.dealloc.wake:
		}
		for wait := restTime; wait > 0; wait = fs.deallocateTurn() {
			timer.Reset(wait)
			select {
			case <-quit:
				return
			case <-timer.C:
			}
		}
	}
}

// deallocateTurn deallocates a batch if its time has come, and returns when to
// look again; 0 if there is nothing left to do. A panic ends the file system's
// service, and not the process.
func (fs *FS) deallocateTurn() (wait time.Duration) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			_ = fs.fail(fmt.Errorf("internal error in a deallocation: %v", p))
			wait = 0
		}
	}()
	wait = fs.deallocateSome()
	fs.dealloc.waiting = wait > 0
	return wait
}

func (fs *FS) deallocateSome() time.Duration {
	d, batch := &fs.dealloc, fs.batchBlocks()
	if len(fs.retired) > 0 {
		fs.retired.expire(&fs.pool)
	}
	d.look(&fs.pool)
	if !fs.mayDeallocate() || fs.pool.spent() == 0 && fs.inLimbo() < batch {
		return 0
	}
	rest := time.Since(fs.lastChange)
	switch {
	case rest >= restTime:
		if fs.inLimbo() >= batch && !fs.flushForSpace() {
			return 0
		}
		fs.deallocateBatch()
		return time.Millisecond // for whoever waits for the lock
	case fs.pool.spent() >= d.kept(&fs.pool)+batch:
		fs.deallocateBatch()
		return busyPause
	}
	return max(restTime-rest, busyPause)
}

// mayDeallocate says whether the device can be asked.
func (fs *FS) mayDeallocate() bool {
	lost := fs.dealloc.lost
	return fs.broken == nil && fs.pool.keeps && !fs.claim.Released && (lost.IsZero() || fs.lastChange.After(lost))
}

// inLimbo is how much becomes free with the next flush.
func (fs *FS) inLimbo() (n Hugeblock) {
	for _, r := range fs.limbo {
		n += r.count
	}
	return n
}

// flushForSpace makes what was freed since the last flush used. An error is told
// to who asks for the next flush: what it may have lost, that one would not find.
func (fs *FS) flushForSpace() bool {
	err := fs.flushDevice()
	if lost(err) {
		fs.dealloc.lost = time.Now()
	} else if err != nil && fs.broken == nil {
		fs.logf("flush before a deallocation: %v", err)
		fs.unflushable = err
	}
	return err == nil
}

// look takes note of what the pool hands out, second by second.
func (d *deallocator) look(p *pool) {
	if passed := time.Since(d.since); passed >= time.Second {
		d.demand = Hugeblock(float64(p.taken-d.taken) / passed.Seconds())
		d.since, d.taken = time.Now(), p.taken
	}
}

// kept is how many used hugeblocks are left to the application.
func (d *deallocator) kept(p *pool) Hugeblock {
	return max(d.demand, Hugeblock(p.taken-d.taken)) * Hugeblock(demandTime/time.Second)
}

// batchBlocks is how many hugeblocks a batch has, less in a small partition.
func (fs *FS) batchBlocks() Hugeblock {
	return max(1, min(Hugeblock(deallocateBatch/fs.g.hugeblock), fs.g.blocks/16))
}

// deallocateAll deallocates what is used, as far as there is time. What is left
// is used again, or stays with the device.
func (fs *FS) deallocateAll() {
	begin := time.Now()
	for fs.pool.spent() > 0 && fs.mayDeallocate() && time.Since(begin) < lastDeallocation {
		fs.deallocateBatch()
	}
}

// deallocateBatch deallocates some of what is used.
func (fs *FS) deallocateBatch() {
	d := &fs.dealloc
	d.runs = d.runs[:0]
	for left := fs.batchBlocks(); left > 0 && len(d.runs) < deallocateRuns; {
		r, ok := fs.pool.takeSpent(left)
		if !ok {
			break
		}
		d.runs = append(d.runs, r)
		left -= r.count
	}
	d.runs = joined(d.runs)
	cmds := d.list[:0]
	for _, r := range d.runs {
		if lba, blocks := fs.granules(r); blocks > 0 {
			c := &d.cmds[len(cmds)]
			*c = nvmf.Command{Opcode: nvmf.Deallocate, LBA: lba, Blocks: blocks}
			cmds = append(cmds, c)
		}
	}
	fs.deallocated(fs.run(cmds))
}

// deallocated puts the runs of a batch where its outcome says.
func (fs *FS) deallocated(err error) {
	d := &fs.dealloc
	switch {
	case err == nil:
		fs.away = time.Time{}
	case lost(err):
		d.lost = time.Now()
		var silent *nvmf.TimeoutError
		if errors.As(err, &silent) {
			fs.logf("the device is not asked to deallocate any more: %v", err)
			fs.pool.keepNothing()
		}
		for _, r := range d.runs {
			for h := r.start; h < r.start+r.count; h++ {
				fs.retired.add(h, true)
			}
		}
		return
	case nvmf.IsConflict(err) || nvmf.IsPreempted(err):
		if err := fs.settleConflict(err); err != nil {
			fs.logf("deallocating: %v", err)
			fs.pool.keepNothing()
		}
		for _, r := range d.runs {
			fs.pool.give(r)
		}
		return
	default:
		fs.logf("the device deallocates nothing, and is not asked again: %v", err)
		fs.pool.keepNothing()
	}
	for _, r := range d.runs {
		fs.pool.putLast(r)
	}
}

// late says that a batch may still land: whoever mounts next has to know.
func (d *deallocator) late() bool {
	return !d.lost.IsZero() && time.Since(d.lost) < oplog.Quarantine
}

// joined sorts runs, and makes one of those that follow each other.
func joined(runs []run) []run {
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.start, b.start) })
	n := 0
	for _, r := range runs {
		if n > 0 && runs[n-1].start+runs[n-1].count == r.start {
			runs[n-1].count += r.count
			continue
		}
		runs[n] = r
		n++
	}
	return runs[:n]
}

// granules returns the part of a run that the device can deallocate, which may be
// nothing.
func (fs *FS) granules(r run) (nvmf.LBA, nvmf.LBA) {
	id := fs.dev.Identity()
	unit := nvmf.LBA(max(1, id.DeallocateUnit/id.LBASize))
	start := fs.g.lbaOf(fs.g.dataOffset(r.start))
	end := start + nvmf.LBA(nvmf.Bytes(r.count)*fs.g.hugeblock/id.LBASize)
	start, end = (start+unit-1)/unit*unit, end/unit*unit
	if start >= end {
		return 0, 0
	}
	return start, end - start
}
