// Package progress shows the progress of a long measurement on a terminal. It writes
// nothing to a pipe or a file.
package progress

import (
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sys/unix"
)

// A Bar is a line on the terminal that is redrawn and removed at the end. The zero Bar
// and a nil Bar show nothing. A Bar is not safe for concurrent use.
//
// The bar is redrawn only by calls, so that it does not run during a measurement. The
// caller calls it between two measurements.
type Bar struct{ bar *progressbar.ProgressBar }

// Start starts a bar on screen, if that is a terminal.
func Start(screen *os.File) *Bar {
	if !isTerminal(screen) {
		return &Bar{}
	}
	return &Bar{progressbar.NewOptions(whole, progressbar.OptionSetWriter(screen), progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetRenderBlankState(true), progressbar.OptionClearOnFinish())}
}

// whole is the length of the bar in steps.
const whole = 1000

// Show shows the current step, and the finished part of the whole, from 0 to 1.
func (b *Bar) Show(what string, part float64) {
	if b != nil && b.bar != nil {
		b.bar.Describe(what)
		// A bar that cannot be drawn must not stop the measurement. A full bar would disappear.
		_ = b.bar.Set(int(whole * min(max(part, 0), 0.999)))
	}
}

// End removes the bar.
func (b *Bar) End() {
	if b != nil && b.bar != nil {
		_ = b.bar.Exit()
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
