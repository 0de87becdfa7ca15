package microfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestFullLog fills and syncs the log, and has the device refuse the state checkpoint that would free
// log pages. It checks that a mount after a crash works, although no log page is free for it.
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

// TestFullLogHeaderRefused fills the log, and has the device refuse one write of the state checkpoint
// that this forces: the state, or one of its headers. The test checks that a Sync after that does not
// overwrite the log image that a header names or is going to name: nothing may be missing after a crash.
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
