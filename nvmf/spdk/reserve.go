//go:build spdk

package spdk

import (
	"context"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// Reserve keeps other hosts from writing to the namespace; see nvmf.Reserver. Hosts
// differ in Options.HostID. Reserve uses an I/O queue of its own while it runs.
func (d *Device) Reserve(ctx context.Context, key nvmf.ReservationKey) error {
	return d.reservation(key).Take(ctx)
}

// Unreserve releases the reservation of Reserve; see nvmf.Reserver.
func (d *Device) Unreserve(ctx context.Context, key nvmf.ReservationKey) error {
	return d.reservation(key).GiveUp(ctx)
}

func (d *Device) reservation(key nvmf.ReservationKey) *initiator.Reservation {
	return &initiator.Reservation{Host: d.opts.HostID, Key: key, Namespace: d.id, Identity: &d.identity,
		Open: func(ctx context.Context) (initiator.Executor, error) {
			q, err := d.openQueue(ctx, 1)
			if err != nil {
				return nil, err
			}
			return executor{q}, nil
		}}
}

// An executor is a queue that implements initiator.Executor.
type executor struct{ *Queue }

func (e executor) Abort(cause error) { e.take(cause) }
