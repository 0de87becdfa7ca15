package microfs

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

// TestBytes reads, writes, appends to and truncates two files through several open files of each, at
// offsets and lengths around the sizes of sectors, units and hugeblocks. It compares all bytes with a
// model.
func TestBytes(t *testing.T) {
	skipRace(t)
	tests := []struct {
		hugeblock, lba nvmf.Bytes
		noSums, cache  bool
		noCoalesce     bool
		lossy          bool // connections are lost
	}{
		{hugeblock: 4 * nvmf.KiB, lba: 512},
		{hugeblock: 4 * nvmf.KiB, lba: 4096, lossy: true},
		{hugeblock: 32 * nvmf.KiB, lba: 512, lossy: true},
		{hugeblock: 32 * nvmf.KiB, lba: 4096, noSums: true},
		{hugeblock: 1 * nvmf.MiB, lba: 512, lossy: true},
		{hugeblock: 4 * nvmf.MiB, lba: 512, lossy: true},
		{hugeblock: 4 * nvmf.MiB, lba: 4096, cache: true, noCoalesce: true},
		{hugeblock: 64 * nvmf.KiB, lba: 1024, cache: true, lossy: true},
	}
	steps := 400
	if testing.Short() {
		steps = 80
	}
	for i, tc := range tests {
		t.Run(fmt.Sprintf("%d %+v", i, tc), func(t *testing.T) {
			mem, err := memdev.New(128*nvmf.MiB, tc.lba, memdev.Options{})
			require.NoError(t, err)
			dev, err := blocktest.NewFaulty(mem)
			require.NoError(t, err)
			defer dev.Close()
			if tc.cache {
				dev.UseVolatileCache()
			}
			seed := newSeed(t)
			dev.Shuffle(seed)
			b := &bytesTest{t: t, r: rand.New(rand.NewPCG(seed, uint64(i))), dev: dev, o: Options{NoCoalesce: tc.noCoalesce}}
			if tc.lossy {
				b.losses = 8
			}
			require.NoError(t, Format(context.Background(), dev, bytesSegment, FormatOptions{Hugeblock: tc.hugeblock, NoDataCRC: tc.noSums}))
			b.mount()
			for range steps {
				b.step()
			}
			dev.Heal()
			for k := range b.want {
				b.read(k, 0, 0, len(b.want[k])+1)
			}
			require.NoError(t, b.fs.Unmount())
		})
	}
}

var bytesSegment = Segment{Length: 128 * nvmf.MiB}

// bytesTest has two files, each open three times, and the content that they must have.
type bytesTest struct {
	t      *testing.T
	r      *rand.Rand
	dev    *blocktest.Faulty
	o      Options
	fs     *FS
	files  [2][3]*File
	want   [2][]byte
	losses int // how many more times the connection may be lost
}

func (b *bytesTest) mount() {
	var err error
	b.fs, err = Mount(context.Background(), b.dev, bytesSegment, b.o)
	require.NoError(b.t, err)
	for k := range b.files {
		for j := range b.files[k] {
			b.files[k][j] = b.open(k)
		}
	}
}

func (b *bytesTest) open(k int) *File { return openNew(b.t, b.fs, fmt.Sprintf("f%d", k)) }

// step makes one random operation.
func (b *bytesTest) step() {
	r := b.r
	if b.losses > 0 && r.IntN(30) == 0 {
		b.losses--
		b.dev.DisconnectAt([]nvmf.Opcode{nvmf.Write, nvmf.Read}[r.IntN(2)], 1+r.IntN(4))
	}
	k, j := r.IntN(2), r.IntN(3)
	sizes := []int{1, 3, 511, 513, 4095, 4097, 32767, 32769, 65536, 100001, 1 << 20, 9<<20 + 5}
	size := sizes[r.IntN(len(sizes))]
	if size > 200_000 && r.IntN(10) != 0 {
		size = 1 + r.IntN(5000)
	}
	off := len(b.want[k])
	if off > 0 && r.IntN(3) > 0 {
		off = r.IntN(off)
	} else if r.IntN(6) == 0 {
		off += r.IntN(300_000)
	}
	switch op := r.IntN(20); {
	case op < 9:
		b.write(k, j, off, size)
	case op < 11:
		b.truncate(k, j, r.IntN(len(b.want[k])+100_000))
	case op == 11:
		require.NoError(b.t, b.files[k][j].Close())
		b.files[k][j] = b.open(k)
	case op == 12:
		require.NoError(b.t, b.fs.Sync())
	case op == 13 && r.IntN(4) == 0:
		require.NoError(b.t, checkpointUnlessLate(b.fs))
	case op == 14 && r.IntN(8) == 0:
		b.dev.Heal()
		b.fs.ckpt.stop()
		b.mount()
	default:
		b.read(k, j, off, size)
	}
}

func (b *bytesTest) write(k, j, off, size int) {
	const limit = 20 << 20
	if off+size > limit {
		return
	}
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	var bufs [][]byte
	for q := p; len(q) > 0; {
		n := min(len(q), 1+b.r.IntN(1+len(p)/3))
		bufs = append(bufs, q[:n], nil)
		q = q[n:]
	}
	if b.r.IntN(4) == 0 {
		off = len(b.want[k])
		n, end, err := b.files[k][j].Append(bufs)
		require.NoError(b.t, err)
		require.Equal(b.t, size, n)
		require.EqualValues(b.t, off+size, end)
	} else {
		n, err := b.files[k][j].WriteAt(bufs, int64(off))
		require.NoError(b.t, err)
		require.Equal(b.t, size, n)
	}
	b.resize(k, max(len(b.want[k]), off+size))
	copy(b.want[k][off:], p)
}

func (b *bytesTest) truncate(k, j, size int) {
	require.NoError(b.t, b.files[k][j].Truncate(int64(size)))
	b.resize(k, size)
}

func (b *bytesTest) resize(k, size int) {
	w := b.want[k]
	if size > len(w) {
		w = append(w, make([]byte, size-len(w))...)
	}
	b.want[k] = w[:size:size]
}

func (b *bytesTest) read(k, j, off, size int) {
	p := make([]byte, size)
	bufs := [][]byte{p}
	if b.r.IntN(2) == 0 {
		bufs = [][]byte{p[:size/3], p[size/3:]}
	}
	n, err := b.files[k][j].ReadAt(bufs, int64(off))
	require.NoError(b.t, err)
	want := b.want[k][min(off, len(b.want[k])):min(off+size, len(b.want[k]))]
	require.Equal(b.t, len(want), n)
	require.True(b.t, bytes.Equal(p[:n], want), "%d bytes of file %d at %d", size, k, off)
}
