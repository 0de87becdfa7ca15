// Package progress shows how far a long measurement is, on a terminal only: a
// pipe or a file gets nothing.
package progress

import (
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sys/unix"
)

// A Bar is a line on the terminal that is drawn over and over and goes away in
// the end. The zero Bar and a nil one show nothing. For one goroutine.
//
// It is drawn only when told to, so that nothing of it runs during a
// measurement: tell it between two.
type Bar struct{ bar *progressbar.ProgressBar }

// Start starts a bar on screen, if that is a terminal.
func Start(screen *os.File) *Bar {
	if !IsTerminal(screen) {
		return &Bar{}
	}
	return &Bar{progressbar.NewOptions(whole, progressbar.OptionSetWriter(screen), progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetRenderBlankState(true), progressbar.OptionClearOnFinish())}
}

// whole is all of it, in the bar's steps.
const whole = 1000

// Show says what is being done, and which part of all is done, from 0 to 1.
func (b *Bar) Show(what string, part float64) {
	if b != nil && b.bar != nil {
		b.bar.Describe(what)
		// That a bar cannot be drawn is no reason to stop. One that is full goes.
		_ = b.bar.Set(int(whole * min(max(part, 0), 0.999)))
	}
}

// End takes the bar away.
func (b *Bar) End() {
	if b != nil && b.bar != nil {
		_ = b.bar.Exit()
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// IsTerminal says whether somebody may be watching f.
func IsTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
