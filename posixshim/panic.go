package posixshim

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
)

// No input from the wire or the media is meant to end the application. What is
// overlooked is a panic. It ends the call with EIO, and all calls of the process
// after it: nobody knows which locks were held, and what is half changed.

// Crashed reports whether a call has panicked.
func (p *Process) Crashed() bool { return p.crashed.Load() }

// Contain turns what recover has returned, if that is a panic, into EIO, and says
// where it came from. It is called by the deferred function of whoever calls into
// the runtime, while the stack of the panic is still there.
func (p *Process) Contain(recovered any) error {
	p.crashed.Store(true)
	p.logf("internal error, please report it: %v, at %s; every call on files of the mount is EIO from here on", recovered, panicked())
	return syscall.EIO
}

// panicked is the place in this program where the panic under way began. Of one that
// was passed on by a deferred function, which is another panic above it, that is the
// first place.
func panicked() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	place, begun := "an unknown place", false
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			begun = true
		case begun && !strings.HasPrefix(f.Function, "runtime."):
			place, begun = fmt.Sprintf("%s:%d", f.Function, f.Line), false
		}
		if !more {
			return place
		}
	}
}
