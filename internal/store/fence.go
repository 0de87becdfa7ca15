package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"nvmecr/internal/config"
	"nvmecr/internal/parttable"
	"nvmecr/microfs"
	"nvmecr/nvmf"
)

// fence keeps all other runs from writing to dev from now on. The function that it returns checks that the
// reservation still holds. The function is nil if dev has no reservations.
func fence(ctx context.Context, cfg *config.Config, dev nvmf.Device) (func(context.Context) error, error) {
	r, ok := dev.(nvmf.Reserver)
	if !ok || cfg.Run == uuid.Nil {
		return nil, nil
	}
	key := reservationKey(cfg.Run)
	reserve := func(ctx context.Context) error {
		err := r.Reserve(ctx, key)
		if errors.Is(err, nvmf.ErrFenced) {
			return fmt.Errorf("run %s, started %s: %w; if there is none, a clock was wrong: compare those of the hosts",
				cfg.Run, startOf(cfg.Run).Format(time.DateTime), err)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	err := reserve(ctx)
	if errors.Is(err, nvmf.ErrNoReservations) {
		return nil, nil
	}
	return reserve, err
}

// drain is the time within which a target completes the commands of a dead process. The connection was closed when
// the process died, and without a reservation nothing tells when the commands are complete.
const drain = 500 * time.Millisecond

// mayTakeOver returns the decision whether a partition can be mounted for writing if its last holder did not unmount
// it, or has left a deallocation that may still be executed. reserved is true if the target lets only this run write.
// local is true if commands in flight end with their process.
func (o *opener) mayTakeOver(me microfs.Holder, reserved, local bool) func(*microfs.Claim) (microfs.Late, error) {
	return func(last *microfs.Claim) (microfs.Late, error) {
		sameRun := last.Run == me.Run && me.Run != uuid.Nil
		switch dead := last.Released || ended(last.Holder, me) || isSelf(last.Holder, me); {
		case reserved && !sameRun, dead && local:
			return microfs.LateNone, nil
		case dead:
			time.Sleep(cmp.Or(o.opts.drain, drain))
			return microfs.LateUnlikely, nil
		case o.cfg.Unfenced:
			o.opts.Logf("%s is taken over from %v, which may still run, because of --unfenced", partitionName(o.proc.Rank), last)
			return microfs.LateAny, nil
		}
		return microfs.LateNone, &HeldError{Rank: o.proc.Rank, Last: *last, SameRun: sameRun && reserved}
	}
}

// isSelf reports whether h is this process. Then an earlier attempt to mount has failed, for example by a lost
// connection, and its claim has remained. The process holds the partition's lock, so it has no other mount of the
// partition.
func isSelf(h, me microfs.Holder) bool {
	return me.Boot != uuid.Nil && h.Boot == me.Boot && h.PIDSpace == me.PIDSpace && h.PID == me.PID && h.Start == me.Start
}

// quiet fails with *HeldError unless all processes that wrote to the partitions of table are known to have ended, or
// cfg.Unfenced is set. If the claims of a partition are damaged its writer is unknown: then quiet fails only if sure
// is true.
func quiet(ctx context.Context, cfg *config.Config, dev nvmf.Device, table *parttable.Table, sure bool) error {
	me := self(cfg.Run)
	for _, e := range table.FileSystems() {
		last, err := microfs.LastClaim(ctx, dev, microfs.Segment{Start: e.Start, Length: e.Length})
		switch {
		case errors.Is(err, microfs.ErrUnformatted):
			continue
		case errors.Is(err, nvmf.ErrConnectionLost), errors.Is(err, nvmf.ErrUnreachable):
			return err
		case err != nil:
			last = &microfs.Claim{}
		case last == nil || last.Released:
			continue
		}
		known := last.PID != 0
		if (known || sure) && !ended(last.Holder, me) && !cfg.Unfenced {
			return &HeldError{Rank: e.Rank, Last: *last}
		}
	}
	return nil
}
