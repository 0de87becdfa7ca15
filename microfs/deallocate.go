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

// Deallocation (TRIM): freed hugeblocks go back to the device in batches, by
// Deallocate of the Dataset Management command, while the application does
// something else. For the log a Deallocate is a write to a free hugeblock: rule 1
// of package oplog holds for it, so at a crash it may be in flight, absent or torn.
// Only hugeblocks of the pool are deallocated: the record that freed them has
// settled, and is durable where the device has a volatile cache. FS.mu is held from
// submission to completion, so no operation allocates them meanwhile. If the
// connection is lost they are retired, as are hugeblocks with a write in flight.

// deallocator deallocates used hugeblocks in the background. Guarded by FS.mu.
type deallocator struct {
	wake    chan struct{} // capacity 1: there may be used hugeblocks
	waiting bool          // the goroutine has a timer, and need not be woken

	// taken is the pool's count of allocated hugeblocks at the time since; demand is the number
	// that were allocated in the second before since.
	since  time.Time
	taken  uint64
	demand Hugeblock
	// lost is the time at which a connection was lost with a batch in flight. The next operation
	// that needs the device reconnects.
	lost time.Time

	runs []run
	cmds [deallocateRuns]nvmf.Command
	list [deallocateRuns]*nvmf.Command
}

const (
	// deallocateBatch is the most that is deallocated under the lock at a time. A write that
	// arrives meanwhile waits for a fraction of its own duration.
	deallocateBatch = 8 * nvmf.MiB
	deallocateRuns  = 32
	// restTime is the time without changes after which all used hugeblocks are deallocated: the
	// application makes no writes then.
	restTime = 2 * time.Second
	// busyPause is the pause between batches while the application writes.
	busyPause = 100 * time.Millisecond
	// demandTime says how many used hugeblocks a busy application keeps: as many as it allocates in
	// that time.
	demandTime = 8 * time.Second
	// lastDeallocation bounds the time that Unmount spends on deallocation.
	lastDeallocation = 250 * time.Millisecond
)

// init makes the pool keep used runs apart from fresh ones, if the device can deallocate.
func (d *deallocator) init(fs *FS) {
	fs.pool.long = max(1, Hugeblock(longRun/fs.g.hugeblock))
	fs.pool.tracksUsed = fs.dev.Identity().CanDeallocate
	d.since = time.Now()
	d.wake = make(chan struct{}, 1)
}

// consider wakes the goroutine if there is something to do. It is called with FS.mu held at the end
// of every operation.
func (d *deallocator) consider(fs *FS) {
	if d.waiting || !fs.pool.tracksUsed || fs.pool.usedBlocks() == 0 && len(fs.pendingFree) == 0 {
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
	timer := time.NewTimer(0) // one timer for all turns, so that nothing is allocated while the application writes
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

// deallocateTurn deallocates a batch if one is due. It returns how long to wait until the next call,
// or 0 if there is nothing left to do. A panic puts the file system out of service; the process
// goes on.
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
	if !fs.mayDeallocate() || fs.pool.usedBlocks() == 0 && fs.pendingFreeBlocks() < batch {
		return 0
	}
	rest := time.Since(fs.lastChange)
	switch {
	case rest >= restTime:
		if fs.pendingFreeBlocks() >= batch && !fs.flushForSpace() {
			return 0
		}
		fs.deallocateBatch()
		return time.Millisecond // for callers that wait for the lock
	case fs.pool.usedBlocks() >= d.kept(&fs.pool)+batch:
		fs.deallocateBatch()
		return busyPause
	}
	return max(restTime-rest, busyPause)
}

// mayDeallocate reports whether the device can be asked to deallocate.
func (fs *FS) mayDeallocate() bool {
	lost := fs.dealloc.lost
	return fs.broken == nil && fs.pool.tracksUsed && !fs.claim.Released && (lost.IsZero() || fs.lastChange.After(lost))
}

// pendingFreeBlocks returns how many hugeblocks become free with the next flush.
func (fs *FS) pendingFreeBlocks() (n Hugeblock) {
	for _, r := range fs.pendingFree {
		n += r.count
	}
	return n
}

// flushForSpace flushes the device, so that pending free hugeblocks become free. The
// next Sync returns its error: a flush that failed may have lost data, and a second
// flush of the device would succeed without that data.
func (fs *FS) flushForSpace() bool {
	err := fs.flushDevice()
	if lost(err) {
		fs.dealloc.lost = time.Now()
	} else if err != nil && fs.broken == nil {
		fs.logf("flush before a deallocation: %v", err)
		fs.unreportedFlush = err
	}
	return err == nil
}

// look updates the rate at which hugeblocks are allocated, once a second.
func (d *deallocator) look(p *pool) {
	if passed := time.Since(d.since); passed >= time.Second {
		d.demand = Hugeblock(float64(p.taken-d.taken) / passed.Seconds())
		d.since, d.taken = time.Now(), p.taken
	}
}

// kept returns how many used hugeblocks are not deallocated, because the
// application is likely to allocate them again within demandTime.
func (d *deallocator) kept(p *pool) Hugeblock {
	return max(d.demand, Hugeblock(p.taken-d.taken)) * Hugeblock(demandTime/time.Second)
}

// batchBlocks is the number of hugeblocks in a batch, less in a small partition.
func (fs *FS) batchBlocks() Hugeblock {
	return max(1, min(Hugeblock(deallocateBatch/fs.g.hugeblock), fs.g.blocks/16))
}

// deallocateAll deallocates used hugeblocks for at most lastDeallocation. The next
// mount allocates or deallocates the rest.
func (fs *FS) deallocateAll() {
	begin := time.Now()
	for fs.pool.usedBlocks() > 0 && fs.mayDeallocate() && time.Since(begin) < lastDeallocation {
		fs.deallocateBatch()
	}
}

// deallocateBatch deallocates one batch of used hugeblocks.
func (fs *FS) deallocateBatch() {
	d := &fs.dealloc
	d.runs = d.runs[:0]
	for left := fs.batchBlocks(); left > 0 && len(d.runs) < deallocateRuns; {
		r, ok := fs.pool.takeUsed(left)
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

// deallocated returns the runs of a batch to the pool, or retires them, depending on the outcome.
func (fs *FS) deallocated(err error) {
	d := &fs.dealloc
	switch {
	case err == nil:
		fs.silentSince = time.Time{}
	case lost(err):
		d.lost = time.Now()
		var silent *nvmf.TimeoutError
		if errors.As(err, &silent) {
			fs.logf("deallocation is switched off for this device: %v", err)
			fs.pool.stopTracking()
		}
		for _, r := range d.runs {
			for h := r.start; h < r.start+r.count; h++ {
				fs.retired.add(h, true)
			}
		}
		return
	case nvmf.IsConflict(err) || nvmf.IsPreempted(err):
		if err := fs.resolveConflict(err); err != nil {
			fs.logf("deallocating: %v", err)
			fs.pool.stopTracking()
		}
		for _, r := range d.runs {
			fs.pool.give(r)
		}
		return
	default:
		fs.logf("the device deallocates nothing, and gets no more such commands: %v", err)
		fs.pool.stopTracking()
	}
	for _, r := range d.runs {
		fs.pool.putLast(r)
	}
}

// late reports whether a batch may still be executed; the claim tells this to the next mount.
func (d *deallocator) late() bool {
	return !d.lost.IsZero() && time.Since(d.lost) < oplog.Quarantine
}

// joined sorts runs and merges adjacent ones.
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

// granules returns the part of a run that is aligned to the device's deallocation
// granularity: LBA and number of blocks, which may be 0.
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
