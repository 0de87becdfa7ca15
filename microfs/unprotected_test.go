package microfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestDamageAfterLostMirror loses the connection with a log image in flight, for an operation that then
// fails. The slot of that image cannot take the copy of the log page that Sync writes. The test checks
// that a read of synced bytes that were damaged fails with EIO all the same: recovery must not treat
// them as a write that a crash cut short. In a full log Sync needs a state checkpoint for that.
func TestDamageAfterLostMirror(t *testing.T) {
	for _, v := range variants {
		for _, full := range []bool{false, true} {
			if !v.f.NoDataCRC {
				t.Run(fmt.Sprintf("%s, full log %v", v.name, full), func(t *testing.T) { damageAfterLostMirror(t, v, full) })
			}
		}
	}
}

func damageAfterLostMirror(t *testing.T, v variant, full bool) {
	v.f.LogPages = minLogPages
	c, fs := mounted(t, v)
	fs.ckpt.stop()
	for i := 0; full && fs.log.Free() > 0; i++ {
		require.NoError(t, fs.Symlink(strings.Repeat("x", 3400), RootIno, fmt.Sprintf("l%d", i)))
	}
	f := openNew(t, fs, "f")
	want := pattern(3000, 1)
	_, err := f.WriteAt([][]byte{want}, 0)
	require.NoError(t, err)
	x := *f.in.extents.last()
	c.dev.DisconnectAt(nvmf.Write, 1)
	c.dev.FailAt(nvmf.Write, 2, writeFault)
	require.ErrorIs(t, fs.Mkdir(RootIno, "d", 0o700), unix.EIO)
	c.dev.Heal()
	require.NoError(t, f.Sync())
	g := fs.g
	require.NoError(t, c.dev.Rot(g.lbaOf(g.dataOffset(x.phys)), func(b []byte) { b[7] ^= 1 }))
	fs = c.again(fs)
	a, err := fs.Stat(RootIno, "f", false)
	require.NoError(t, err)
	require.EqualValues(t, len(want), a.Size)
	f, err = fs.Open(RootIno, "f", unix.O_RDONLY, 0)
	require.NoError(t, err)
	_, err = f.ReadAt([][]byte{make([]byte, 3000)}, 0)
	require.ErrorIs(t, err, unix.EIO)
}
