package microfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

var errUnmounted = errors.New("unmounted")

// lost reports whether an operation is worth repeating after a reconnection.
func lost(err error) bool {
	var broken *brokenError
	return errors.Is(err, nvmf.ErrConnectionLost) && !errors.As(err, &broken)
}

// begin starts a log group of at most need bytes, making room with a state
// checkpoint if it must.
func (fs *FS) begin(need int) error {
	for {
		prep, err := fs.log.Begin(need)
		if errors.Is(err, oplog.ErrFull) {
			// A state has no operation that is not whole; only where the connection
			// was lost so often that logRoom did not suffice may it have a part.
			if err = fs.finishInPage(); err == nil {
				err = fs.freeLog()
			}
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err // no group was begun
		}
		if err = fs.run(prep); err == nil {
			return nil
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// freeLog makes room in a full log. A state checkpoint that was already in
// progress may free too little; a second one frees all that can be.
func (fs *FS) freeLog() error {
	for range 2 {
		if wait := fs.ckpt.late(); fs.ckpt.state == nil && wait > 0 {
			fs.logf("the log is full; waiting %v until a late command can no longer damage a state checkpoint", wait)
			time.Sleep(wait)
		}
		if err := fs.checkpoint(); err != nil {
			return err
		}
		if fs.log.Free() > 0 {
			return nil
		}
	}
	return syscall.ENOSPC
}

// recoverFrom is called with the outcome of a group that did not settle. It
// drops the group; after a lost connection it reconnects, after a conflict it
// reserves, and returns nil: the operation is to be repeated. Other errors come
// back as they are.
func (fs *FS) recoverFrom(err error) error {
	if err == nil {
		return nil
	}
	if !lost(err) {
		fs.log.Failed()
		return fs.settleConflict(err)
	}
	fs.log.Lost()
	return fs.reconnect(err)
}

// maxConflicts is how often in a row a reservation may be lost again before
// the file system gives up.
const maxConflicts = 8

// settleConflict returns nil if err was a reservation conflict that is settled in our
// favour: a target that started anew had forgotten whose the namespace is.
// Where a later run has it, this file system is out of service.
func (fs *FS) settleConflict(err error) error {
	if !nvmf.IsConflict(err) && !nvmf.IsPreempted(err) || fs.opts.Reserve == nil {
		return err
	}
	if fs.conflicts++; fs.conflicts > maxConflicts {
		return fs.fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fs.opts.Timeout)
	defer cancel()
	if err := fs.regain(ctx); lost(err) {
		return fs.reconnect(err)
	} else if err != nil {
		return fs.fail(err)
	}
	return nil
}

// record logs and applies fs.rec, an operation without data.
func (fs *FS) record() error {
	if err := fs.room(); err != nil {
		return err
	}
	for {
		if err := fs.begin(fs.rec.Len()); err != nil {
			return err
		}
		if err := fs.log.Append(&fs.rec, false); err != nil {
			fs.log.Failed()
			return err
		}
		cmds := fs.log.Commit()
		if mutant.On(mutant.EarlyAck) {
			cmds = nil
		}
		err := fs.run(cmds)
		if err == nil {
			return fs.settled(&fs.rec)
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// settled is called when a group has settled: it applies its records.
func (fs *FS) settled(recs ...*oplog.Record) error {
	fs.log.Settled()
	fs.conflicts, fs.away = 0, time.Time{}
	for _, r := range recs {
		if err := fs.tree.apply(r, fs.freed); err != nil {
			return fs.fail(fmt.Errorf("after it was logged: %w", err))
		}
	}
	fs.release()
	return nil
}

// freed collects what an operation frees.
func (fs *FS) freed(r run) { fs.freeing = append(fs.freeing, r) }

// release moves freed hugeblocks towards the pool: at once where settled is
// durable, else after the next flush.
func (fs *FS) release() {
	if len(fs.freeing) == 0 {
		return
	}
	if fs.log.Unflushed() && !mutant.On(mutant.EarlyReuse) {
		fs.limbo = append(fs.limbo, fs.freeing...)
	} else {
		for _, r := range fs.freeing {
			fs.give(r)
		}
	}
	fs.freeing = fs.freeing[:0]
}

// give returns a run to the pool, except for retired hugeblocks.
func (fs *FS) give(r run) {
	if len(fs.retired) == 0 {
		fs.pool.give(r)
		return
	}
	for h := r.start; h < r.start+r.count; h++ {
		if !fs.retired.hold(h) {
			fs.pool.give(run{h, 1})
		}
	}
}

// Sync makes everything acknowledged durable.
func (fs *FS) Sync() error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	if fs.opts.ReadOnly {
		return nil
	}
	return fs.sync()
}

// sync makes everything acknowledged durable, and puts that on record: what is
// damaged then is never taken for unfinished. In a full log that may take a
// state checkpoint.
func (fs *FS) sync() error {
	if err := fs.syncLog(); err != nil {
		return err
	}
	if !fs.log.Exposed() || fs.log.Open() || fs.ckpt.state == nil && fs.ckpt.late() > 0 {
		return nil
	}
	if err := fs.freeLog(); fs.broken != nil {
		return err
	} else if err != nil {
		fs.logf("state checkpoint: %v", err)
	}
	return fs.syncLog()
}

// syncLog puts the newest records in both slots of the tail page, and flushes
// where the device has a volatile cache.
func (fs *FS) syncLog() error {
	for {
		err := error(nil)
		if fs.dev.Identity().VolatileWriteCache {
			err = fs.flushAndMark()
		} else if err = fs.runGroup(fs.log.Mirror()); err == nil && fs.log.Exposed() {
			err = fs.turnPage(fs.log.Commit)
		}
		if err == nil {
			return nil
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// flushAndMark flushes the device and puts on record that it did, so that
// damage to what was flushed is never taken for an unfinished write.
func (fs *FS) flushAndMark() error {
	if fs.log.Unflushed() {
		if err := fs.flushDevice(); err != nil {
			return err
		}
	}
	if !fs.log.Unmarked() {
		return nil
	}
	if mark := fs.log.Mark(); len(mark) > 0 {
		return fs.runGroup(mark)
	}
	return fs.turnPage(fs.log.CommitMark)
}

// turnPage starts a log page without records, unless the log is full.
func (fs *FS) turnPage(commit func() []*nvmf.Command) error {
	if fs.log.Free() == 0 {
		return nil
	}
	open := fs.log.Open()
	prep, err := fs.log.Begin(0)
	if err == nil {
		err = fs.run(prep)
	}
	if err != nil {
		return err
	}
	if open {
		fs.log.More()
	}
	return fs.runGroup(commit())
}

// runGroup writes a log group without data.
func (fs *FS) runGroup(cmds []*nvmf.Command) error {
	if len(cmds) == 0 {
		return nil
	}
	if err := fs.run(cmds); err != nil {
		return err
	}
	fs.log.Settled()
	return nil
}

func (fs *FS) flushDevice() error {
	fs.flush = nvmf.Command{Opcode: nvmf.Flush}
	fs.one[0] = &fs.flush
	if !mutant.On(mutant.NoFlush) {
		if err := fs.run(fs.one[:]); err != nil {
			return err
		}
	}
	fs.log.Flushed()
	fs.unflushed = 0
	for _, r := range fs.limbo {
		fs.give(r)
	}
	fs.limbo = fs.limbo[:0]
	return nil
}

// flushEvery bounds what recovery has to verify on a device with a volatile
// write cache.
const flushEvery = 256 * nvmf.MiB

// room fails with ENOSPC if the state area could not hold what fs.rec adds.
func (fs *FS) room() error {
	var more nvmf.Bytes
	switch fs.rec.Type {
	case oplog.Create:
		more = nvmf.Bytes(inodeSize + entrySize + len(fs.rec.Name) + len(fs.rec.NewName))
	case oplog.Link, oplog.Rename:
		more = nvmf.Bytes(entrySize + len(fs.rec.Name) + len(fs.rec.NewName))
	default:
		return nil
	}
	if stateFixed+nvmf.Bytes(fs.g.blocks)*fs.worstPerBlock()+fs.tree.bytes+more > framedRoom(fs.g.stateSize) {
		return syscall.ENOSPC
	}
	return nil
}

// worstPerBlock is what one mapped hugeblock takes at most in a state checkpoint.
func (fs *FS) worstPerBlock() nvmf.Bytes {
	n := nvmf.Bytes(extentSize)
	if fs.g.sums {
		n += 8 * nvmf.Bytes(fs.g.unitsPerBlock())
	}
	return n
}

// errPowerLost: what was acknowledged and not flushed is gone.
var errPowerLost = errors.New("the target lost what was not flushed, as when its power fails")

// checkSettled tells whether the device still holds what was settled: the last
// log image, and with a volatile write cache everything since the last flush,
// for the target may have lost its power.
func (fs *FS) checkSettled() error {
	if mutant.On(mutant.NoTailCheck) {
		return nil
	}
	if err := fs.checkTail(); err != nil {
		return err
	}
	if !fs.log.Unflushed() {
		return nil
	}
	if !fs.g.sums {
		return fmt.Errorf("%w: without data checksums that cannot be told from a lost connection", errPowerLost)
	}
	there, err := fs.log.Survived(fs.ckpt.header.prior, fs.media())
	if err == nil && !there {
		err = errPowerLost
	}
	return err
}

// checkTail compares the last settled log image with what the device holds.
func (fs *FS) checkTail() error {
	lba, want, ok := fs.log.TailRead()
	if !ok {
		return nil
	}
	got := make([]byte, oplog.PageSize)
	if err := fs.readBlocks(lba, got); err != nil {
		return err
	}
	switch {
	case bytes.Equal(got, want):
		return nil
	case fs.log.Unflushed():
		return errPowerLost
	}
	return fmt.Errorf("last log page at LBA %d is not what was written before the connection was lost: %w",
		lba, nvmf.ErrNamespaceChanged)
}

// readBlocks reads a few blocks outside the data path.
func (fs *FS) readBlocks(lba nvmf.LBA, buf []byte) error {
	return transfer(fs.q, fs.dev.Identity(), nvmf.Read, lba, buf, false)
}

// transfer moves buf to or from the device in as many commands as it takes.
func transfer(q nvmf.Queue, id *nvmf.Identity, op nvmf.Opcode, lba nvmf.LBA, buf []byte, fua bool) error {
	const batch = 32
	step := int(id.OptimalTransfer)
	for len(buf) > 0 {
		var cmds []*nvmf.Command
		for len(buf) > 0 && len(cmds) < batch {
			n := min(step, len(buf))
			c := &nvmf.Command{Opcode: op, FUA: fua, LBA: lba, Blocks: nvmf.LBA(nvmf.Bytes(n) / id.LBASize), Data: [][]byte{buf[:n]}}
			cmds = append(cmds, c)
			lba += c.Blocks
			buf = buf[n:]
		}
		q.Submit(cmds)
		if err := await(q, cmds); err != nil {
			return err
		}
	}
	return nil
}
