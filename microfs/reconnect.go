package microfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/internal/mutant"
	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// lost reports whether an operation should be repeated after a reconnection.
func lost(err error) bool {
	if err == nil {
		return false // the rest allocates
	}
	var broken *brokenError
	return errors.Is(err, nvmf.ErrConnectionLost) && !errors.As(err, &broken)
}

// recoverFrom handles a group that did not settle. It drops the group. After a lost connection it
// reconnects, after a reservation conflict it reserves the namespace again. Then it returns nil, and
// the caller repeats the operation. It returns other errors unchanged.
func (fs *FS) recoverFrom(err error) error {
	if err == nil {
		return nil
	}
	if !lost(err) {
		fs.log.Failed()
		return fs.resolveConflict(err)
	}
	fs.log.Lost()
	return fs.reconnect(err)
}

// maxConflicts is how many commands in a row may have a reservation conflict before the file system
// gives up.
const maxConflicts = 8

// resolveConflict returns nil if err was a reservation conflict and the namespace is reserved for
// this run again: a restarted target has lost the reservation. If a later run has reserved the
// namespace, the file system goes out of service.
func (fs *FS) resolveConflict(err error) error {
	if !nvmf.IsConflict(err) && !nvmf.IsPreempted(err) || fs.opts.Reserve == nil || fs.broken != nil {
		return err
	}
	if fs.conflicts++; fs.conflicts > maxConflicts {
		return fs.fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fs.opts.Timeout)
	defer cancel()
	if err := fs.reacquire(ctx); unavailable(err) {
		return fs.reconnect(err)
	} else if err != nil {
		return fs.fail(err)
	}
	return nil
}

// reacquire reserves the namespace again and checks the claim, after a reconnection or a
// reservation conflict.
func (fs *FS) reacquire(ctx context.Context) error {
	if fs.opts.Reserve != nil {
		if err := fs.opts.Reserve(ctx); err != nil {
			return err
		}
	}
	return fs.checkClaim()
}

// reconnect resets the queue after the error cause, and checks that the namespace still belongs to
// this run and holds all settled data. An operation waits for the target at most Options.Timeout,
// counted from the moment that the target stopped answering.
func (fs *FS) reconnect(cause error) error {
	if fs.silentSince.IsZero() {
		fs.silentSince = time.Now()
		var silent *nvmf.TimeoutError
		if errors.As(cause, &silent) {
			fs.silentSince = fs.silentSince.Add(-silent.After)
		}
	}
	until := fs.silentSince.Add(fs.opts.Timeout)
	fs.logf("connection to the target lost, reconnecting for up to %v", time.Until(until).Round(time.Millisecond))
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if err := fs.q.Reset(ctx); err != nil {
			return fs.fail(err)
		}
		if fs.dev.Identity().VolatileWriteCache {
			fs.ckpt.restart()
		}
		err := fs.reacquire(ctx)
		if err == nil {
			err = fs.checkCommitted()
		}
		if err == nil {
			fs.logf("connection to the target is back")
			return nil
		}
		if !unavailable(err) || ctx.Err() != nil {
			return fs.fail(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// The first and the longest pause between attempts while the connection is lost again and again.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// unavailable reports whether Reserve failed because the target was lost again, or does not serve
// the namespace yet. Reserve itself does not wait for the target.
func unavailable(err error) bool {
	for _, e := range []error{nvmf.ErrUnreachable, nvmf.ErrHostRefused, nvmf.ErrNoSubsystem, nvmf.ErrNoNamespace} {
		if errors.Is(err, e) {
			return true
		}
	}
	return lost(err)
}

// errPowerLost: the volatile write cache has lost acknowledged data.
var errPowerLost = errors.New("the target lost what was not flushed, as when its power fails")

// checkCommitted checks that the device still holds all settled data: the last log
// image, and with a volatile write cache everything since the last flush, since the
// target may have lost power. A reader has settled nothing. The writer may have gone on since, and the reader
// verifies what it reads by its checksums, if there are any.
func (fs *FS) checkCommitted() error {
	if mutant.On(mutant.NoTailCheck) || fs.opts.ReadOnly && fs.g.sums {
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
