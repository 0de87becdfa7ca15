package microfs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

var crashSegment = Segment{Start: nvmf.MiB, Length: 14 * nvmf.MiB}

// crashRig is a formatted partition on a device that can fail, lose its connection or lose power.
type crashRig struct {
	t   *testing.T
	dev *blocktest.Faulty
	seg Segment
	v   variant
}

func newCrashRig(t *testing.T, v variant) *crashRig {
	mem, err := memdev.New(16*nvmf.MiB, v.lba, memdev.Options{})
	require.NoError(t, err)
	return newCrashRigOn(t, mem, crashSegment, v)
}

// newCrashRigOn formats a segment of mem.
func newCrashRigOn(t *testing.T, mem nvmf.Device, seg Segment, v variant) *crashRig {
	dev, err := blocktest.NewFaulty(mem)
	require.NoError(t, err)
	if v.cache {
		dev.UseVolatileCache()
	}
	v.f.Generation, v.o.Generation = 7, 7
	require.NoError(t, Format(context.Background(), dev, seg, v.f))
	return &crashRig{t: t, dev: dev, seg: seg, v: v}
}

func (c *crashRig) mount() (*FS, error) {
	return Mount(context.Background(), c.dev, c.seg, c.v.o)
}

// mounted formats and mounts a file system, and closes the device at the end of the test.
func mounted(t *testing.T, v variant) (*crashRig, *FS) {
	c := newCrashRig(t, v)
	t.Cleanup(func() { _ = c.dev.Close() })
	fs, err := c.mount()
	require.NoError(t, err)
	return c, fs
}

// again mounts the partition once more, as if the process that has mounted fs was killed.
func (c *crashRig) again(fs *FS) *FS {
	fs.ckpt.stop()
	fs, err := c.mount()
	require.NoError(c.t, err)
	c.t.Cleanup(fs.ckpt.stop)
	return fs
}

// workload generates n operations, always the same for a seed. states[i] is the state after i operations.
func (v *variant) workload(seed uint64, n int) (ops []op, states []map[string]string) {
	return (&generator{r: rand.New(rand.NewPCG(seed, 0)), m: v.model(), maxFile: 300 << 10}).workload(n)
}

func (g *generator) workload(n int) (ops []op, states []map[string]string) {
	states = append(states, g.m.snapshot())
	for range n {
		o := g.next()
		o.model(g.m)
		ops = append(ops, o)
		states = append(states, g.m.snapshot())
	}
	return ops, states
}

// isUnflushed reports whether the log has records that are not durable. It takes the lock because the
// background goroutine uses the log, too.
func isUnflushed(fs *FS) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.log.Unflushed()
}

// putOff reports whether the last write is still in the buffer for write-behind.
func putOff(fs *FS) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.behind.n > 0
}

// play runs operations until one fails. It returns how many succeeded, and how many of those are durable,
// whatever happens.
func play(fs *FS, ops []op) (acked, durable int) {
	for i, o := range ops {
		if err := o.fs(fs); err != nil {
			return i, durable
		}
		switch {
		case isUnflushed(fs):
		case putOff(fs): // all operations before the buffered write are on the device
			durable = i
		default:
			durable = i + 1
		}
	}
	return len(ops), durable
}

// match checks that fs has the state after low to high operations, and returns the number of operations.
// If several numbers lead to that state it returns the highest.
func match(t *testing.T, fs *FS, states []map[string]string, low, high int, what string) int {
	got := snapshotFS(t, fs)
	for i := min(high, len(states)-1); i >= low; i-- {
		if fmt.Sprint(got) == fmt.Sprint(states[i]) {
			return i
		}
	}
	require.Equal(t, states[min(high, len(states)-1)], got, "%s: no state of %d to %d operations", what, low, high)
	return 0
}

// TestCrash cuts the power at every Write command of a random workload and tears that write. It may cut
// the power again during recovery. Then it checks that the mounted state is the one after all
// acknowledged operations, or one more. With a volatile write cache acknowledged operations after the
// last durable one may be missing. Finally it plays the rest of the workload and checks the last state.
func TestCrash(t *testing.T) {
	seeds := 3
	if testing.Short() {
		seeds = 1
	}
	notFenced := variant{name: "not fenced", lba: 4096, o: Options{Claimed: notFenced}}
	for _, v := range append(slices.Clone(everyVariant), notFenced) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			base := newSeed(t)
			images := 0
			for s := range seeds {
				seed := base + uint64(s)
				ops, states := v.workload(seed, 60)
				for cut := 1; ; cut += sweepStep {
					if !crashOnce(t, v, seed, cut, ops, states) {
						break
					}
					images++
				}
			}
			t.Logf("%d crashes", images)
			require.Greater(t, images, 40/sweepStep)
		})
	}
}

func crashOnce(t *testing.T, v variant, seed uint64, cut int, ops []op, states []map[string]string) bool {
	what := fmt.Sprintf("seed %d cut %d", seed, cut)
	r := rand.New(rand.NewPCG(seed, uint64(cut)))
	c := newCrashRig(t, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	c.dev.Shuffle(r.Uint64())
	c.dev.CutAt(cut, r.IntN(9000))
	acked, durable := play(fs, ops)
	if acked == len(ops) {
		fs.ckpt.stop()
		return false
	}
	fs.ckpt.stop()
	if !v.cache && !v.o.WriteBehind {
		durable = acked
	}
	c.crashRecovery(r, what)
	fs, err = c.mount()
	require.NoError(t, err, what)
	at := match(t, fs, states, durable, acked+1, what)
	rest, _ := play(fs, ops[at:])
	require.Equal(t, len(ops)-at, rest, "%s: going on from %d", what, at)
	match(t, fs, states, len(ops), len(ops), what+" at the end")
	fs.ckpt.stop()
	fs, err = c.mount()
	require.NoError(t, err, what)
	match(t, fs, states, len(ops), len(ops), what+" mounted again")
	require.NoError(t, fs.Unmount())
	return true
}

// crashRecovery cuts the power a few more times, each time while the file system is mounted.
func (c *crashRig) crashRecovery(r *rand.Rand, what string) {
	c.dev.PowerOn()
	for range r.IntN(3) {
		c.dev.CutAt(1+r.IntN(4), r.IntN(9000))
		fs, err := c.mount()
		if err == nil { // the mount needed fewer writes than CutAt waits for
			fs.ckpt.stop()
			require.NoError(c.t, c.dev.Crash(r.Uint64()))
		} else {
			require.True(c.t, errors.Is(err, nvmf.ErrConnectionLost) || errors.Is(err, nvmf.ErrUnreachable), "%s: %v", what, err)
		}
		c.dev.Heal()
		c.dev.PowerOn()
	}
}
