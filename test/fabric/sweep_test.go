package fabric

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf/wiretest"
)

// fault is something that happens to PDU n.
type fault struct {
	name   string
	action func(n int) wiretest.Action
	// sample is the number of PDUs tried without -all, for each direction and shape.
	sample int
}

func always(a wiretest.Action) func(int) wiretest.Action {
	return func(int) wiretest.Action { return a }
}

// faults are faults that only cause a pause for the application.
var faults = []fault{
	{"cut before", always(wiretest.Cut(0)), 3},
	{"cut in the middle", always(wiretest.Cut(wiretest.Middle)), 3},
	{"cut after", always(wiretest.Cut(wiretest.End)), 2},
	{"cut at some byte", func(n int) wiretest.Action { return wiretest.Cut(n * 37 % 300) }, 3},
	{"truncated", always(wiretest.Finish(wiretest.Middle)), 2},
	{"ended", always(wiretest.Finish(wiretest.End)), 2},
	{"delayed", always(wiretest.Delay(2 * time.Millisecond)), 1},
	{"delayed beyond the time-out", always(wiretest.Delay(2 * commandTimeout)), 1},
	{"out of order", always(wiretest.Swap(5 * time.Millisecond)), 2},
	{"lost", always(wiretest.Drop), 1},
	{"frozen", always(wiretest.Freeze(10 * time.Millisecond)), 1},
}

// sweep calls run for n = 1, 2, 3, ... until it returns false, or for a sample of about limit of the seen PDUs.
func sweep(t *testing.T, first, limit, seen int, run func(n int) bool) (runs int) {
	stride := 1
	if !*all {
		stride = max(1, seen/limit)
	}
	for n := 1 + first%stride; (*all || n <= seen) && run(n); n += stride {
		if runs++; t.Failed() {
			break
		}
	}
	return runs
}

// someShapes is all shapes, or one with -short.
func someShapes() []shape {
	if testing.Short() {
		return shapes[2:]
	}
	return shapes
}

// some returns n, or 1 with -short.
func some(n int) int {
	if testing.Short() {
		return 1
	}
	return n
}

// TestSweep injects each fault at PDU 1, 2, 3, ... of the workload, in each direction.
func TestSweep(t *testing.T) {
	for _, s := range someShapes() {
		seen := lengthOf(t, s)
		for i, f := range faults {
			if testing.Short() && i%3 != 0 {
				continue
			}
			for _, to := range []wiretest.Direction{wiretest.ToTarget, wiretest.ToHost} {
				t.Run(fmt.Sprintf("%s/%s/%s", s.name, f.name, to), func(t *testing.T) {
					runs := sweep(t, 17*i+int(to), some(f.sample), seen[to], func(n int) bool {
						return strikeOnce(t, s, f, to, n)
					})
					t.Logf("%d PDUs", runs)
				})
			}
		}
	}
}

// lengthOf returns the number of PDUs of the workload in each direction.
func lengthOf(t *testing.T, s shape) (seen [2]int) {
	r := newRig(t, s, "undisturbed")
	defer r.close()
	require.NoError(t, r.mount())
	r.wire.Script(nil)
	w := newWork(r.fs)
	w.run(t, r.what, workload())
	for to := range seen {
		seen[to] = r.wire.Seen(wiretest.Direction(to))
	}
	return seen
}

// strikeOnce runs the workload with a fault at PDU n. It returns false if the workload has fewer PDUs.
func strikeOnce(t *testing.T, s shape, f fault, to wiretest.Direction, n int) bool {
	r := newRig(t, s, fmt.Sprintf("%s, PDU %d %s", f.name, n, to))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	r.wire.Script(wiretest.At(to, n, f.action(n)))
	w := newWork(r.fs)
	w.run(t, r.what, workload())
	struck := r.wire.Struck() > 0
	r.wire.Script(nil)
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return struck
}
