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

// crashRig is one device that dies.
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

// mounted formats, mounts, and ends both with the test.
func mounted(t *testing.T, v variant) (*crashRig, *FS) {
	c := newCrashRig(t, v)
	t.Cleanup(func() { _ = c.dev.Close() })
	fs, err := c.mount()
	require.NoError(t, err)
	return c, fs
}

// again mounts what a crash of fs leaves.
func (c *crashRig) again(fs *FS) *FS {
	fs.ckpt.stop()
	fs, err := c.mount()
	require.NoError(c.t, err)
	c.t.Cleanup(fs.ckpt.stop)
	return fs
}

// workload generates the same operations for the same seed, and the state
// after each: states[i] is what holds after i operations.
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

// isUnflushed asks the log under the lock: the background goroutine uses it too.
func isUnflushed(fs *FS) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.log.Unflushed()
}

// putOff says that the last write has been acknowledged and not been done.
func putOff(fs *FS) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.behind.n > 0
}

// play runs operations until one fails and returns how many were
// acknowledged, and how many of those are durable whatever happens.
func play(fs *FS, ops []op) (acked, durable int) {
	for i, o := range ops {
		if err := o.fs(fs); err != nil {
			return i, durable
		}
		switch {
		case isUnflushed(fs):
		case putOff(fs): // what came before it was done first
			durable = i
		default:
			durable = i + 1
		}
	}
	return len(ops), durable
}

// match returns the number of operations whose outcome fs shows: one of
// [low, high]. The highest wins, since states repeat.
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

// TestCrash cuts the power at every write of a random workload, tears that
// write, and checks that what is mounted afterwards is the state after every
// acknowledged operation, or one more; with a volatile cache, at least after
// the last durable one. Then it crashes during the recovery, recovers, goes on
// with the workload, and compares the end.
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

// crashRecovery cuts the power again while the file system is being mounted,
// a few times.
func (c *crashRig) crashRecovery(r *rand.Rand, what string) {
	c.dev.PowerOn()
	for range r.IntN(3) {
		c.dev.CutAt(1+r.IntN(4), r.IntN(9000))
		fs, err := c.mount()
		if err == nil { // it needed fewer writes than that
			fs.ckpt.stop()
			require.NoError(c.t, c.dev.Crash(r.Uint64()))
		} else {
			require.True(c.t, errors.Is(err, nvmf.ErrConnectionLost) || errors.Is(err, nvmf.ErrUnreachable), "%s: %v", what, err)
		}
		c.dev.Heal()
		c.dev.PowerOn()
	}
}
