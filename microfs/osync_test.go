package microfs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestOpenedForSync checks that bytes written to a file opened with O_SYNC or O_DSYNC survive a loss of
// power, and that such a write fails with EIO if its Flush fails.
func TestOpenedForSync(t *testing.T) {
	for _, v := range allVariants {
		for _, flag := range []int{unix.O_SYNC, unix.O_DSYNC} {
			for _, behind := range []bool{false, true} {
				what := fmt.Sprintf("%s, flag %#x, behind %v", v.name, flag, behind)
				v.o.WriteBehind = behind
				c, fs := mounted(t, v)
				fs.ckpt.stop()
				f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR|flag, 0o600)
				require.NoError(t, err)
				n, err := f.WriteAt([][]byte{pattern(5000, 1)}, 0)
				require.NoError(t, err, what)
				require.Equal(t, 5000, n)
				n, end, err := f.Append([][]byte{pattern(300, 2)})
				require.NoError(t, err, what)
				require.Equal(t, 300, n)
				require.EqualValues(t, 5300, end)
				require.False(t, fs.log.Unflushed(), what)
				require.NoError(t, c.dev.Crash(1))
				c.dev.PowerOn()
				fs = c.again(fs)
				f, err = fs.Open(RootIno, "f", unix.O_RDWR|flag, 0)
				require.NoError(t, err, what)
				got := make([]byte, 6000)
				n, err = f.ReadAt([][]byte{got}, 0)
				require.NoError(t, err, what)
				require.Equal(t, append(pattern(5000, 1), pattern(300, 2)...), got[:n], what)
				if !v.cache {
					continue
				}
				c.dev.FailAt(nvmf.Flush, 1, &nvmf.StatusError{Opcode: nvmf.Flush, SC: 6})
				n, err = f.WriteAt([][]byte{{1}}, 0)
				require.ErrorIs(t, err, unix.EIO, what)
				require.Zero(t, n, what)
			}
		}
	}
}
