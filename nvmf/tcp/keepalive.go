package tcp

import (
	"fmt"
	"io"
	"os"
	"time"

	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// Keep-alives go out while the application computes, on a core that it may
// want for itself. So nobody waits for the answer, which is taken in when the
// next one is due, and the clock is the kernel's.

// heart is the keep-alive command of an association. Guarded by
// controller.admin, but for the clock.
type heart struct {
	clock *os.File
	beat  nvmf.Command
	begun time.Time // when it was sent; zero before the first
}

// routineKeepAlive tells the controller at every tick that the host lives,
// until the association ends, which closes the clock.
func (ctl *controller) routineKeepAlive() {
	var ticks [8]byte
	for {
		if _, err := io.ReadFull(ctl.heart.clock, ticks[:]); err != nil {
			return
		}
		ctl.admin.Lock()
		err := ctl.pulse()
		ctl.admin.Unlock()
		if err != nil {
			ctl.fail(err)
			return
		}
	}
}

// pulse takes in the answer to the last keep-alive and sends the next one. Any
// answer, even a refusal, shows a living association; the error is that of a
// lost connection.
func (ctl *controller) pulse() error {
	c, h := ctl.conn, &ctl.heart
	c.drain()
	switch {
	case c.err != nil:
	case h.beat.Done():
		var sqe nvme.SQE
		sqe.Reset(nvme.AdminKeepAlive, 0, 0)
		c.issue(&h.beat, &sqe, nil, false)
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

// ping is a Keep Alive whose answer somebody waits for.
func (ctl *controller) ping() error {
	var sqe nvme.SQE
	sqe.Reset(nvme.AdminKeepAlive, 0, 0)
	_, err := ctl.exec("Keep Alive", &sqe, nil)
	return err
}

// settle waits for the answer to a keep-alive: exec takes the last answer
// there is for its own.
func (ctl *controller) settle() {
	if beat := &ctl.heart.beat; !beat.Done() {
		ctl.conn.wait([]*nvmf.Command{beat})
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
