package posixshim

import (
	"syscall"

	"nvmecr/internal/panics"
)

// A panic ends the call with EIO, and all calls of the process after it: it is not known which locks were held, and what
// is half changed.

// Crashed reports whether a call has panicked.
func (p *Process) Crashed() bool { return p.crashed.Load() }

// Contain turns what recover has returned, if that is a panic, into EIO, and says during which call that was. It is called by
// the deferred function of whoever calls into the runtime, while the stack of the panic is still there.
func (p *Process) Contain(during string, recovered any) error {
	p.crashed.Store(true)
	p.logf("%v; every call on files of the mount is EIO from here on", panics.Error(during, recovered))
	return syscall.EIO
}

// Guard is f, on a goroutine that no call of the application waits for: a panic does not end the application either.
func (p *Process) Guard(during string, f func()) {
	defer func() {
		if r := recover(); r != nil {
			_ = p.Contain(during, r)
		}
	}()
	f()
}
