package microfs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

const misdirectedSize = nvmf.MiB

var misdirectedSegment = Segment{Start: blockSize, Length: misdirectedSize - blockSize}

// misdirectedOutcome is the outcome of a workload with one misdirected write.
type misdirectedOutcome int

const (
	whole   misdirectedOutcome = iota // all content is right
	told                              // an error was reported, and no wrong content was read
	undone                            // the last operation is missing, without an error
	silent                            // other content is wrong, without an error
	noWrite                           // the workload has fewer writes
)

// TestMisdirectedWrites runs a workload many times. In each run the device acknowledges one write but
// drops it, or writes it to another place. The test checks that every read returns the right bytes or
// EIO, before and after another mount, or that the mount fails with an error that names the cause. One
// exception is allowed: the last operation may be missing without an error if no fsync follows it,
// because no later image of the log shows that it had begun.
func TestMisdirectedWrites(t *testing.T) {
	skipRace(t)
	for _, v := range []variant{
		{name: "small log", lba: 512, f: FormatOptions{Hugeblock: MinHugeblock, LogPages: minLogPages}},
		{name: "LBAs of 4096", lba: 4096, f: FormatOptions{Hugeblock: MinHugeblock, LogPages: minLogPages}},
		{name: "volatile cache", lba: 4096, f: FormatOptions{Hugeblock: MinHugeblock, LogPages: minLogPages}, cache: true},
	} {
		if testing.Short() && v.lba == 512 {
			continue
		}
		for _, synced := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, fsync %v", v.name, synced), func(t *testing.T) {
				t.Parallel()
				for _, kind := range misdirectedKinds(v.lba) {
					seen := map[misdirectedOutcome]int{}
					n := 1
					for ; ; n++ {
						got := misdirect(t, v, synced, n, kind.set, fmt.Sprintf("%s, write %d", kind.name, n))
						if got == noWrite {
							break
						}
						seen[got]++
					}
					t.Logf("%s: of %d writes %d did not matter, %d were noticed, %d undid the last operation, %d were not noticed",
						kind.name, n-1, seen[whole], seen[told], seen[undone], seen[silent])
					require.Zero(t, seen[silent], kind.name)
					require.True(t, !synced || seen[undone] == 0, kind.name)
				}
			})
		}
	}
}

type misdirectedKind struct {
	name string
	set  func(c *crashRig, n int)
}

// misdirectedKinds lists the faults: a write is dropped, or goes to each of the areas of the partition.
func misdirectedKinds(lba nvmf.Bytes) []misdirectedKind {
	kinds := []misdirectedKind{{"dropped", func(c *crashRig, n int) { c.dev.DropAt(n) }}}
	id := nvmf.Identity{LBASize: lba, Blocks: nvmf.LBA(misdirectedSize / lba)}
	g, err := newGeometry(&id, misdirectedSegment, &FormatOptions{Hugeblock: MinHugeblock, LogPages: minLogPages})
	if err != nil {
		panic(err) // the options above are valid
	}
	for name, at := range map[string]nvmf.Bytes{
		"over the superblock": 0, "over a state header": headerOffset, "over the log": logOffset + 2*blockSize,
		"over another log page": logOffset + 9*blockSize, "over a state": g.state[1], "over data": g.data + blockSize, "over free data": g.data + nvmf.Bytes(g.blocks-1)*g.hugeblock,
	} {
		kinds = append(kinds, misdirectedKind{name, func(c *crashRig, n int) { c.dev.MisdirectAt(n, g.lbaOf(at)) }})
	}
	return kinds
}

// misdirectedWorkload returns a workload that writes every structure: the log wraps, states are written,
// and files grow, shrink, are overwritten and are replaced.
func misdirectedWorkload(m *model, synced bool) []op {
	ops := startOps(m)
	add := func(o op, _ bool) { o.model(m); ops = append(ops, o) }
	checkpoint := op{name: "checkpoint", fs: (*FS).Checkpoint, model: func(*model) {}}
	for range 3 {
		add(m.writeAt("/b", m.size("/b"), 3000))
		add(m.writeAt("/a", 10, 5000))
		add(checkpoint, true)
		add(truncateOp("/b", 5000), true)
		add(syncOp, true)
	}
	add(m.writeAt("/d/x", 100, 500))
	add(createOp("/n", 0o600), true)
	add(m.writeAt("/n", 0, 4500))
	add(closeOp("/n"), true)
	add(renameOp("/n", "/b", 0), true)
	add(m.writeAt("/a", m.size("/a"), 100))
	if synced {
		add(closeOp("/a"), true)
		add(syncOp, true)
	}
	return ops
}

func misdirect(t *testing.T, v variant, synced bool, n int, set func(*crashRig, int), what string) misdirectedOutcome {
	mem, err := memdev.New(misdirectedSize, v.lba, memdev.Options{})
	require.NoError(t, err)
	c := newCrashRigOn(t, mem, misdirectedSegment, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	fs.ckpt.stop()
	before := c.dev.Count(nvmf.Write)
	set(c, n)
	m := newModel()
	ops := misdirectedWorkload(m, synced)
	result := whole
	last := 0 // number of writes before the last operation
	for _, o := range ops {
		last = c.dev.Count(nvmf.Write) - before
		if err := o.fs(fs); err != nil {
			require.ErrorIs(t, err, unix.EIO, "%s: %s", what, o.name)
			require.NoError(t, fs.q.Close())
			return told
		}
	}
	if c.dev.Count(nvmf.Write)-before < n {
		require.NoError(t, fs.q.Close())
		return noWrite
	}
	if got := readMisdirected(t, fs, m, what); got != whole {
		require.Equal(t, told, got, "%s: read while mounted", what)
		result = told
	}
	require.NoError(t, fs.q.Close())
	fs, err = c.mount()
	if err != nil {
		require.True(t, errors.Is(err, ErrCorrupt) || errors.Is(err, oplog.ErrDamaged) || errors.Is(err, unix.EIO), "%s: %v", what, err)
		return told
	}
	fs.ckpt.stop()
	got := readMisdirected(t, fs, m, what)
	if got == silent && n > last {
		got = undone
	}
	return max(result, got)
}

// readMisdirected reads the whole tree and compares it with the model.
func readMisdirected(t *testing.T, fs *FS, m *model, what string) misdirectedOutcome {
	got, err := new(canonizer).canon(fs)
	if err != nil {
		require.ErrorIs(t, err, unix.EIO, what)
		return told
	}
	if m.canon() != string(got) {
		return silent
	}
	return whole
}
