package tcp

import (
	"fmt"
	"io"
	"os"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// Keep-alives are sent while the application computes, perhaps on the same core. So
// no thread waits for the answer, which is received when the next keep-alive is due.
// The timer is a timerfd.

// keepAlive is the keep-alive command of an association. controller.admin guards all
// of its fields but clock.
type keepAlive struct {
	clock *os.File
	cmd   nvmf.Command
	begun time.Time // when it was sent; zero before the first
}

// routineKeepAlive sends a keep-alive at every tick of the clock, until the end of the
// association closes the clock.
func (ctl *controller) routineKeepAlive() {
	var ticks [8]byte
	for {
		if _, err := io.ReadFull(ctl.keepAlive.clock, ticks[:]); err != nil {
			return
		}
		if err := ctl.tick(); err != nil {
			ctl.fail(err)
			return
		}
	}
}

// tick calls sendKeepAlive, and turns a panic into an error, so that no answer of a target can end the application.
func (ctl *controller) tick() (err error) {
	ctl.admin.Lock()
	defer ctl.admin.Unlock()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("keep-alive: %v: %w", r, nvmf.ErrConnectionLost)
		}
	}()
	return ctl.sendKeepAlive()
}

// sendKeepAlive receives the answer to the last keep-alive and sends the next one. Any
// answer, even an error status, shows that the association exists. The error is that of
// a lost connection.
func (ctl *controller) sendKeepAlive() error {
	c, h := ctl.conn, &ctl.keepAlive
	c.drain()
	switch {
	case c.err != nil:
	case h.cmd.Done():
		var sqe nvme.SQE
		sqe.Reset(nvme.AdminKeepAlive, 0, 0)
		c.issue(&h.cmd, &sqe, nil, false)
		h.begun = time.Now()
		c.flush()
	case time.Since(h.begun) >= c.timeout:
		c.lose(c.timeoutError())
	}
	if c.err != nil {
		return fmt.Errorf("keep-alive: %w", c.err)
	}
	return nil
}

// ping sends a Keep Alive and waits for the answer.
func (ctl *controller) ping() error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminKeepAlive, 0, 0)
	_, err := ctl.exec("Keep Alive", &sqe, nil)
	return err
}

// settle waits for the answer to the keep-alive in flight. Otherwise exec would take
// that answer for the one of its own command.
func (ctl *controller) settle() {
	if cmd := &ctl.keepAlive.cmd; !cmd.Done() {
		ctl.conn.wait([]*nvmf.Command{cmd})
	}
}

// drain sends and receives what is possible without waiting.
func (c *conn) drain() {
	if c.err == nil && c.send.pending() {
		c.flush()
	}
	for c.err == nil && c.receive() {
	}
}
