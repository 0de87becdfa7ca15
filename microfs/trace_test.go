package microfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

const traceSize = 8 * nvmf.MiB

var traceSegment = Segment{Start: nvmf.MiB, Length: traceSize - nvmf.MiB}

// recording is a workload, with the states that a crash during the workload may leave.
type recording struct {
	v     variant
	base  []byte // content of the device before
	trace *blocktest.Trace
	marks []mark
	names []string // of the operations
	found []byte   // content before the last recovery; a field, so that its memory is used again
}

// mark is the state when the trace has that many events.
type mark struct {
	events  int
	state   map[string]string
	durable int                 // index of the oldest mark whose state a crash may leave
	alts    []map[string]string // other possible states: a failed operation had its effect nevertheless
}

// TestTrace records random workloads, with and without refused commands and lost connections. It mounts
// contents that the device may have after a crash at any event, and after another crash during recovery.
// It checks that the state is one after all durable operations, and perhaps some later ones. The same
// state must be there after a state checkpoint, another operation and another crash.
func TestTrace(t *testing.T) {
	workloads, crashes := 3, 50
	if testing.Short() {
		workloads, crashes = 1, 15
	}
	for _, v := range everyVariant {
		for _, faults := range []bool{false, true} {
			if faults && v.o.WriteBehind {
				continue // with write-behind the call that fails is not the one that reports the error
			}
			t.Run(fmt.Sprintf("%s, faults %v", v.name, faults), func(t *testing.T) {
				t.Parallel()
				seed := newSeed(t)
				mem, err := memdev.New(traceSize, v.lba, memdev.Options{VolatileWriteCache: v.cache})
				require.NoError(t, err)
				defer mem.Close()
				for w := range uint64(workloads) {
					rec := record(t, v, seed+w, 70, faults)
					r := rand.New(rand.NewPCG(seed+w, 99))
					for range crashes {
						rec.crash(t, r, mem)
					}
				}
			})
		}
	}
}

// record runs a workload of at most n operations, and adds a mark for the state after each.
func record(t *testing.T, v variant, seed uint64, n int, faults bool) *recording {
	mem, err := memdev.New(traceSize, v.lba, memdev.Options{})
	require.NoError(t, err)
	c := newCrashRigOn(t, mem, traceSegment, v)
	defer c.dev.Close()
	r := rand.New(rand.NewPCG(seed, 77))
	g := &generator{r: rand.New(rand.NewPCG(seed, 0)), m: v.model(), maxFile: 120 << 10}
	fs, err := c.mount()
	require.NoError(t, err)
	fs.ckpt.stop()
	c.dev.Shuffle(seed)
	rec := &recording{v: c.v, base: append([]byte(nil), mem.Bytes()...), marks: []mark{{state: g.m.snapshot()}}}
	c.dev.Record()
	rate := []int{4, 8, 40}[r.IntN(3)] // number of operations for one step of a state checkpoint
	losses := 0
	if faults {
		losses = int(fs.g.logPages / 8)
	}
	var done []op
	var alts []map[string]string
	durable := 0
	for i := range n {
		if mustWait(fs) {
			break
		}
		if r.IntN(rate) == 0 {
			fs.mu.Lock()
			_ = fs.checkpointStep()
			fs.mu.Unlock()
		}
		o := g.next()
		if r.IntN(5) == 0 { // a large record, so that log pages are soon full
			o = symlinkOp(strings.Repeat("t", 1500), fmt.Sprintf("/long%d", i))
		}
		switch {
		case !faults || r.IntN(4) > 0:
		case r.IntN(3) == 0 && losses > 0:
			losses--
			c.dev.DisconnectAt(nvmf.Write, 1+r.IntN(4))
		default:
			c.dev.FailAt(nvmf.Write, 1+r.IntN(3), writeFault)
		}
		err := o.fs(fs)
		c.dev.Heal()
		if err != nil {
			require.True(t, faults && errors.Is(err, syscall.EIO), "%s: %v", o.name, err)
			alts = append(alts, v.after(done, o))
		} else {
			before := rec.marks[len(rec.marks)-1].state
			o.model(g.m)
			done = append(done, o)
			if !maps.Equal(before, g.m.snapshot()) {
				alts = nil // a later change of the log supersedes the failed operations
			}
		}
		switch {
		case isUnflushed(fs):
		case putOff(fs):
			durable = i
		default:
			durable = i + 1
		}
		rec.names = append(rec.names, fmt.Sprintf("%s: %v", o.name, err))
		rec.marks = append(rec.marks, mark{len(c.dev.Recorded().Events), g.m.snapshot(), durable, append([]map[string]string(nil), alts...)})
	}
	rec.trace = c.dev.Recorded()
	require.NoError(t, fs.q.Close())
	return rec
}

// mustWait reports whether the next operation might have to wait for oplog.Quarantine: the log is nearly
// full, and a state checkpoint cannot be written before.
func mustWait(fs *FS) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	late := false
	for _, at := range fs.ckpt.lost {
		late = late || time.Since(at) < oplog.Quarantine
	}
	return late && fs.log.Free() < 4
}

// after returns the state after the operations done and last.
func (v *variant) after(done []op, last op) map[string]string {
	m := v.model()
	for _, o := range append(done[:len(done):len(done)], last) {
		o.model(m)
	}
	return m.snapshot()
}

// allowed returns the states that a crash at event k may leave.
func (rec *recording) allowed(k int) (low, high int, list []map[string]string) {
	for high < len(rec.marks)-1 && rec.marks[high].events < k {
		high++ // the last is the operation in progress
	}
	low = rec.marks[max(0, high-1)].durable
	for _, m := range rec.marks[low : high+1] {
		list = append(append(list, m.state), m.alts...)
	}
	return low, high, list
}

// crash mounts one content that a crash may leave, and checks the state.
func (rec *recording) crash(t *testing.T, r *rand.Rand, mem *memdev.Device) {
	k := 1 + r.IntN(len(rec.trace.Events))
	low, high, allowed := rec.allowed(k)
	what := fmt.Sprintf("crash at event %d of %d, operations %d to %d (%v)",
		k, len(rec.trace.Events), low, high, rec.names[max(0, high-4):high])
	data := mem.Bytes()
	copy(data, rec.base)
	crashMedia(r, data, rec.trace, k, int(rec.v.lba), rec.v.cache)
	if r.IntN(3) == 0 {
		rec.crashRecovery(t, r, mem, what)
		what += ", and in the recovery"
	}
	fs := rec.mount(t, mem, what)
	got := snapshotFS(t, fs)
	ok := false
	for _, s := range allowed {
		ok = ok || maps.Equal(s, got)
	}
	if !ok {
		require.Equal(t, rec.marks[high].state, got, what)
	}
	require.NoError(t, fs.Checkpoint(), what)
	require.NoError(t, fs.Mkdir(RootIno, "goes-on", 0o700), what)
	require.NoError(t, fs.q.Close())
	fs = rec.mount(t, mem, what)
	again := snapshotFS(t, fs)
	require.Contains(t, again, "/goes-on", what)
	delete(again, "/goes-on")
	require.Equal(t, got, again, what)
	require.NoError(t, fs.q.Close())
}

// lent is a device whose Close does nothing, because others still use it.
type lent struct{ nvmf.Device }

func (lent) Close() error { return nil }

// crashRecovery mounts mem and leaves in mem what a crash at a random event of the mount may leave.
func (rec *recording) crashRecovery(t *testing.T, r *rand.Rand, mem *memdev.Device, what string) {
	data := mem.Bytes()
	rec.found = append(rec.found[:0], data...)
	dev, err := blocktest.NewFaulty(lent{mem})
	require.NoError(t, err)
	defer dev.Close()
	if rec.v.cache {
		dev.UseVolatileCache()
	}
	dev.Shuffle(r.Uint64())
	dev.Record()
	fs := rec.mount(t, dev, what)
	require.NoError(t, fs.q.Close())
	tr := dev.Recorded()
	copy(data, rec.found)
	crashMedia(r, data, tr, r.IntN(len(tr.Events)+1), int(rec.v.lba), rec.v.cache)
}

func (rec *recording) mount(t *testing.T, dev nvmf.Device, what string) *FS {
	fs, err := Mount(context.Background(), dev, traceSegment, rec.v.o)
	require.NoError(t, err, what)
	fs.ckpt.stop()
	return fs
}
