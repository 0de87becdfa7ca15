package microfs

import (
	"testing"

	"github.com/stretchr/testify/require"

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
