package microfs_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// BenchmarkStateCheckpoint measures one state checkpoint for several numbers of files, on a device in
// memory.
func BenchmarkStateCheckpoint(b *testing.B) {
	for _, n := range []int{1000, 20000, 200000} {
		b.Run(fmt.Sprintf("files=%d", n), func(b *testing.B) {
			dev, err := memdev.New(8*nvmf.GiB, 4096, memdev.Options{})
			require.NoError(b, err)
			defer dev.Close()
			ctx := context.Background()
			seg := microfs.Segment{Length: dev.Identity().Capacity()}
			require.NoError(b, microfs.Format(ctx, dev, seg, microfs.FormatOptions{Generation: 1, Size: 1, LogPages: 1 << 14}))
			fs, err := microfs.Mount(ctx, dev, seg, microfs.Options{Generation: 1})
			require.NoError(b, err)
			data := [][]byte{make([]byte, 4096)}
			for i := range n {
				f, err := fs.Open(microfs.RootIno, fmt.Sprintf("file%d", i), syscall.O_RDWR|syscall.O_CREAT, 0o600)
				require.NoError(b, err)
				_, err = f.WriteAt(data, 0)
				require.NoError(b, err)
				require.NoError(b, f.Close())
			}
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, fs.Checkpoint())
			}
			b.ReportMetric(float64(fs.StatFS().StateBytes)/float64(n), "state-bytes/file")
			require.NoError(b, fs.Unmount())
		})
	}
}
