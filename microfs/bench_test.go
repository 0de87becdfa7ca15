package microfs

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

func benchFS(b *testing.B, o Options) *FS {
	dev := memory(b, 24*nvmf.GiB, 4096) // memory is allocated only where it is written
	seg := Segment{Start: nvmf.MiB, Length: 24*nvmf.GiB - nvmf.MiB}
	require.NoError(b, Format(context.Background(), dev, seg, FormatOptions{}))
	fs, err := Mount(context.Background(), dev, seg, o)
	require.NoError(b, err)
	b.Cleanup(func() { _ = fs.Unmount() })
	return fs
}

// BenchmarkWrite measures sequential writes to a file that is truncated to 0 every 512 MiB.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 32 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			fs := benchFS(b, Options{})
			buf := make([]byte, size)
			bufs := [][]byte{buf}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			var f *File
			off := int64(512 << 20)
			for range b.N {
				if off >= 512<<20 {
					if f != nil {
						require.NoError(b, f.Close())
					}
					var err error
					f, err = fs.Open(RootIno, "checkpoint", unix.O_CREAT|unix.O_TRUNC|unix.O_RDWR, 0o600)
					require.NoError(b, err)
					off = 0
				}
				n, err := f.WriteAt(bufs, off)
				if err != nil || n != size {
					b.Fatal(n, err)
				}
				off += int64(n)
			}
		})
	}
}

// BenchmarkRead measures sequential reads of a file of 64 MiB.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4 << 10, 32 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			fs := benchFS(b, Options{})
			f, err := fs.Open(RootIno, "checkpoint", unix.O_CREAT|unix.O_RDWR, 0o600)
			require.NoError(b, err)
			big := make([]byte, 64<<20)
			_, err = f.WriteAt([][]byte{big}, 0)
			require.NoError(b, err)
			bufs := [][]byte{make([]byte, size)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if n, err := f.ReadAt(bufs, int64(i*size)%(64<<20)); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// BenchmarkCreate measures creating and closing files, all in one directory.
func BenchmarkCreate(b *testing.B) {
	fs := benchFS(b, Options{})
	names := make([]string, b.N)
	for i := range names {
		names[i] = fmt.Sprintf("f%08d", i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, name := range names {
		f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMount measures a read-only mount after a crash, with the records of 50,000 created and
// unlinked files in the log.
func BenchmarkMount(b *testing.B) {
	dev := memory(b, nvmf.GiB, 4096)
	seg := Segment{Start: nvmf.MiB, Length: nvmf.GiB - nvmf.MiB}
	require.NoError(b, Format(context.Background(), dev, seg, FormatOptions{LogPages: 4096}))
	fs, err := Mount(context.Background(), dev, seg, Options{})
	require.NoError(b, err)
	fs.opens++ // as if a file was open: state checkpoints wait longer
	require.NoError(b, fs.Mkdir(RootIno, "d", 0o700))
	for i := range 50000 {
		name := fmt.Sprintf("d/f%d", i%1000)
		f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(b, err)
		require.NoError(b, f.Close())
		require.NoError(b, fs.Unlink(RootIno, name))
	}
	fs.ckpt.stop()
	b.ResetTimer()
	for range b.N {
		fs, err := Mount(context.Background(), dev, seg, Options{ReadOnly: true})
		require.NoError(b, err)
		require.NoError(b, fs.Unmount())
	}
}
