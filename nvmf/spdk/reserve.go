//go:build spdk

package spdk

import (
	"context"
	"errors"
	"fmt"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// Reserve keeps other hosts from writing to the namespace; see nvmf.Reserver.
// Hosts are told apart by Options.HostID. It needs an I/O queue of its own for
// as long as it takes.
func (d *Device) Reserve(ctx context.Context, key nvmf.ReservationKey) error {
	err := d.withReservation(ctx, key, (*initiator.Reservation).Take)
	if err != nil {
		return fmt.Errorf("reserving %s: %w", d.id, err)
	}
	return nil
}

// Unreserve gives up what Reserve took; see nvmf.Reserver.
func (d *Device) Unreserve(ctx context.Context, key nvmf.ReservationKey) error {
	err := d.withReservation(ctx, key, (*initiator.Reservation).GiveUp)
	if err != nil {
		return fmt.Errorf("giving up the reservation of %s: %w", d.id, err)
	}
	return nil
}

// withReservation runs work with a queue that ends with it, and with ctx.
func (d *Device) withReservation(ctx context.Context, key nvmf.ReservationKey,
	work func(*initiator.Reservation, context.Context, initiator.Executor) error) error {
	r := &initiator.Reservation{Host: d.opts.HostID, Key: key, NSID: d.id.NSID, Identity: &d.identity}
	if err := r.Check(); err != nil {
		return err
	}
	q, err := d.openQueue(ctx, 1)
	if err != nil {
		return fmt.Errorf("reservations take an I/O queue of their own: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { q.take(context.Cause(ctx)) })
	err = work(r, ctx, q)
	stop()
	err = errors.Join(err, q.Close())
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}
