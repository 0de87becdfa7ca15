package fabric

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/wiretest"
)

// TestLate cuts the host off at PDU 1, 2, 3, ... of the workload while all it has sent is in flight, and delivers that after the host has
// continued: at once, some operations later, at the end, after a crash. The late commands must not damage data that was acknowledged
// meanwhile.
func TestLate(t *testing.T) {
	for _, s := range someShapes() {
		seen := lengthOf(t, s)[wiretest.ToTarget]
		for i, landing := range []int{4, 2 + crashing, 3 + crashing, atTheEnd, afterACrash} {
			t.Run(fmt.Sprintf("%s/%s", s.name, landingName(landing)), func(t *testing.T) {
				landed, limit := 0, 2
				if landing > crashing && landing < atTheEnd {
					limit = 9 // short ones
				}
				runs := sweep(t, 7*i, some(limit), seen, func(n int) bool {
					struck, l := landLate(t, s, n, landing)
					landed += l
					return struck
				})
				t.Logf("%d PDUs, %d commands landed late", runs, landed)
				// A target that has noticed the crash refuses late commands.
				if !testing.Short() && landing != afterACrash {
					require.Positive(t, landed)
				}
			})
		}
	}
}

const (
	crashing    = 100 // added to a number of operations
	atTheEnd    = 1000
	afterACrash = 1001
)

func landingName(n int) string {
	switch n {
	case atTheEnd:
		return "at the end"
	case afterACrash:
		return "after a crash"
	}
	if n > crashing {
		return fmt.Sprintf("%d operations later, and a crash", n-crashing)
	}
	return fmt.Sprintf("%d operations later", n)
}

// landLate reports whether the workload reached PDU n, and how many commands arrived late.
func landLate(t *testing.T, s shape, n, landing int) (struck bool, landed int) {
	r := newRig(t, s, fmt.Sprintf("PDU %d is late, %s", n, landingName(landing)))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	r.wire.Script(wiretest.At(wiretest.ToTarget, n, wiretest.Keep()))
	w := newWork(r.fs)
	since := 0
	for _, st := range workload() {
		w.run(t, r.what, []step{st})
		if r.wire.Struck() > 0 {
			if since++; since == landing || since+crashing == landing {
				landed += r.wire.Release()
				w.match(t, r.fs, r.what+", landed")
				if since != landing {
					break
				}
			}
		}
	}
	if landing == atTheEnd {
		landed += r.wire.Release()
	}
	struck = r.wire.Struck() > 0
	r.wire.Script(nil)
	w.match(t, r.fs, r.what)
	r.crash()
	if landing == afterACrash {
		landed += r.wire.Release()
	}
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return struck, landed
}

// TestLateMount cuts off all connections of the host while it mounts; for the target they stay open. Commands in flight arrive after the
// next attempt has mounted and continued, and a crash follows.
func TestLateMount(t *testing.T) {
	for _, s := range someShapes() {
		for i, landing := range []int{2, 1, 3, 5} {
			if !*all && i > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", s.name, landingName(landing)), func(t *testing.T) {
				// The mount begins to write at about PDU 29.
				landed, skip, limit := 0, 28, 2
				if *all {
					skip = 0
				} else if i == 0 {
					limit = 9
				}
				runs := sweep(t, i, some(limit), 9, func(n int) bool {
					struck, l := landMount(t, s, skip+n, landing)
					landed += l
					return struck
				})
				t.Logf("%d PDUs, %d commands landed late", runs, landed)
			})
		}
	}
}

func landMount(t *testing.T, s shape, n, landing int) (struck bool, landed int) {
	r := newRig(t, s, fmt.Sprintf("PDU %d of the mount is late, %s", n, landingName(landing)))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	w := newWork(r.fs)
	w.run(t, r.what, []step{mkdir("a"), create("f"), write("f", 0, pattern(50_000, 1))})
	r.crash()
	r.wire.Script(wiretest.At(wiretest.ToTarget, n, wiretest.KeepAll()))
	err := r.tryMount()
	struck = r.wire.Struck() > 0
	r.wire.Script(nil)
	if err != nil {
		require.NoError(t, r.mount(), r.what)
	}
	w.fs = r.fs
	for i := range landing {
		w.run(t, r.what, []step{mkdir(fmt.Sprint("b", i))})
	}
	landed = r.wire.Release()
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return struck, landed
}

// TestLateTight is TestLate with few free hugeblocks and a short log, which are reused soon. Late commands arrive after they have been
// reused.
func TestLateTight(t *testing.T) {
	for _, s := range someShapes() {
		s.length, s.logPages = 6*nvmf.MiB, 16
		for i, landing := range []int{9, atTheEnd} {
			if !*all && landing == 9 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", s.name, landingName(landing)), func(t *testing.T) {
				landed := 0
				runs := sweep(t, 3*i, some(3), 24, func(n int) bool {
					struck, l := landTight(t, s, n, landing)
					landed += l
					return struck
				})
				t.Logf("%d PDUs, %d commands landed late", runs, landed)
				if !testing.Short() {
					require.Positive(t, landed)
				}
			})
		}
	}
}

func landTight(t *testing.T, s shape, n, landing int) (struck bool, landed int) {
	r := newRig(t, s, fmt.Sprintf("tight, PDU %d is late, %s", n, landingName(landing)))
	defer r.close()
	require.NoError(t, r.mount(), r.what)
	w := newWork(r.fs)
	w.run(t, r.what, []step{create("filler"), create("a"), write("a", 0, pattern(40_000, 1)), create("b"), create("c")})
	for i := 0; r.fs.StatFS().Free > 20; i++ {
		w.run(t, r.what, []step{appendTo("filler", pattern(32<<10, uint32(i)))})
	}
	r.wire.Script(wiretest.At(wiretest.ToTarget, n, wiretest.Keep()))
	w.run(t, r.what, []step{
		write("a", 10_000, pattern(50_000, 2)), appendTo("b", pattern(10_000, 3)), symlink("l"), fsync("b"),
		appendTo("b", pattern(10_000, 4)), write("a", 0, pattern(100_000, 5)), truncate("b", 0),
	})
	struck = r.wire.Struck() > 0
	r.wire.Script(nil)
	for i := range 24 {
		w.run(t, r.what, []step{write("c", 0, pattern(60_000, uint32(i))), symlink("s"), unlink("s")})
		if i == landing {
			landed += r.wire.Release()
			w.match(t, r.fs, r.what+", landed")
		}
	}
	landed += r.wire.Release()
	w.match(t, r.fs, r.what)
	r.crash()
	require.NoError(t, r.direct(func(fs *microfs.FS) { w.match(t, fs, r.what+", mounted again") }), r.what)
	return struck, landed
}
