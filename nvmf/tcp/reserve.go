package tcp

import (
	"context"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

var _ nvmf.Reserver = (*Device)(nil)

// Reserve keeps other hosts from writing to the namespace; see nvmf.Reserver. The
// target distinguishes hosts by Options.HostID. Reserve uses an I/O queue of its own.
func (d *Device) Reserve(ctx context.Context, key nvmf.ReservationKey) error {
	return d.reservation(key).Take(ctx)
}

// Unreserve gives up the reservation of Reserve; see nvmf.Reserver.
func (d *Device) Unreserve(ctx context.Context, key nvmf.ReservationKey) error {
	return d.reservation(key).GiveUp(ctx)
}

func (d *Device) reservation(key nvmf.ReservationKey) *initiator.Reservation {
	return &initiator.Reservation{Host: d.opts.HostID, Key: key, Namespace: d.id, Identity: &d.identity,
		Open: func(ctx context.Context) (initiator.Executor, error) {
			q, err := d.OpenQueue(ctx, 1)
			if err != nil {
				return nil, err
			}
			return executor{q.(*Queue)}, nil
		}}
}

// executor executes reservation commands on a queue.
type executor struct{ *Queue }

func (e executor) Exec(what string, sqe *nvme.SQE, data []byte, write bool) error {
	_, err := e.conn.exec(what, sqe, data, write)
	return err
}

func (e executor) Abort(error) { e.conn.kill() }
