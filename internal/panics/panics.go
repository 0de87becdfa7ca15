// Package panics makes errors of panics. No input from the wire or the media is meant to end a process; what is
// overlooked is a panic, and ends the call, the connection or the goroutine that it is in, with one line for the user.
package panics

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
)

// Contain ends a panic and makes it the error of a function, which defers Contain itself. during says what was going on.
func Contain(during string, err *error) {
	if r := recover(); r != nil {
		*err = Error(during, r)
	}
}

// Error is an EIO that says what recover has returned during something, and where in this program that began. It is called by the
// deferred function that has called recover, while the stack of the panic is still there.
func Error(during string, recovered any) error {
	return &internal{fmt.Sprintf("internal error during %s, please report it: %v, at %s", during, recovered, place())}
}

// internal is an EIO whose text is all that it says.
type internal struct{ text string }

func (e *internal) Error() string { return e.text }

func (e *internal) Unwrap() error { return syscall.EIO }

// place is where the panic under way began. Of one that was passed on by a deferred function, which is another panic
// above it, that is the first place.
func place() string {
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
