package microfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// TestLateAfterDeath: a writer dies with the commands of an operation in
// flight. They land after another process, which no fence separates from it,
// has mounted and gone on. The log, half-filled hugeblocks and, as long as the
// pool has not gone round, new ones are out of their way.
func TestLateAfterDeath(t *testing.T) {
	skipRace(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			rounds := uint64(30)
			if testing.Short() {
				rounds = 6
			}
			landed := 0
			for seed := range rounds {
				landed += lateAfterDeath(t, v, seed)
			}
			require.Positive(t, landed)
		})
	}
}

// lateAfterDeath appends to three files in turns, dies while it does, and goes
// on in another process.
func lateAfterDeath(t *testing.T, v variant, seed uint64) int {
	what := fmt.Sprintf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 5))
	v.o.Claimed = notFenced
	v.f.LogPages = max(v.f.LogPages, 64) // a full log would wait for a state checkpoint
	c := newCrashRig(t, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err, what)
	c.dev.Shuffle(seed)
	want := make([][]byte, 3)
	write := func(fs *FS) error {
		i, n := r.IntN(3), 1+r.IntN(60_000)
		f, err := fs.Open(RootIno, fmt.Sprintf("f%d", i), unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		b := pattern(n, byte(r.Uint32()))
		if _, err = f.WriteAt([][]byte{b}, int64(len(want[i]))); err == nil {
			want[i] = append(want[i], b...)
		}
		return errors.Join(err, f.Close())
	}
	for range r.IntN(20) {
		require.NoError(t, write(fs), what)
	}
	fs.ckpt.stop()
	c.dev.DisconnectAt(nvmf.Write, 1+r.IntN(20))
	fs.q = &deadQueue{fs.q}
	for write(fs) == nil {
	}
	fs, err = c.mount()
	require.NoError(t, err, what)
	fs.ckpt.stop()
	for i := range want { // the write in progress may be there
		a, err := fs.Stat(RootIno, fmt.Sprintf("f%d", i), false)
		if len(want[i]) > 0 || err == nil {
			require.NoError(t, err, what)
			require.GreaterOrEqual(t, a.Size, int64(len(want[i])), what)
			want[i] = readWhole(t, fs, fmt.Sprintf("f%d", i))
		}
	}
	for range 20 {
		require.NoError(t, write(fs), what)
	}
	landed, err := c.dev.Release()
	require.NoError(t, err)
	for range 2 {
		for i := range want {
			if len(want[i]) > 0 {
				require.True(t, bytes.Equal(want[i], readWhole(t, fs, fmt.Sprintf("f%d", i))), what)
			}
		}
		fs = c.again(fs)
		fs.ckpt.stop()
	}
	return landed
}

func readWhole(t *testing.T, fs *FS, name string) []byte {
	f, err := fs.Open(RootIno, name, unix.O_RDONLY, 0)
	require.NoError(t, err)
	a, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, a.Size)
	_, err = f.ReadAt([][]byte{b}, 0)
	require.NoError(t, err, name)
	require.NoError(t, f.Close())
	return b
}

// deadQueue does not come back.
type deadQueue struct{ nvmf.Queue }

func (*deadQueue) Reset(context.Context) error { return nvmf.ErrUnreachable }

// TestLateChunkOfTheDead: a writer dies with a part of a state checkpoint in
// flight. It lands after another process, which no fence separates from it, has
// written its own state: that must not lie in the same area.
func TestLateChunkOfTheDead(t *testing.T) {
	v := variants[0]
	v.o.Claimed = notFenced
	c, dead := mounted(t, v)
	dead.ckpt.stop()
	require.NoError(t, dead.Mkdir(RootIno, "a", 0o700))
	require.NoError(t, dead.Sync())
	c.dev.DisconnectAt(nvmf.Write, 1)
	dead.q = &deadQueue{dead.q}
	require.Error(t, dead.Checkpoint())

	fs, err := c.mount()
	require.NoError(t, err)
	t.Cleanup(fs.ckpt.stop)
	require.NoError(t, fs.Mkdir(RootIno, "b", 0o700))
	require.ErrorIs(t, fs.Checkpoint(), oplog.ErrUnstable)
	n, err := c.dev.Release()
	require.NoError(t, err)
	require.Positive(t, n)
	want := snapshotFS(t, fs)
	require.Len(t, want, 3)
	require.Equal(t, want, snapshotFS(t, c.again(fs)))
}

// notFenced lets a mount take over from a writer whose last commands may land.
func notFenced(*Claim) (Late, error) { return LateAny, nil }
