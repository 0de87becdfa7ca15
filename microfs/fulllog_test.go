package microfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestFullLog: the log is full and synced, and the state checkpoint that would
// make space is refused. What is mounted after a crash then needs no log page.
func TestFullLog(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			v.f.LogPages = minLogPages
			r := newLogRig(t, v)
			r.fs.ckpt.stop()
			var names []string
			for r.fs.log.Free() > 0 {
				names = append(names, fmt.Sprintf("l%d", len(names)))
				r.fillPage(names[len(names)-1])
				require.NoError(t, r.fs.Sync())
			}
			for refusals := range 3 {
				r.dev.FailAt(nvmf.Write, 1, writeFault)
				err := r.fs.Symlink(strings.Repeat("x", 3400), RootIno, "refused")
				require.ErrorIs(t, err, unix.EIO, "%d", refusals)
				require.NoError(t, r.fs.Sync())
				r.fs = r.again(r.fs)
				r.fs.ckpt.stop()
				r.requireNames(names...)
			}
			r.fillPage("more")
			r.fs = r.again(r.fs)
			r.requireNames(append(names, "more")...)
		})
	}
}

// TestFullLogHeaderRefused: the log is full, and a write of the forced state
// checkpoint is refused: the state, or one of its headers. A sync that follows
// must leave alone the log image that the header names, or will name.
func TestFullLogHeaderRefused(t *testing.T) {
	for _, v := range variants {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s, write %d", v.name, nth), func(t *testing.T) {
				v.f.LogPages = minLogPages
				r := newLogRig(t, v)
				r.fs.ckpt.stop()
				var names []string
				for r.fs.log.Free() > 0 {
					names = append(names, fmt.Sprintf("l%d", len(names)))
					r.fillPage(names[len(names)-1])
				}
				require.NoError(t, r.fs.Sync())
				r.dev.FailAt(nvmf.Write, nth, writeFault)
				require.ErrorIs(t, r.fs.Symlink(strings.Repeat("x", 3400), RootIno, "refused"), unix.EIO)
				require.NoError(t, r.fs.Sync())
				r.fillPage("more")
				r.fs = r.again(r.fs)
				r.requireNames(append(names, "more")...)
			})
		}
	}
}
