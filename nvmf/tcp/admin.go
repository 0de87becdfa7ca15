package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/initiator"
	"nvmecr/nvmf/nvme"
)

// A controller is an association with a controller of the target: the admin
// queue, the capabilities of the controller, and the I/O connections, which end
// with the association.
type controller struct {
	admin     sync.Mutex // held while a command runs on conn
	conn      *conn
	keepAlive keepAlive

	// The following fields do not change after associate.
	cntlid uint16
	cap    nvme.CAP
	facts  *initiator.Controller // nil for a discovery controller
	queues uint16                // I/O queues granted

	mu      sync.Mutex       // guards the following fields
	conns   map[uint16]*conn // by queue id; nil while a queue is connecting
	lastQID uint16
	lost    error         // why the association has ended
	done    chan struct{} // closed when the association has ended
}

// associate opens an association with a controller of subsystem nqn. It connects
// the admin queue, enables and identifies the controller, asks for I/O queues and
// starts the keep-alive.
func associate(ctx context.Context, id nvmf.TransportID, o *Options, nqn string) (*controller, error) {
	kato := max(0, o.KeepAlive)
	if nqn == nvme.DiscoveryNQN {
		kato = 0
	}
	c, cntlid, err := connectQueue(ctx, id, o, queueID{nqn, nvme.CNTLIDDynamic, 0, adminDepth, kato})
	if err != nil {
		return nil, err
	}
	ctl := &controller{conn: c, cntlid: cntlid, conns: map[uint16]*conn{}, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(ctx, o.ConnectTimeout+maxReadyTime)
	defer cancel()
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	if err = ctl.enable(ctx); err == nil && nqn != nvme.DiscoveryNQN {
		err = ctl.prepare()
	}
	if err != nil {
		ctl.fail(err)
		return nil, err
	}
	if kato > 0 && ctl.facts.KeepAlive {
		if ctl.keepAlive.clock, err = initiator.NewClock(kato / 3); err != nil {
			ctl.fail(err)
			return nil, err
		}
		go ctl.routineKeepAlive()
	}
	return ctl, nil
}

// maxReadyTime is the largest value of CAP.TO, 255 x 500 ms.
const maxReadyTime = 255 * 500 * time.Millisecond

// enable reads CAP, enables the controller and waits for CSTS.RDY.
func (ctl *controller) enable(ctx context.Context) error {
	value, err := ctl.property(nvme.PropertyCAP)
	if err != nil {
		return err
	}
	ctl.cap = nvme.CAP(value)
	if !ctl.cap.NVMCommandSet() {
		return fmt.Errorf("the controller lacks the NVM command set (CAP %#x): %w", value, nvmf.ErrUnsupported)
	}
	if err := ctl.setProperty(nvme.PropertyCC, nvme.CCFabrics); err != nil {
		return err
	}
	// A TO of 0 counts as 500 ms, since reading CSTS takes a round trip.
	deadline := time.Now().Add(time.Duration(max(1, ctl.cap.Timeout())) * 500 * time.Millisecond)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		csts, err := ctl.property(nvme.PropertyCSTS)
		switch {
		case err != nil:
			return err
		case csts&nvme.CSTSFatal != 0:
			return fmt.Errorf("enabling the controller: it reports a fatal error (CSTS %#x)", csts)
		case csts&nvme.CSTSReady != 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("enabling the controller: not ready after %d ms (CSTS %#x)", 500*int(ctl.cap.Timeout()), csts)
		}
		if err := initiator.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// prepare identifies the controller and asks for I/O queues.
func (ctl *controller) prepare() (err error) {
	if ctl.facts, err = initiator.IdentifyController(ctl, ctl.cap); err != nil {
		return err
	}
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminSetFeatures, 0, 0)
	sqe.SetCDW(10, nvme.FeatureNumberOfQueues)
	sqe.SetCDW(11, nvme.NumberOfQueues(wantedQueues, wantedQueues))
	result, err := ctl.exec("Set Features (Number of Queues)", &sqe, nil)
	if err != nil {
		return err
	}
	sq, cq := nvme.QueueCounts(uint32(result))
	ctl.queues = uint16(min(sq, cq, wantedQueues))
	return nil
}

// property reads a controller property.
func (ctl *controller) property(offset uint32) (uint64, error) {
	var sqe nvme.SQE
	sqe.ResetFabrics(nvme.FabricsPropertyGet, 0)
	sqe.SetProperty(offset, 0)
	return ctl.exec(fmt.Sprintf("Property Get of %#x", offset), &sqe, nil)
}

// setProperty writes a controller property.
func (ctl *controller) setProperty(offset uint32, value uint64) error {
	var sqe nvme.SQE
	sqe.ResetFabrics(nvme.FabricsPropertySet, 0)
	sqe.SetProperty(offset, value)
	_, err := ctl.exec(fmt.Sprintf("Property Set of %#x", offset), &sqe, nil)
	return err
}

// exec executes one admin command that receives data or has none. It ends the
// association if the admin connection is lost.
func (ctl *controller) exec(what string, sqe *nvme.SQE, data []byte) (uint64, error) {
	ctl.admin.Lock()
	ctl.settle()
	result, err := ctl.conn.exec(what, sqe, data, false)
	ctl.admin.Unlock()
	if errors.Is(err, nvmf.ErrConnectionLost) {
		ctl.fail(err)
	}
	return result, err
}

// exec executes one command and returns dwords 0 and 1 of its completion. what is
// the name of the command in errors. sqe needs no command id and no SGL.
func (c *conn) exec(what string, sqe *nvme.SQE, data []byte, write bool) (uint64, error) {
	if c.err != nil {
		return 0, fmt.Errorf("%s: %w", what, c.err)
	}
	var cmd nvmf.Command
	c.issue(&cmd, sqe, data, write)
	c.wait([]*nvmf.Command{&cmd})
	var se *nvmf.StatusError
	switch {
	case errors.As(cmd.Err, &se):
		se.Name = what
		return 0, se
	case cmd.Err != nil:
		return 0, fmt.Errorf("%s: %w", what, cmd.Err)
	}
	return c.result, nil
}

// issue queues a command. The connection must have a free slot.
func (c *conn) issue(cmd *nvmf.Command, sqe *nvme.SQE, data []byte, write bool) {
	cmd.Opcode, cmd.Data = nvmf.Opcode(sqe.Opcode()), [][]byte{data}
	cmd.Begin()
	s, cid := c.start(cmd, 0, 0)
	s.sqe = *sqe
	s.sqe.SetCID(cid)
	s.data, s.total, s.write = cmd.Data, uint32(len(data)), write
	s.short = sqe.Opcode() == nvme.AdminFabrics && sqe.FabricsType() == nvme.FabricsAuthReceive
	c.ship(s, cid)
}

// fail ends the association. It shuts the I/O connections down, which wakes their
// owners, and closes the admin connection. Only the first cause is kept.
func (ctl *controller) fail(cause error) {
	ctl.mu.Lock()
	first := ctl.lost == nil
	if first {
		ctl.lost = cause
		close(ctl.done)
		for _, c := range ctl.conns {
			if c != nil {
				c.kill()
			}
		}
	}
	ctl.mu.Unlock()
	if first {
		if ctl.keepAlive.clock != nil {
			_ = ownfd.CloseFile(ctl.keepAlive.clock) // ends routineKeepAlive
		}
		ctl.conn.kill()
		ctl.admin.Lock()
		ctl.conn.close()
		ctl.admin.Unlock()
	}
}

// close shuts the controller down, if the association has not ended, and ends the
// association.
func (ctl *controller) close() {
	ctl.admin.Lock()
	ctl.conn.timeout = min(ctl.conn.timeout, time.Second)
	ctl.admin.Unlock()
	if ctl.alive() {
		// An error does not matter, since the association ends in any case.
		_ = ctl.setProperty(nvme.PropertyCC, nvme.CCFabrics|nvme.CCShutdown)
	}
	ctl.fail(nvmf.ErrClosed)
}

// alive reports whether the association is not known to have ended.
func (ctl *controller) alive() bool {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	return ctl.lost == nil
}

// reserve returns a queue id that no connection has. It uses the ids in turn, so
// that each is used again as late as possible: a target may not have noticed yet
// that a connection has ended.
func (ctl *controller) reserve() (uint16, error) {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	for range ctl.queues {
		ctl.lastQID = ctl.lastQID%ctl.queues + 1
		if _, used := ctl.conns[ctl.lastQID]; !used {
			ctl.conns[ctl.lastQID] = nil
			return ctl.lastQID, nil
		}
	}
	return 0, fmt.Errorf("the target grants only %d I/O queues, and all are in use: %w", ctl.queues, unix.EBUSY)
}

// adopt adds an I/O connection to the association, with an id from reserve.
func (ctl *controller) adopt(qid uint16, c *conn) error {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if ctl.lost != nil {
		return fmt.Errorf("%w: %w", nvmf.ErrConnectionLost, ctl.lost)
	}
	ctl.conns[qid] = c
	return nil
}

// forget frees the id of a connection that was closed.
func (ctl *controller) forget(qid uint16) {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	delete(ctl.conns, qid)
}
