package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// MaxRange is the maximum number of blocks in one range of a Deallocate.
const MaxRange = 1<<32 - 1

// Check returns an error if a queue of a namespace cannot execute a command. ranges is
// the maximum number of ranges of a Deallocate.
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

// Connect connects a new queue by calling attach. It repeats the call while the target
// still uses the queue ID for a connection that was closed a moment ago.
func Connect(ctx context.Context, attach func() error) error {
	for pause := firstPause; ; pause *= 2 {
		err := attach()
		inUse := hasStatus(err, nvme.StatusCommandSequence, nvme.StatusInvalidQueueID)
		if !inUse || pause > lastPause || Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// over reports whether ctx has ended, or its deadline has passed. A deadline can pass
// shortly before the timer of ctx fires.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Reconnect reconnects a queue to namespace id by calling attach, until attach succeeds
// or ctx ends. Other errors that end it are nvmf.ErrNamespaceChanged and
// nvmf.ErrClosed. All others may be transient: a restarting target refuses hosts and
// has no namespaces for a while. Even nvmf.ErrUnsupported may come from a damaged
// ICResp, since that PDU has no digest.
func Reconnect(ctx context.Context, id nvmf.TransportID, attach func() error) error {
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := attach()
		if last == nil || !over(ctx) { // otherwise ctx has interrupted the attempt
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
