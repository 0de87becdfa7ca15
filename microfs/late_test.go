package microfs

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// TestLateStateChunk loses the connection with a part of a state checkpoint in
// flight. That checkpoint can be finished, since it repeats the same bytes, and
// the next one uses the other area; the one after it has to wait until the
// late bytes can no longer land in its area.
func TestLateStateChunk(t *testing.T) {
	for _, landing := range []string{"while it waits", "at once", "never"} {
		t.Run(landing, func(t *testing.T) {
			c, fs := mounted(t, variants[0])
			fs.ckpt.stop()
			c.dev.Shuffle(1)
			release := func(when string) {
				if when == landing {
					n, err := c.dev.Release()
					require.NoError(t, err)
					require.Equal(t, 1, n)
				}
			}
			require.NoError(t, fs.Mkdir(RootIno, "a", 0o700))
			require.NoError(t, fs.Sync())
			c.dev.DisconnectAt(nvmf.Write, 1)
			require.NoError(t, fs.Checkpoint())
			release("at once")
			require.NoError(t, fs.Mkdir(RootIno, "b", 0o700))
			require.NoError(t, fs.Checkpoint())
			require.NoError(t, fs.Mkdir(RootIno, "c", 0o700))
			require.ErrorIs(t, fs.Checkpoint(), oplog.ErrUnstable)
			require.NoError(t, fs.Mkdir(RootIno, "d", 0o700), "only the state checkpoint has to wait")
			release("while it waits")
			want := snapshotFS(t, fs)
			require.Len(t, want, 5)
			require.Equal(t, want, snapshotFS(t, c.again(fs)))
		})
	}
}

// TestLateStateChunkIsOver: the wait ends.
func TestLateStateChunkIsOver(t *testing.T) {
	c, fs := mounted(t, variants[0])
	require.NoError(t, fs.Sync())
	c.dev.DisconnectAt(nvmf.Write, 1)
	require.NoError(t, fs.Checkpoint())
	require.NoError(t, fs.Checkpoint())
	require.ErrorIs(t, fs.Checkpoint(), oplog.ErrUnstable)
	for i := range fs.ckpt.lost {
		if !fs.ckpt.lost[i].IsZero() {
			fs.ckpt.lost[i] = fs.ckpt.lost[i].Add(-oplog.Quarantine)
		}
	}
	for range 3 {
		require.NoError(t, fs.Checkpoint())
	}
	require.NoError(t, fs.Unmount())
}

// TestRefusedAndLost: of the commands of one write, one is refused and the
// connection is lost with a later one in flight. It may still land, so what it
// was going to is not used again.
func TestRefusedAndLost(t *testing.T) {
	for _, v := range []variant{variants[0], variants[6], variants[7]} {
		t.Run(v.name, func(t *testing.T) {
			c, fs := mounted(t, v)
			f := openNew(t, fs, "f")
			c.dev.FailAt(nvmf.Write, 1, writeFault)
			c.dev.DisconnectAt(nvmf.Write, 3)
			_, _ = f.WriteAt([][]byte{pattern(512<<10, 1)}, 0) // done or refused: both will do
			c.dev.Heal()
			var want []byte // all the space there is
			for {
				piece := pattern(512<<10, 2)
				n, err := f.WriteAt([][]byte{piece}, int64(len(want)))
				want = append(want, piece[:n]...)
				if err != nil {
					require.ErrorIs(t, err, unix.ENOSPC)
					break
				}
			}
			require.NoError(t, f.Sync())
			n, err := c.dev.Release()
			require.NoError(t, err)
			require.Positive(t, n, "nothing was in flight")
			got := make([]byte, len(want))
			_, err = f.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
	}
}
