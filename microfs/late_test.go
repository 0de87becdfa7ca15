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

// TestLateStateChunk loses the connection with a chunk of a state checkpoint in flight, which the target
// may execute late. That checkpoint succeeds, since it writes the same bytes again, and the next one
// succeeds, since it uses the other area. The test checks that the one after that fails with
// ErrUnstable: it would write the area in which the late chunk can still land.
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

// TestLateStateChunkIsOver checks that state checkpoints work again once the lost connection is longer
// ago than the quarantine.
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

// TestRefusedAndLost has the device refuse one command of a write, and loses the connection with a later
// command of the same write in flight. The target may execute that command late, so the test checks
// that its hugeblocks are not used again.
func TestRefusedAndLost(t *testing.T) {
	for _, v := range []variant{variants[0], variants[6], variants[7]} {
		t.Run(v.name, func(t *testing.T) {
			c, fs := mounted(t, v)
			f := openNew(t, fs, "f")
			c.dev.FailAt(nvmf.Write, 1, writeFault)
			c.dev.DisconnectAt(nvmf.Write, 3)
			_, _ = f.WriteAt([][]byte{pattern(512<<10, 1)}, 0) // the test does not depend on its result
			c.dev.Heal()
			var want []byte // fills all free space
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

// TestLateAfterDeath has a writer die with the commands of an operation in flight. The target executes
// them after another process, which could not fence off the first one, has mounted and written. It
// checks that the late commands destroy nothing that the second process wrote: its log pages, its
// partly filled hugeblocks, and new hugeblocks, as long as the pool has not been used up once.
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

// lateAfterDeath appends to three files in random order until the first writer dies, and goes on with
// a second mount. It returns how many late commands the target executed.
func lateAfterDeath(t *testing.T, v variant, seed uint64) int {
	what := fmt.Sprintf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 5))
	v.o.Claimed = notFenced
	v.f.LogPages = max(v.f.LogPages, 64) // a full log needs a state checkpoint, which would have to wait
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
	for i := range want { // the last write of the dead writer may have had its effect
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

// deadQueue cannot be reset: the process that uses it never reconnects.
type deadQueue struct{ nvmf.Queue }

func (*deadQueue) Reset(context.Context) error { return nvmf.ErrUnreachable }

// TestLateChunkOfTheDead has a writer die with a chunk of a state checkpoint in flight. The target
// executes it after another process, which could not fence off the first one, has mounted. The test
// checks that the second process does not write a state to the area in which the chunk can still land.
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

// notFenced is an Options.Claimed that says that commands of the last writer may still be executed.
func notFenced(*Claim) (Late, error) { return LateAny, nil }
