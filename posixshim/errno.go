package posixshim

import (
	"errors"
	"fmt"
	"syscall"

	"nvmecr/microfs"
)

// errFinished is what a call finds after the process has been ended.
var errFinished = fmt.Errorf("the process has ended its use of the mount: %w", syscall.EIO)

// errLost is what a call finds on a descriptor that a forked child inherited.
var errLost = fmt.Errorf("a file of the mount that this process has from its parent could not be shared with it: %w", syscall.EIO)

// Errno is the one place where an error becomes an errno: the syscall.Errno it
// wraps, EXDEV for a path that leads out of the mount where that cannot be
// followed, EIO for everything that says nothing itself, and 0 for no error.
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

// Errno is the errno of err; those an application does not expect in its daily
// work are reported with their cause.
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
	case syscall.EROFS: // files of the mount can be written, but not by everybody
		p.report(err)
	case syscall.ENOSPC, // there is space, as df shows, but not for this
		syscall.EIO, syscall.EBUSY, syscall.ENODEV, syscall.EPERM, syscall.ETIMEDOUT, syscall.ECONNREFUSED:
		p.report(err)
	}
	return errno
}

// report says what went wrong, once in a row.
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
