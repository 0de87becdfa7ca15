package microfs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/tcp"
)

// BenchmarkReadAhead reads a file of 256 MiB over NVMe/TCP in small pieces, alternately with and
// without read-ahead. The reported speedup is that of the fastest turns, because other load of the
// machine slows the other turns down.
func BenchmarkReadAhead(b *testing.B) {
	const size, turn = 256 << 20, 4 << 20
	dev := overTCP(b, 512*nvmf.MiB, 4096, tcp.Options{})
	seg := Segment{Length: 512 * nvmf.MiB}
	require.NoError(b, Format(b.Context(), dev, seg, FormatOptions{}))
	fs, err := Mount(b.Context(), dev, seg, Options{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = fs.Unmount(); _ = dev.Close() })
	f := openRW(b, fs, "f")
	_, err = f.WriteAt([][]byte{pattern(size, 3)}, 0)
	require.NoError(b, err)
	for _, random := range []bool{false, true} {
		for _, piece := range []int{512, 4 << 10, 32 << 10, 64 << 10, 100_000, 128 << 10} {
			b.Run(fmt.Sprintf("random=%v/%d", random, piece), func(b *testing.B) {
				buf := [][]byte{make([]byte, piece)}
				took := [2]time.Duration{time.Hour, time.Hour}
				off, step := 0, piece
				if random {
					step = 101 * piece
				}
				read := func(i, advice int) {
					require.NoError(b, f.Advise(0, 0, advice))
					begin := time.Now()
					for left := turn; left > 0; left -= piece {
						if _, err := f.ReadAt(buf, int64(off)); err != nil {
							b.Fatal(err)
						}
						if off += step; off > size-piece {
							off = 0
						}
					}
					took[i] = min(took[i], time.Since(begin))
				}
				b.ReportAllocs()
				for b.Loop() {
					read(0, unix.FADV_RANDOM)
					read(1, unix.FADV_NORMAL)
				}
				rate := func(d time.Duration) float64 { return turn / 1e6 / d.Seconds() }
				b.ReportMetric(rate(took[0]), "MB/s-without")
				b.ReportMetric(rate(took[1]), "MB/s-with")
				b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "speedup")
			})
		}
	}
}
