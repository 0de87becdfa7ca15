package microfs

import (
	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
)

// Sync makes everything acknowledged durable.
func (fs *FS) Sync() error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	if fs.opts.ReadOnly {
		return nil
	}
	return fs.syncAll()
}

// Flush is Sync, except that it does not return errors of write-behind: Sync and Close return them.
func (fs *FS) Flush() error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	if fs.opts.ReadOnly {
		return nil
	}
	return fs.sync()
}

// syncAll is sync for all files. It also returns, once, the error of a failed write-behind.
func (fs *FS) syncAll() error {
	unreported := fs.unreportedWrite
	fs.unreportedWrite = nil
	if err := fs.sync(); err != nil {
		return err
	}
	return unreported
}

// sync makes everything acknowledged durable, and records on the media that it is
// durable. So a recovery reports later damage as damage, and cannot mistake it for an
// operation that a crash cut short. In a full log that may need a state checkpoint.
func (fs *FS) sync() error {
	if err := fs.unreportedFlush; err != nil {
		fs.unreportedFlush = nil
		return err
	}
	if err := fs.commitDeferred(); err != nil {
		return err
	}
	if err := fs.syncLog(); err != nil {
		return err
	}
	if !fs.log.Unprotected() || fs.log.Open() || fs.ckpt.state == nil && fs.ckpt.late() > 0 {
		return nil
	}
	if err := fs.freeLog(); fs.broken != nil {
		return err
	} else if err != nil {
		fs.logf("state checkpoint: %v", err)
	}
	return fs.syncLog()
}

// commitDeferred logs the deferred records (closeCreated). If an operation of several groups is in
// progress, its first group has logged them.
func (fs *FS) commitDeferred() error {
	for fs.log.Deferred() && !fs.log.Open() {
		if err := fs.begin(0); err != nil {
			return err
		}
		if err := fs.recoverFrom(fs.runGroup(fs.log.Commit())); err != nil {
			return err
		}
	}
	return nil
}

// syncLog puts the newest records in both slots of the tail page, and flushes
// where the device has a volatile cache.
func (fs *FS) syncLog() error {
	for {
		err := error(nil)
		if fs.dev.Identity().VolatileWriteCache {
			err = fs.flushAndMark()
		} else if err = fs.runGroup(fs.log.Mirror()); err == nil && fs.log.Unprotected() {
			err = fs.startPage(fs.log.Commit)
		}
		if err == nil {
			return nil
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// flushAndMark flushes the device. A recovery must not mistake later damage of flushed data for an
// unfinished write. So records without data are in both slots before the flush, and after the flush
// of other records an image on the media says that they are durable.
func (fs *FS) flushAndMark() error {
	if fs.log.Unflushed() {
		err := fs.runGroup(fs.log.Mirror())
		if err == nil {
			err = fs.flushDevice()
		}
		if err != nil {
			return err
		}
	}
	if !fs.log.Unmarked() {
		return nil
	}
	if mark := fs.log.Mark(); len(mark) > 0 {
		return fs.runGroup(mark)
	}
	return fs.startPage(fs.log.CommitMark)
}

// startPage starts a log page without records, unless the log is full.
func (fs *FS) startPage(commit func() []*nvmf.Command) error {
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
	for _, r := range fs.pendingFree {
		fs.give(r)
	}
	fs.pendingFree = fs.pendingFree[:0]
	return nil
}

// flushEvery limits the data that recovery has to verify on a device with a volatile write cache.
const flushEvery = 256 * nvmf.MiB
