package initiator

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// Pauses between attempts, which double from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Sleep returns early with the cause if ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// NewClock returns a descriptor that becomes readable every interval, 8 bytes
// each time; ownfd.CloseFile closes it. A timer of Go's own keeps a thread of
// its runtime napping for 20 us at a time until epoll_wait has returned, which
// for one of 10 s is up to 10 ms late, on a core that the application may want
// for itself.
func NewClock(interval time.Duration) (*os.File, error) {
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
