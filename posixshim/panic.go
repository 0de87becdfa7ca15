package posixshim

import (
	"syscall"

	"nvmecr/internal/panics"
)

// A call that panics fails with EIO, and so do all later calls of the process: locks may still be held, and data may be
// inconsistent.

// Crashed reports whether a call has panicked.
func (p *Process) Crashed() bool { return p.crashed.Load() }

// Contain reports a panic, which recover has returned, during a call, and returns EIO. A deferred function calls it, because the
// stack of the panic is printed.
func (p *Process) Contain(during string, recovered any) error {
	p.crashed.Store(true)
	p.logf("%v; every call on files of the mount is EIO from here on", panics.Error(during, recovered))
	return syscall.EIO
}

// Guard calls f on a goroutine of the runtime. A panic of f is reported and does not end the application.
func (p *Process) Guard(during string, f func()) {
	defer func() {
		if r := recover(); r != nil {
			_ = p.Contain(during, r)
		}
	}()
	f()
}
