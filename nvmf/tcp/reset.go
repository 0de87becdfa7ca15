package tcp

import (
	"context"

	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
)

// Reset reconnects after a loss; see nvmf.Queue and initiator.Reconnect.
func (q *Queue) Reset(ctx context.Context) error {
	if q.closed {
		return nvmf.ErrClosed
	}
	if q.conn.err == nil {
		return ctx.Err()
	}
	stats := q.conn.stats
	q.ctl.forget(q.qid)
	q.qid = 0 // another queue may use the id from now on
	err := initiator.Reconnect(ctx, q.dev.id, func() error { return q.dev.attach(ctx, q) })
	if err == nil {
		stats.Reconnects++
		q.conn.stats = stats
	}
	return err
}

// attach gives q a new connection, within the association of the device or, if that
// has ended, within a new one.
func (d *Device) attach(ctx context.Context, q *Queue) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	ctl, err := d.association(ctx)
	if err != nil {
		return err
	}
	qid, err := ctl.reserve()
	if err != nil {
		return err
	}
	c, err := d.connect(ctx, ctl, qid, q.want)
	if err != nil {
		ctl.forget(qid)
		return err
	}
	q.ctl, q.conn, q.qid = ctl, c, qid
	return nil
}

// connect opens I/O queue qid of an association.
func (d *Device) connect(ctx context.Context, ctl *controller, qid uint16, depth int) (*conn, error) {
	depth = min(max(1, depth), d.opts.QueueDepth, ctl.facts.MaxCommands)
	c, _, err := connectQueue(ctx, d.id, &d.opts, queueID{d.id.SubNQN, ctl.cntlid, qid, depth, 0})
	if err != nil {
		return nil, err
	}
	c.tx.MaxCapsuleData, c.retries = ctl.facts.CapsuleData, true
	if err := ctl.adopt(qid, c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// association returns a controller that answers and has the same namespace as before.
// The caller holds d.mu.
func (d *Device) association(ctx context.Context) (*controller, error) {
	// An association that does not answer within ConnectTimeout counts as ended. The
	// time-out of the admin connection is longer.
	answer, cancel := context.WithTimeout(ctx, d.opts.ConnectTimeout)
	defer cancel()
	stop := context.AfterFunc(answer, d.ctl.conn.kill)
	defer stop()
	if d.ctl.alive() && d.ctl.ping() == nil {
		if err := d.verify(d.ctl); d.ctl.alive() {
			return d.ctl, err
		}
	}
	d.ctl.fail(nvmf.ErrConnectionLost)
	ctl, err := associate(ctx, d.id, &d.opts, d.id.SubNQN)
	if err != nil {
		return nil, err
	}
	d.ctl = ctl
	return ctl, d.verify(ctl)
}

// verify checks that the namespace is the one that was opened.
func (d *Device) verify(ctl *controller) error {
	now, err := ctl.namespace(&d.opts, d.id)
	if err != nil {
		return err
	}
	return initiator.Verify(&d.identity, now)
}
