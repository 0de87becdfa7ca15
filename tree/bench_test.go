package tree

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// BenchmarkReadOwn reads data that this process has written, through the tree and directly from its partition.
func BenchmarkReadOwn(b *testing.B) {
	r := newRig(b, 1)
	p := r.join(0)
	const size = 1 << 20
	f := p.open("/f", unix.O_RDWR|unix.O_CREAT)
	put(b, f, 0, string(make([]byte, size)))
	read := func(name string, at func(bufs [][]byte, off int64) (int, error)) {
		b.Run(name, func(b *testing.B) {
			buf := [][]byte{make([]byte, 4096)}
			for i := range b.N {
				if n, err := at(buf, int64(i)*4096%size); n != 4096 {
					b.Fatal(n, err)
				}
			}
		})
	}
	read("unpublished", f.ReadAt)
	require.NoError(b, f.Sync())
	read("published", f.ReadAt)
	require.NoError(b, f.Close())
	g := p.open("/f", unix.O_RDONLY)
	read("again", g.ReadAt)
	own, err := p.FS.own.Open(microfs.RootIno, p.shards()[0], unix.O_RDONLY, 0)
	require.NoError(b, err)
	read("partition", own.ReadAt)
}
