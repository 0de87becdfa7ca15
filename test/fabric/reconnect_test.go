package fabric

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/wiretest"
)

// TestSweepReconnect loses one connection, or all, and then injects a fault at PDU 1, 2, 3, ... of what follows: reconnecting,
// identifying the namespace, checking the log, and repeating the operation.
func TestSweepReconnect(t *testing.T) {
	const follow = 70 // PDUs of both directions
	first := []struct {
		name   string
		action wiretest.Action
	}{{"one connection", wiretest.Cut(wiretest.Middle)}, {"all", wiretest.CutAll}}
	second := []struct {
		name   string
		action wiretest.Action
	}{
		{"cut", wiretest.Cut(wiretest.Middle)}, {"cut all", wiretest.CutAll}, {"ended", wiretest.Finish(0)},
		{"damaged", wiretest.Corrupt(17, 4)}, {"delayed", wiretest.Delay(2 * time.Millisecond)}, {"lost", wiretest.Drop},
	}
	for _, s := range []shape{
		{name: "volatile cache", lba: 512, capsule: 8192, cache: true, header: true, data: true},
		{name: "digests", lba: 4096, capsule: 8192, header: true, data: true},
	} {
		seen := lengthOf(t, s)[wiretest.ToTarget]
		for i, a := range first {
			for j, b := range second {
				if !*all && (i+j)%2 == 0 || testing.Short() && j > 2 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s, then %s", s.name, a.name, b.name), func(t *testing.T) {
					step := 1
					if !*all {
						step = follow / some(2)
					}
					for k := 1 + (11*i+5*j)%step; k <= follow; k += step {
						strikeTwice(t, s, a.action, b.action, 1+(k*13+i*7+j)%seen, k)
					}
				})
			}
		}
	}
}

func strikeTwice(t *testing.T, s shape, a, b wiretest.Action, n, k int) {
	r := newRig(t, s, fmt.Sprintf("PDU %d, and %d later", n, k))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	since := -1
	r.wire.Script(func(p *wiretest.PDU) wiretest.Action {
		switch {
		case since < 0 && p.To == wiretest.ToTarget && p.N == n:
			since = 0
			return a
		case since >= 0:
			if since++; since == k {
				return b
			}
		}
		return wiretest.Pass
	})
	w := newWork(r.fs)
	w.run(t, r.what, workload())
	r.wire.Script(nil)
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
}

// TestSweepMount injects a fault at PDU 1, 2, 3, ... of opening the device and mounting. The mount may fail, soon and with a lost
// connection; the next attempt works and finds all data.
func TestSweepMount(t *testing.T) {
	for _, s := range someShapes() {
		for i, a := range []wiretest.Action{
			wiretest.Cut(0), wiretest.Cut(wiretest.Middle), wiretest.Finish(wiretest.Middle), wiretest.CutAll, wiretest.Drop,
		} {
			for _, to := range []wiretest.Direction{wiretest.ToTarget, wiretest.ToHost} {
				if !*all && (int(to) != i%2 || a == wiretest.Drop) { // which is slow
					continue
				}
				t.Run(fmt.Sprintf("%s/%d %s", s.name, i, to), func(t *testing.T) {
					failed := 0
					runs := sweep(t, 3*i+int(to), some(1), 25, func(n int) bool {
						struck, f := strikeMount(t, s, to, n, a)
						if f {
							failed++
						}
						return struck
					})
					t.Logf("%d PDUs, %d mounts failed", runs, failed)
				})
			}
		}
	}
}

func strikeMount(t *testing.T, s shape, to wiretest.Direction, n int, a wiretest.Action) (struck, failed bool) {
	r := newRig(t, s, fmt.Sprintf("mount, PDU %d %s", n, to))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	w := newWork(r.fs)
	w.run(t, r.what, []step{create("f"), write("f", 0, pattern(50_000, 1)), fsync("f"), mkdir("d")})
	r.crash()
	r.wire.Script(wiretest.At(to, n, a))
	begin := time.Now()
	err := r.tryMount()
	require.Less(t, time.Since(begin), patience, r.what)
	struck = r.wire.Struck() > 0
	r.wire.Script(nil)
	if err != nil {
		failed = true
		require.True(t, errors.Is(err, nvmf.ErrConnectionLost) || errors.Is(err, nvmf.ErrUnreachable), "%s: %v", r.what, err)
		require.NoError(t, r.mount(), r.what)
	}
	w.fs = r.fs
	w.run(t, r.what, []step{mkdir("e")})
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return struck, failed
}
