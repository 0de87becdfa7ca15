package microfs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// scattered returns a workload that leaves the free hugeblocks scattered, and then makes writes that
// take several log groups each. It also returns the states after each number of operations.
func scattered() (ops []op, states []map[string]string) {
	m := newModel()
	add := func(o op) {
		o.model(m)
		ops, states = append(ops, o), append(states, m.snapshot())
	}
	states = append(states, m.snapshot())
	for _, name := range []string{"/a", "/b", "/c"} {
		add(createOp(name, 0o600))
	}
	for i := range 40 {
		add(writeOp("/a", int64(i)*20_000, pattern(20_000, byte(i))))
		add(writeOp("/b", int64(i)*20_000, pattern(20_000, byte(i+100))))
	}
	add(removeOp(m, "/b"))
	add(syncOp)
	add(writeOp("/c", 100, pattern(1_500_000, 3)))
	add(writeOp("/a", 5_000, pattern(3_000_000, 4)))
	add(syncOp)
	add(writeOp("/c", 0, pattern(2_500_000, 5)))
	add(createOp("/d", 0o600))
	return ops, states
}

// TestLargeWriteIsWhole cuts the power at every Write command of the scattered workload. It checks that
// a crash leaves all or nothing of a write of up to 8 MiB, however many log pages the write takes.
func TestLargeWriteIsWhole(t *testing.T) {
	skipRace(t)
	stride := 1
	if testing.Short() {
		stride = 7
	}
	ops, states := scattered()
	for _, v := range []variant{
		{name: "4 KiB", lba: 4096, f: FormatOptions{Hugeblock: 4 * nvmf.KiB}},
		{name: "4 KiB, volatile cache", lba: 512, f: FormatOptions{Hugeblock: 4 * nvmf.KiB}, cache: true},
		{name: "8 KiB, no data checksums", lba: 4096, f: FormatOptions{Hugeblock: 8 * nvmf.KiB, NoDataCRC: true}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			groups := 0
			for cut := 80; ; cut += stride {
				what := fmt.Sprintf("cut %d", cut)
				if !crashOnce(t, v, 1, cut, ops, states) {
					require.Greater(t, groups, 20/stride, what)
					break
				}
				groups++
			}
		})
	}
}

// TestLargeWriteFaults loses the connection, or has the device refuse a command, within a write that
// takes several log groups. It checks that the write succeeds after a lost connection. It also checks
// that after a crash the file system is as it was before the crash.
func TestLargeWriteFaults(t *testing.T) {
	skipRace(t)
	ops, states := scattered()
	large := len(ops) - 4
	v := variant{name: "4 KiB", lba: 4096, f: FormatOptions{Hugeblock: 4 * nvmf.KiB}}
	for _, kind := range []string{"lost", "refused"} {
		for n := 1; ; n += 3 {
			c := newCrashRig(t, v)
			fs, err := c.mount()
			require.NoError(t, err)
			fs.ckpt.stop()
			acked, _ := play(fs, ops[:large])
			require.Equal(t, large, acked)
			before := c.dev.Count(nvmf.Write)
			if kind == "lost" {
				c.dev.DisconnectAt(nvmf.Write, n)
			} else {
				c.dev.FailAt(nvmf.Write, n, writeFault)
			}
			err = ops[large].fs(fs)
			writes := c.dev.Count(nvmf.Write) - before
			c.dev.Heal()
			if kind == "lost" || err == nil {
				require.NoError(t, err, "%s %d", kind, n)
				match(t, c.again(fs), states, large+1, large+1, fmt.Sprintf("%s %d", kind, n))
			} else {
				want := snapshotFS(t, fs)
				fs = c.again(fs)
				require.Equal(t, want, snapshotFS(t, fs), "%s %d", kind, n)
			}
			fs.ckpt.stop()
			require.NoError(t, c.dev.Close())
			if writes < n {
				require.Greater(t, n, 20)
				break
			}
		}
	}
}
