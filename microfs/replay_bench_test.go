package microfs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// BenchmarkReplay measures a mount after a crash with many records of one kind in the log. No records
// are coalesced.
func BenchmarkReplay(b *testing.B) {
	const records = 1_000_000
	for _, k := range []struct {
		name string
		fill func(b *testing.B, fs *FS)
	}{
		{"append", fillAppends},
		{"overwrite", fillOverwrites(100_000)},
		{"create", fillCreates(func(i int) int { return i })},
		{"createAnyOrder", fillCreates(func(i int) int { return i * 7919 % records })},
		{"rename", fillRenames},
		{"temporary", fillTemporary},
	} {
		b.Run(k.name, func(b *testing.B) {
			size := 24 * nvmf.GiB // sparse: the state area must take a million names
			if k.name == "overwrite" {
				size = nvmf.GiB // hugeblocks are used many times
			}
			dev := memory(b, size, 4096)
			seg := Segment{Start: nvmf.MiB, Length: size - nvmf.MiB}
			require.NoError(b, Format(context.Background(), dev, seg, FormatOptions{LogPages: maxLogPages, Hugeblock: 4 * nvmf.KiB}))
			fs, err := Mount(context.Background(), dev, seg, Options{NoCoalesce: true})
			require.NoError(b, err)
			fs.ckpt.stop() // no state checkpoint unless the log is full
			k.fill(b, fs)
			require.EqualValues(b, 1, fs.ckpt.header.sequence)
			pages := fs.g.logPages - fs.log.Free()
			fs = nil // so that the garbage collector does not scan its memory
			b.ResetTimer()
			begin := cpu()
			for range b.N {
				fs, err := Mount(context.Background(), dev, seg, Options{ReadOnly: true})
				require.NoError(b, err)
				require.NoError(b, fs.Unmount())
			}
			b.ReportMetric(records*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64((cpu()-begin).Nanoseconds())/records/float64(b.N), "cpu-ns/record")
			b.ReportMetric(float64(pages), "pages")
		})
	}
}

func fillAppends(b *testing.B, fs *FS) {
	f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(b, err)
	bufs := [][]byte{make([]byte, 512)}
	for range 1_000_000 {
		if _, _, err := f.Append(bufs); err != nil {
			b.Fatal(err)
		}
	}
}

func fillOverwrites(blocks int64) func(*testing.B, *FS) {
	return func(b *testing.B, fs *FS) {
		r := rand.New(rand.NewPCG(1, 0))
		f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(b, err)
		_, err = f.WriteAt([][]byte{make([]byte, blocks*4096)}, 0)
		require.NoError(b, err)
		bufs := [][]byte{make([]byte, 4096)}
		for range 1_000_000 {
			if _, err := f.WriteAt(bufs, r.Int64N(blocks)*4096); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// cpu returns the processor time of the process. Unlike the elapsed time it does not depend much on
// other processes.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fillCreates(order func(int) int) func(*testing.B, *FS) {
	return func(b *testing.B, fs *FS) {
		for i := range 1_000_000 {
			f, err := fs.Open(RootIno, fmt.Sprintf("f%d", order(i)), unix.O_CREAT|unix.O_RDONLY, 0o600)
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func fillRenames(b *testing.B, fs *FS) {
	const files = 1000
	fillFiles := func(n int) {
		for i := range n {
			f, err := fs.Open(RootIno, fmt.Sprintf("a%d", i), unix.O_CREAT|unix.O_RDWR, 0o600)
			require.NoError(b, err)
			require.NoError(b, f.Close())
		}
	}
	fillFiles(files)
	for i := range 1_000_000 - files {
		k, from, to := i%files, 'a', 'b'
		if i/files%2 == 1 {
			from, to = to, from
		}
		if err := fs.Rename(RootIno, fmt.Sprintf("%c%d", from, k), RootIno, fmt.Sprintf("%c%d", to, k), 0); err != nil {
			b.Fatal(err)
		}
	}
}

func fillTemporary(b *testing.B, fs *FS) {
	for i := range 500_000 {
		name := fmt.Sprintf("f%d", i%1000)
		f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(b, err)
		require.NoError(b, f.Close())
		require.NoError(b, fs.Unlink(RootIno, name))
	}
}

// BenchmarkOverwrite measures applying random overwrites to files of several numbers of extents.
func BenchmarkOverwrite(b *testing.B) {
	for _, blocks := range []int{1, 100, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(blocks), func(b *testing.B) {
			g := &geometry{hugeblock: 4096, unit: 4096, sums: true, blocks: 1 << 30}
			in := &inode{}
			sums := make([]uint64, blocks)
			require.NoError(b, in.applyWrite(g, &oplog.Record{End: uint64(blocks) * 4096, CRCs: sums}, nil))
			r := rand.New(rand.NewPCG(1, 0))
			phys := uint32(blocks)
			write := func(block int) error {
				phys = phys%(1<<29) + 2
				return in.applyWrite(g, &oplog.Record{File: uint32(block), Phys: phys, End: 4096, CRCs: sums[:1]}, nil)
			}
			for _, block := range r.Perm(blocks) {
				require.NoError(b, write(block))
			}
			b.ReportAllocs()
			b.ResetTimer()
			begin := cpu()
			defer func() { b.ReportMetric(float64((cpu()-begin).Nanoseconds())/float64(b.N), "cpu-ns/op") }()
			for range b.N {
				if err := write(r.IntN(blocks)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkState measures encoding and decoding the tree of a million files.
func BenchmarkState(b *testing.B) {
	const files = 1_000_000
	g := &geometry{hugeblock: 4096, unit: 4096, sums: true, blocks: 1 << 30, root: rootOwner{mode: 0o700}}
	t := newTree(g)
	for i := range files {
		r := &oplog.Record{Type: oplog.Create, Ino: uint64(i + 2), Parent: uint64(RootIno), Mode: modeRegular | 0o600, Name: fmt.Appendf(nil, "%06d", i)}
		require.NoError(b, t.apply(r, nil))
	}
	state := t.encode(nil)
	for _, k := range []struct {
		name string
		run  func() error
	}{
		{"encode", func() error { t.encode(nil); return nil }},
		{"decode", func() error { _, err := decodeTree(g, state); return err }},
	} {
		b.Run(k.name, func(b *testing.B) {
			begin := cpu()
			for range b.N {
				if err := k.run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu()-begin).Nanoseconds())/files/float64(b.N), "cpu-ns/file")
		})
	}
}
