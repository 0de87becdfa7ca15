// Package panics makes errors of panics. No input from the wire or the media is meant to end a process; what is
// overlooked is a panic, and ends the call, the connection or the goroutine that it is in, with one line for the user.
package panics

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
)

// Contain recovers from a panic and makes it the error of a function, which defers Contain itself. during describes what the function
// does.
func Contain(during string, err *error) {
	if r := recover(); r != nil {
		*err = Error(during, r)
	}
}

// Error returns an EIO with the value of recover, and the place in this program at which the panic began. The deferred function that
// has called recover calls it, while the stack of the panic still exists.
func Error(during string, recovered any) error {
	return &internal{fmt.Sprintf("internal error during %s, please report it: %v, at %s", during, recovered, place())}
}

// internal is an EIO with a text.
type internal struct{ text string }

func (e *internal) Error() string { return e.text }

func (e *internal) Unwrap() error { return syscall.EIO }

// place returns where the panic in progress began. If a deferred function has passed a panic on, it is the place of the first one.
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
