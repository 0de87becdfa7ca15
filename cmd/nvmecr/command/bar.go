package command

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// A bar is a progress bar of bytes, drawn only on a terminal. Several goroutines may call add.
type bar struct{ bar *progressbar.ProgressBar }

func (b *bar) begin(w io.Writer, total nvmf.Bytes, what string) {
	screen, ok := w.(*os.File)
	if !ok || !isTerminal(screen) {
		return
	}
	b.bar = progressbar.NewOptions64(int64(total), progressbar.OptionSetWriter(screen),
		progressbar.OptionSetDescription(what), progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true),
		progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetRenderBlankState(true), progressbar.OptionClearOnFinish())
}

// add ignores errors: a bar that cannot be drawn must not fail the command.
func (b *bar) add(n nvmf.Bytes) {
	if b.bar != nil {
		_ = b.bar.Add64(int64(n))
	}
}

func (b *bar) finish() {
	if b.bar != nil {
		_ = b.bar.Finish()
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
