package posixshim

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/microfs"
)

// errFinished is the error of calls after Finish.
var errFinished = fmt.Errorf("the process has ended its use of the mount: %w", syscall.EIO)

// errLost is the error of calls on the handle lost.
var errLost = fmt.Errorf("a file of the mount that this process has from its parent could not be shared with it: %w", syscall.EIO)

// Errno returns the errno of an error: the syscall.Errno that the error wraps, EXDEV for a path that leads out of the mount, EIO
// for all other errors, and 0 for nil. No other function turns an error into an errno.
func Errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := err.(syscall.Errno); ok {
		return errno
	}
	var escape *microfs.EscapeError
	if errors.As(err, &escape) {
		return syscall.EXDEV
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EIO
}

// Errno returns the errno of err. It reports the cause if applications do not expect that errno in normal operation.
func (p *Process) Errno(err error) syscall.Errno {
	errno := Errno(err)
	if _, plain := err.(syscall.Errno); plain {
		return errno
	}
	switch errno {
	case syscall.EACCES:
		var other *OtherUserError
		if errors.As(err, &other) {
			p.report(err)
		}
	case syscall.EROFS: // the message says which processes can write
		p.report(err)
	case syscall.ENOSPC, // df may show free space that the call cannot use; the message says why
		syscall.EIO, syscall.EBUSY, syscall.ENODEV, syscall.EPERM, syscall.ETIMEDOUT, syscall.ECONNREFUSED:
		p.report(err)
	}
	return errno
}

// report prints the error, unless the last message was the same.
func (p *Process) report(err error) {
	text := err.Error()
	p.reportMu.Lock()
	again := text == p.reported
	p.reported = text
	p.reportMu.Unlock()
	if !again && !p.closing.Load() {
		p.logf("%s", text)
	}
}
