package microfs

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/oplog"
)

// TestPowerLossWhileMounted has a target with a volatile write cache lose power while the file system is
// mounted. It checks that either nothing is lost, or the next call that needs the device and all later
// calls fail with EIO. After a remount at least everything that was flushed is there.
func TestPowerLossWhileMounted(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	for _, v := range everyVariant {
		if !v.cache {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			base := newSeed(t)
			lost, kept := 0, 0
			for i := range uint64(rounds) {
				if losePower(t, v, base+i) {
					lost++
				} else {
					kept++
				}
			}
			t.Logf("%d times something was lost, %d times everything was there", lost, kept)
			require.Positive(t, lost)
			require.Positive(t, kept)
		})
	}
}

// losePower plays a workload with a loss of power in the middle. It returns whether the file system
// reported that something was lost.
func losePower(t *testing.T, v variant, seed uint64) bool {
	what := fmt.Sprintf("seed %d", seed)
	c := newCrashRig(t, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	fs.ckpt.stop()
	c.dev.Shuffle(seed)
	n := int(seed%37) + 1
	ops, states := v.workload(seed, n+10)
	acked, durable := play(fs, ops[:n])
	require.Equal(t, n, acked, what)
	if seed%3 == 0 { // in the middle of a state checkpoint
		_ = fs.beginCheckpointNow()
	}
	require.NoError(t, c.dev.Crash(seed))
	c.dev.PowerOn()
	var at int // operations that succeeded; those that need no device succeed even after a loss
	for at = n; at < len(ops) && err == nil; at++ {
		err = ops[at].fs(fs)
	}
	if err != nil {
		require.ErrorIs(t, err, unix.EIO, what)
		require.ErrorIs(t, err, errPowerLost, what)
		require.Less(t, durable, n, "%s: nothing was unflushed", what)
		require.ErrorIs(t, fs.Mkdir(RootIno, "more", 0o700), unix.EIO, what)
		_, err := fs.Stat(RootIno, "/.", false)
		require.ErrorIs(t, err, unix.EIO, what)
		fs, err = c.mount()
		require.NoError(t, err, what)
		match(t, fs, states, durable, at, what)
		fs.ckpt.stop()
		return true
	}
	require.True(t, maps.Equal(states[len(ops)], snapshotFS(t, fs)), what)
	if err := fs.Checkpoint(); err != nil { // a chunk of the state checkpoint before was in flight
		require.ErrorIs(t, err, oplog.ErrUnstable, what)
	}
	require.NoError(t, fs.Sync(), what)
	require.NoError(t, c.dev.Crash(seed))
	c.dev.PowerOn()
	fs, err = c.mount()
	require.NoError(t, err, what)
	require.Equal(t, states[len(ops)], snapshotFS(t, fs), what)
	fs.ckpt.stop()
	return false
}

// beginCheckpointNow takes the first steps of a state checkpoint.
func (fs *FS) beginCheckpointNow() error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	err := fs.checkpointStep()
	if err == nil {
		err = fs.checkpointStep()
	}
	return err
}
