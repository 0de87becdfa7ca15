package tcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
	"nvmecr/nvmf/pdu"
)

// connectQueue opens one connection and makes it queue qid of a controller: it
// connects a socket, exchanges ICReq and ICResp, sends Connect and authenticates. It
// returns the controller's id. cntlid is nvme.CNTLIDDynamic for the admin queue.
func connectQueue(ctx context.Context, id nvmf.TransportID, o *Options, q queueID) (*conn, uint16, error) {
	ctx, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
	defer cancel()
	fd, err := o.Dial(ctx, id)
	if err == nil && !o.PSK.IsZero() {
		fd, err = secure(ctx, fd, o, q.subNQN)
	}
	if err != nil {
		return nil, 0, err
	}
	c, err := newConn(fd, q.depth, o.ConnectTimeout)
	if err != nil {
		return nil, 0, err
	}
	// When the context ends, the connection is shut down.
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	cntlid, err := c.establish(o, q)
	if err != nil {
		c.close()
		lost := errors.Is(err, nvmf.ErrConnectionLost)
		var late *nvmf.TimeoutError
		switch {
		// The time-outs of the context and of the connection are the same, and either
		// may end first.
		case lost && (errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.As(err, &late)):
			err = fmt.Errorf("%w: no answer in time (is it an NVMe/TCP port?): %w", nvmf.ErrConnectionLost, context.DeadlineExceeded)
		case ctx.Err() != nil:
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		if lost {
			err = fmt.Errorf("%w: %w%s", nvmf.ErrUnreachable, err, c.tlsHint(o))
		}
		return nil, 0, err
	}
	c.timeout = o.CommandTimeout
	return c, cntlid, nil
}

// queueID describes the queue that a connection becomes.
type queueID struct {
	subNQN string
	cntlid uint16
	qid    uint16
	depth  int
	kato   time.Duration
}

func (c *conn) establish(o *Options, q queueID) (cntlid uint16, err error) {
	if err := c.initialize(o); err != nil {
		return 0, err
	}
	result, err := c.fabricsConnect(o, q)
	if err != nil {
		return 0, err
	}
	return uint16(result), c.authenticate(o, q, uint32(result))
}

// initialize exchanges ICReq and ICResp. It asks for no alignment, and for one R2T
// at a time for each command, since targets use no more.
func (c *conn) initialize(o *Options) error {
	var digests uint8
	if o.HeaderDigest {
		digests |= pdu.EnableHeaderDigest
	}
	if o.DataDigest {
		digests |= pdu.EnableDataDigest
	}
	req := make([]byte, pdu.ICSize)
	pdu.PutICReq(req, 0, digests, 1)
	c.send.add(req)
	c.pace.begin()
	for !c.ready && c.err == nil {
		c.turn()
	}
	if c.err != nil {
		return fmt.Errorf("initializing the connection (is it an NVMe/TCP port?): %w", c.err)
	}
	if c.ic.Digest != digests {
		return fmt.Errorf("the target agrees to digests %#02x, asked for were %#02x (bit 0 header, bit 1 data): %w",
			c.ic.Digest, digests, nvmf.ErrUnsupported)
	}
	c.rx.HeaderDigest, c.rx.DataDigest = o.HeaderDigest, o.DataDigest
	c.tx.HeaderDigest, c.tx.DataDigest = o.HeaderDigest, o.DataDigest
	c.tx.Align, c.tx.MaxData = pdu.Alignment(c.ic.PDA), c.ic.Max
	return nil
}

// fabricsConnect sends the Connect command, and returns nvme.ConnectResult. It
// disables SQ flow control, since the queue never has more commands than entries.
// Linux's target uses the SUCCESS flag only without SQ flow control.
func (c *conn) fabricsConnect(o *Options, q queueID) (uint64, error) {
	var sqe nvme.SQE
	var data nvme.ConnectData
	sqe.ResetFabrics(nvme.FabricsConnect, 0)
	sqe.SetConnect(nvme.Connect{
		QID: q.qid, SQSize: uint16(q.depth), Attributes: nvme.ConnectNoSQFlow, KATO: uint32(max(0, q.kato.Milliseconds())),
	})
	data.Set(o.HostID, q.cntlid, q.subNQN, o.HostNQN)
	result, err := c.exec("Connect", &sqe, data[:], true)
	if err != nil {
		return 0, c.refused(err, o, q)
	}
	return result, nil
}

// refused translates the status of a failed Connect to an error of package nvmf.
func (c *conn) refused(err error, o *Options, q queueID) error {
	var se *nvmf.StatusError
	if !errors.As(err, &se) {
		return err
	}
	switch nvme.Status(se.SCT)<<8 | nvme.Status(se.SC) {
	case nvme.StatusConnectInvalidHost:
		return fmt.Errorf("host %s: %w (allow it on subsystem %s, or use another host NQN): %w",
			o.HostNQN, nvmf.ErrHostRefused, q.subNQN, err)
	case nvme.StatusConnectInvalidParameters:
		switch c.result & 0x1ffff {
		case nvme.ConnectInvalid(nvme.ConnectOffsetSubNQN, true):
			return fmt.Errorf("subsystem %s: %w: %w", q.subNQN, nvmf.ErrNoSubsystem, err)
		case nvme.ConnectInvalid(nvme.ConnectOffsetHostNQN, true):
			return fmt.Errorf("host %s: %w: %w", o.HostNQN, nvmf.ErrHostRefused, err)
		case nvme.ConnectInvalid(nvme.ConnectOffsetCNTLID, true):
			if q.qid != 0 { // the admin connection was just lost
				return fmt.Errorf("%w: the target does not know controller %d any more: %w", nvmf.ErrConnectionLost, q.cntlid, err)
			}
		}
		return fmt.Errorf("%w (field at offset %d)", err, c.result&0xffff)
	}
	return err
}
