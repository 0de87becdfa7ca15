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
// make room is refused. What is mounted after a crash then needs no log page.
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
