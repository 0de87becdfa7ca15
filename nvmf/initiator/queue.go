package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// MaxRange is the most blocks one range of a Deallocate has.
const MaxRange = 1<<32 - 1

// Check returns why a queue to a namespace cannot take a command; a Deallocate
// of theirs has so many ranges at most.
func Check(cmd *nvmf.Command, id *nvmf.Identity, ranges int) error {
	if err := cmd.Check(id); err != nil {
		return err
	}
	switch cmd.Opcode {
	case nvmf.Flush, nvmf.Write, nvmf.Read:
		return nil
	case nvmf.Deallocate:
		if !id.CanDeallocate {
			return fmt.Errorf("%s: %w", cmd.Opcode, nvmf.ErrUnsupported)
		}
		if limit := nvmf.LBA(ranges) * MaxRange; cmd.Blocks > limit {
			return fmt.Errorf("%s of %d blocks, at most %d a command: %w", cmd.Opcode, cmd.Blocks, limit, nvmf.ErrBadLength)
		}
		return nil
	}
	return &nvmf.StatusError{Opcode: cmd.Opcode, LBA: cmd.LBA, SC: nvme.StatusInvalidOpcode.SC(), DNR: true}
}

// Connect connects a new queue with attach, more than once if the target still
// holds the queue's id for a connection which was closed a moment ago.
func Connect(ctx context.Context, attach func() error) error {
	for pause := firstPause; ; pause *= 2 {
		err := attach()
		inUse := hasStatus(err, nvme.StatusCommandSequence, nvme.StatusInvalidQueueID)
		if !inUse || pause > lastPause || Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// over reports whether ctx has ended, or is about to: its deadline is seen by the clock before
// its timer says so.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Reconnect connects a queue to namespace id anew with attach, which ends with
// ctx. Only a namespace that has changed and a closed device end it before ctx
// does: a target that starts again refuses hosts and knows no namespaces for a
// while, and over TCP what seems unsupported may be an ICResp that was damaged,
// for it has no digest.
func Reconnect(ctx context.Context, id nvmf.TransportID, attach func() error) error {
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := attach()
		if last == nil || !over(ctx) { // else ctx has cut the attempt short
			last = err
		}
		if err == nil {
			return nil
		}
		if errors.Is(err, nvmf.ErrNamespaceChanged) || errors.Is(err, nvmf.ErrClosed) {
			return fmt.Errorf("reconnecting to %s: %w", id, err)
		}
		if err := Sleep(ctx, pause); err != nil {
			return fmt.Errorf("reconnecting to %s: %w; the last attempt: %w", id, err, last)
		}
	}
}
