package initiator

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// The pause between attempts doubles from firstPause to lastPause.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Sleep pauses for d. If ctx ends earlier, Sleep returns its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// NewClock returns a timerfd that becomes readable every interval; each read returns 8
// bytes. ownfd.CloseFile closes it. It replaces a Go timer, which costs the application
// CPU time: epoll_wait with a time-out of 10 s returns up to 10 ms late, and during the
// delay a thread of the Go runtime wakes up every 20 us.
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
