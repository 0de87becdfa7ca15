package microfs

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

var errUnmounted = errors.New("unmounted")

// begin starts a log group of at most need bytes. If the log is full, it makes space with a state
// checkpoint.
func (fs *FS) begin(need int) error {
	for {
		prep, err := fs.log.Begin(need)
		if errors.Is(err, oplog.ErrFull) {
			// A state includes no unfinished operation. The exception: if connections were lost so
			// often that reservedLog did not suffice, the state may include a part of one.
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

// freeLog frees pages of a full log with a state checkpoint. A state checkpoint that was
// already in progress may free too few pages; a second one then frees as many as possible.
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

// record logs and applies fs.rec, an operation without data.
func (fs *FS) record() error {
	if err := fs.checkNameSpace(); err != nil {
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
		fs.q.Submit(cmds)
		ahead := fs.tree.createAhead(&fs.rec)
		err := await(fs.q, cmds)
		switch {
		case err == nil && ahead != nil:
			return fs.committed()
		case err == nil:
			return fs.committed(&fs.rec)
		case ahead != nil:
			fs.tree.undo(ahead, &fs.rec)
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
}

// committed is called when a group has settled: it applies its records.
func (fs *FS) committed(recs ...*oplog.Record) error {
	fs.log.Settled()
	fs.conflicts, fs.silentSince, fs.lastChange = 0, time.Time{}, fs.clock()
	for _, r := range recs {
		if err := fs.tree.apply(r, fs.freed); err != nil {
			return fs.fail(fmt.Errorf("after it was logged: %w", err))
		}
	}
	fs.release()
	return nil
}

// supersede is called when a failed group may be on the media as a whole. It overwrites the group,
// because a later mount must not replay an operation that has failed for the application. If the
// device refuses the superseding image as well, later operations try again.
func (fs *FS) supersede() {
	if fs.broken != nil || fs.log.Open() || mutant.On(mutant.NoSupersede) {
		return
	}
	begin := time.Now()
	err := fs.trySupersede()
	if err == nil {
		fs.supersedeAt = time.Time{}
		return
	}
	if fs.supersedeAt.IsZero() {
		fs.logf("a refused operation may be found done by the next mount: %v", err)
	}
	fs.supersedeAt = time.Now().Add(max(supersedePause, 10*time.Since(begin)))
}

// supersedePause is the least time between attempts to supersede.
const supersedePause = time.Second

func (fs *FS) trySupersede() error {
	for fs.log.InDoubt() {
		prep, err := fs.log.Begin(0)
		if err != nil {
			return err // a state checkpoint makes space when an operation needs it
		}
		if err = fs.run(prep); err == nil {
			err = fs.runGroup(fs.log.Supersede())
		}
		if err = fs.recoverFrom(err); err != nil {
			return err
		}
	}
	return nil
}

// freed collects the hugeblocks that an operation frees.
func (fs *FS) freed(r run) { fs.freeing = append(fs.freeing, r) }

// release returns freed hugeblocks to the pool if the records that freed them are durable. Otherwise
// it adds them to pendingFree until the next flush.
func (fs *FS) release() {
	if len(fs.freeing) == 0 {
		return
	}
	if fs.log.Unflushed() && !mutant.On(mutant.EarlyReuse) {
		fs.pendingFree = append(fs.pendingFree, fs.freeing...)
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

// checkNameSpace fails with ErrNoNames if the state area could not hold what fs.rec adds.
func (fs *FS) checkNameSpace() error {
	var more nvmf.Bytes
	switch fs.rec.Type {
	case oplog.Create:
		more = nvmf.Bytes(inodeSize + entrySize + len(fs.rec.Name) + len(fs.rec.NewName))
	case oplog.Link, oplog.Rename:
		more = nvmf.Bytes(entrySize + len(fs.rec.Name) + len(fs.rec.NewName))
	default:
		return nil
	}
	return fs.checkStateSpace(more)
}

// checkStateSpace fails with ErrNoNames if the state area could not hold more.
func (fs *FS) checkStateSpace(more nvmf.Bytes) error {
	if stateFixed+nvmf.Bytes(fs.g.blocks)*fs.worstPerBlock()+fs.tree.bytes+more > framedCapacity(fs.g.stateSize) {
		return ErrNoNames
	}
	return nil
}

// worstPerBlock is the most that one mapped hugeblock takes in a state checkpoint.
func (fs *FS) worstPerBlock() nvmf.Bytes {
	n := nvmf.Bytes(extentSize)
	if fs.g.sums {
		n += 8 * nvmf.Bytes(fs.g.unitsPerBlock())
	}
	return n
}
