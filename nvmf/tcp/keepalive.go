package tcp

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
	"nvmecr/nvmf/nvme"
)

// Keep-alives go out while the application computes, on a core that it may
// want for itself. So nobody waits for the answer, which is taken in when the
// next one is due, and the clock is the kernel's: a timer of Go's own
// keeps a thread of its runtime napping for 20 us at a time until epoll_wait
// has returned, which for one of 10 s is up to 10 ms late.

// newClock returns a descriptor that becomes readable every interval.
func newClock(interval time.Duration) (*os.File, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	fd = ownfd.Hold(fd)
	t := unix.NsecToTimespec(int64(max(interval, time.Millisecond)))
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: t, Value: t}, nil); err != nil {
		_ = ownfd.Close(fd)
		return nil, fmt.Errorf("timerfd_settime: %w", err)
	}
	return os.NewFile(uintptr(fd), "keep-alive clock"), nil
}

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
