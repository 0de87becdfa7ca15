package microfs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/filedev"
	"nvmecr/nvmf/memdev"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

const metamorphicSize = 48 * nvmf.MiB

// TestMetamorphic runs one random list of operations in many configurations of format, options and
// device. It checks that the tree is the same in all of them, and the tree of a model: at the end, after
// a crash, after an Unmount, and in a read-only mount after a state checkpoint.
func TestMetamorphic(t *testing.T) {
	seed := newSeed(t)
	steps := 600
	if testing.Short() {
		steps = 150
	}
	ranges := seed&4 != 0
	ops, want := metamorphicOps(seed, steps, ranges)
	t.Logf("%d operations, %d bytes of canonical tree", len(ops), len(want))
	for _, v := range []struct {
		name   string
		device func(*testing.T) nvmf.Device
		f      FormatOptions
		o      Options
	}{
		{name: "memory", device: memoryDevice(4096)},
		{name: "memory, no coalescing", device: memoryDevice(4096), o: Options{NoCoalesce: true}},
		{name: "memory, 512, hugeblocks of 4 KiB", device: memoryDevice(512), f: FormatOptions{Hugeblock: 4 * nvmf.KiB}},
		{name: "memory, 512, hugeblocks of 8 KiB, smallest log", device: memoryDevice(512), f: FormatOptions{Hugeblock: 8 * nvmf.KiB, LogPages: minLogPages}},
		{name: "memory, hugeblocks of 64 KiB, long log", device: memoryDevice(4096), f: FormatOptions{Hugeblock: 64 * nvmf.KiB, LogPages: 512}},
		{name: "memory, hugeblocks of 1 MiB", device: memoryDevice(4096), f: FormatOptions{Hugeblock: nvmf.MiB}},
		{name: "memory, no checksums", device: memoryDevice(4096), f: FormatOptions{NoDataCRC: true, Hugeblock: 16 * nvmf.KiB}},
		{name: "memory, no checksums, no coalescing, smallest log", device: memoryDevice(512), f: FormatOptions{NoDataCRC: true, LogPages: minLogPages}, o: Options{NoCoalesce: true}},
		{name: "memory, one command at a time", device: memoryDevice(4096), o: Options{QueueDepth: 1}},
		{name: "volatile cache, any order", device: shuffledDevice(seed, true)},
		{name: "volatile cache, no checksums, smallest log", device: shuffledDevice(seed, true), f: FormatOptions{NoDataCRC: true, LogPages: minLogPages}},
		{name: "any order", device: shuffledDevice(seed, false), f: FormatOptions{Hugeblock: 4 * nvmf.KiB}},
		{name: "file", device: fileDevice},
		{name: "TCP", device: tcpDevice(4096, tcp.Options{})},
		{name: "TCP, 512, digests", device: tcpDevice(512, tcp.Options{HeaderDigest: true, DataDigest: true})},
		{name: "TCP, digests, small transfers", device: tcpDevice(4096, tcp.Options{DataDigest: true, OptimalTransfer: 4 * nvmf.KiB, QueueDepth: 4})},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			dev := v.device(t)
			defer func() { assert.NoError(t, dev.Close()) }()
			v.f.Generation, v.o.Generation, v.f.Ranges = 7, 7, ranges
			ctx, seg := context.Background(), Segment{Start: nvmf.MiB, Length: metamorphicSize - nvmf.MiB}
			require.NoError(t, Format(ctx, dev, seg, v.f))
			mount := func() *FS {
				fs, err := Mount(ctx, dev, seg, v.o)
				require.NoError(t, err)
				return fs
			}
			same := func(fs *FS, when string) {
				got, err := new(canonizer).canon(fs)
				require.NoError(t, err, when)
				require.True(t, want == string(got), "%s: another tree", when)
			}
			fs := mount()
			for i, o := range ops {
				require.NoError(t, o.fs(fs), "operation %d: %s", i, o.name)
			}
			same(fs, "at the end")
			fs.ckpt.stop()
			require.NoError(t, fs.commitDeferred()) // else a crash may lose the close of the last file
			require.NoError(t, fs.q.Close())
			fs = mount()
			same(fs, "after a crash")
			require.NoError(t, fs.Unmount())
			fs = mount()
			same(fs, "after an unmount")
			require.NoError(t, fs.Checkpoint())
			require.NoError(t, fs.Unmount())
			v.o.ReadOnly = true
			fs = mount()
			same(fs, "mounted read-only, after a state checkpoint")
			require.NoError(t, fs.Unmount())
		})
	}
}

// metamorphicOps returns n random operations and the canonical form of the tree after them.
func metamorphicOps(seed uint64, n int, ranges bool) ([]op, string) {
	g := &generator{r: rand.New(rand.NewPCG(seed, 3)), m: newModel(), maxFile: 300 << 10, ranges: true}
	g.m.ranges = ranges
	var ops []op
	for range n {
		o := g.next()
		if files := g.files(); len(files) > 0 && g.r.IntN(12) == 0 {
			o = closeOp(g.pick(files))
		}
		o.model(g.m)
		ops = append(ops, o)
	}
	return ops, g.m.canon()
}

func memoryDevice(lba nvmf.Bytes) func(*testing.T) nvmf.Device {
	return func(t *testing.T) nvmf.Device {
		d, err := memdev.New(metamorphicSize, lba, memdev.Options{})
		require.NoError(t, err)
		return d
	}
}

func shuffledDevice(seed uint64, cache bool) func(*testing.T) nvmf.Device {
	return func(t *testing.T) nvmf.Device {
		f, err := blocktest.NewFaulty(memoryDevice(512)(t))
		require.NoError(t, err)
		f.Shuffle(seed)
		if cache {
			f.UseVolatileCache()
		}
		return f
	}
}

func fileDevice(t *testing.T) nvmf.Device {
	d, err := filedev.Create(filepath.Join(t.TempDir(), "namespace"), metamorphicSize, filedev.Options{})
	require.NoError(t, err)
	return d
}

func tcpDevice(lba nvmf.Bytes, o tcp.Options) func(*testing.T) nvmf.Device {
	return func(t *testing.T) nvmf.Device { return overTCP(t, metamorphicSize, lba, o) }
}

// overTCP returns a device that reaches memory of this process over NVMe/TCP.
func overTCP(t testing.TB, size, lba nvmf.Bytes, o tcp.Options) nvmf.Device {
	const nqn = "nqn.2024-01.example:metamorphic"
	b, err := target.NewMemory(size, lba)
	require.NoError(t, err)
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: nqn, Namespaces: []target.Namespace{{NSID: 1, Backing: b}}}}})
	require.NoError(t, err)
	at, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tgt.Close(context.Background())) })
	host, port, err := net.SplitHostPort(fmt.Sprint(at))
	require.NoError(t, err)
	id, err := nvmf.ParseTransportID(fmt.Sprintf("trtype:TCP traddr:%s trsvcid:%s subnqn:%s ns:1", host, port, nqn))
	require.NoError(t, err)
	d, err := tcp.Open(context.Background(), id, o)
	require.NoError(t, err)
	return d
}
