package microfs

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestNothingIsWrittenOnceBroken checks that a file system that learns in the middle of a write or of a
// state checkpoint that another run owns the partition (ErrFenced) writes nothing more to it.
func TestNothingIsWrittenOnceBroken(t *testing.T) {
	skipRace(t)
	for _, op := range []nvmf.Opcode{nvmf.Read, nvmf.Write} {
		for n := 1; ; n++ {
			what := fmt.Sprintf("%v %d", op, n)
			c := newCrashRig(t, variants[0])
			writes := -1
			c.v.o.Reserve = func(context.Context) error {
				writes = c.dev.Count(nvmf.Write)
				return nvmf.ErrFenced
			}
			fs, err := c.mount()
			require.NoError(t, err)
			fs.ckpt.stop()
			h := int64(fs.g.hugeblock)
			f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
			require.NoError(t, err)
			_, err = f.WriteAt([][]byte{pattern(int(4*h), 1)}, 0)
			require.NoError(t, err)
			require.NoError(t, fs.beginCheckpointNow())
			c.dev.DisconnectAt(op, n)
			_, err = f.WriteAt([][]byte{pattern(int(maxBatch), 2)}, 2*h) // ends on a boundary
			if err == nil {
				_, err = f.WriteAt([][]byte{pattern(int(2*h), 3)}, h/2) // ends inside a hugeblock
			}
			for range 4 {
				fs.backgroundStep()
			}
			if writes < 0 {
				require.NoError(t, err)
				require.Greater(t, n, 2, what)
				break
			}
			if err != nil { // if it is nil, the state checkpoint got ErrFenced instead
				require.ErrorIs(t, err, nvmf.ErrFenced, what)
				require.ErrorIs(t, err, unix.EIO, what)
			}
			require.ErrorIs(t, f.Close(), nvmf.ErrFenced, what)
			_ = fs.Unmount()
			require.Equal(t, writes, c.dev.Count(nvmf.Write), "%s: written to a partition that is another's", what)
			require.NoError(t, c.dev.Close())
		}
	}
}

// TestPowerLossInPlan runs losePower with a seed for which a write learns of the loss of power late:
// when it reads a unit that it overwrites in part, after it has planned its first hugeblocks.
func TestPowerLossInPlan(t *testing.T) {
	for _, v := range allVariants {
		if v.cache {
			losePower(t, v, 7215838515651017071)
		}
	}
}
