package microfs

import (
	"bytes"
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// shrinkable mounts a file system from which large files were unlinked: the log has records with
// hugeblocks behind the new end of the partition.
func shrinkable(t *testing.T, v variant) (*crashRig, *FS) {
	c, fs := mounted(t, v)
	fill := func(name string, n int, b byte) {
		f := openNew(t, fs, name)
		_, err := f.WriteAt([][]byte{bytes.Repeat([]byte{b}, n)}, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	fill("/kept", 300_000, 1)
	for n := range 5 {
		fill(fmt.Sprintf("/gone-%d", n), 1<<20, 2)
	}
	require.NoError(t, fs.Mkdir(RootIno, "/d", 0o750))
	for n := range 5 {
		require.NoError(t, fs.Unlink(RootIno, fmt.Sprintf("/gone-%d", n)))
	}
	return c, fs
}

// TestShrink checks that a file system keeps its content when it is made shorter, for mounts of the
// shorter and of the old segment, and that nothing is written behind the new end any more.
func TestShrink(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			ctx := context.Background()
			c, fs := shrinkable(t, v)
			want := snapshotFS(t, fs)
			length, err := fs.Shrink(nvmf.MiB, 0, nvmf.MiB, 13*nvmf.MiB)
			require.NoError(t, err)
			require.Zero(t, length%nvmf.MiB)
			require.Less(t, length, c.seg.Length)
			again, err := fs.Shrink(nvmf.MiB, 0, nvmf.MiB, 13*nvmf.MiB)
			require.NoError(t, err)
			require.LessOrEqual(t, again, length, "asked again")
			length = again

			// A process that has read the old partition table mounts the old segment.
			whole, err := Mount(ctx, c.dev, c.seg, Options{Generation: 7, ReadOnly: true})
			require.NoError(t, err)
			require.Equal(t, want, snapshotFS(t, whole))
			require.NoError(t, whole.Unmount())
			short := Segment{Start: c.seg.Start, Length: length}
			reader, err := Mount(ctx, c.dev, short, Options{Generation: 7, ReadOnly: true})
			require.NoError(t, err, "the log names what is behind the end")
			require.Equal(t, want, snapshotFS(t, reader))
			require.NoError(t, reader.Unmount())

			behind := bytes.Repeat([]byte{0xbb}, int(c.seg.Length-length))
			write := func() { writeAt(t, c.dev, short.Start+length, behind) }
			untouched := func(when string) {
				require.True(t, bytes.Equal(behind, readFrom(t, c.dev, short.Start+length, len(behind))), when)
			}
			write()
			for i := range 2 {
				for n := 0; ; n++ { // fills the partition, in two rounds, so that all hugeblocks are used again
					f, err := fs.Open(RootIno, fmt.Sprintf("/more-%d", n), syscall.O_CREAT|syscall.O_RDWR, 0o600)
					if err == nil {
						_, err = f.WriteAt([][]byte{make([]byte, 100_000)}, 0)
						require.NoError(t, f.Close())
					}
					if err != nil {
						require.ErrorIs(t, err, syscall.ENOSPC)
						break
					}
				}
				untouched("written until it is full")
				if i == 0 {
					require.NoError(t, fs.Checkpoint())
					for n := 0; fs.Unlink(RootIno, fmt.Sprintf("/more-%d", n)) == nil; n++ {
					}
				}
			}
			want = snapshotFS(t, fs)
			require.NoError(t, fs.Unmount())
			untouched("unmounted")

			report, err := Check(ctx, c.dev, short, CheckOptions{Generation: 7})
			require.NoError(t, err)
			for _, f := range report.Findings {
				assert.Equal(t, Note, f.Severity, "%+v", f)
			}

			// Each copy of the superblock is enough.
			for i, at := range SuperblockOffsets(short) {
				kept := readFrom(t, c.dev, at, blockSize)
				writeAt(t, c.dev, at, bytes.Repeat([]byte{0x5a}, blockSize))
				fs, err = Mount(ctx, c.dev, short, c.v.o.with(7))
				require.NoError(t, err, "without copy %d", i)
				require.Equal(t, want, snapshotFS(t, fs))
				require.NoError(t, fs.Unmount())
				require.True(t, bytes.Equal(kept, readFrom(t, c.dev, at, blockSize)), "copy %d is written again", i)
			}
			untouched("repaired")
		})
	}
}

// with returns the options with another generation.
func (o Options) with(generation uint64) Options { o.Generation = generation; return o }

// TestShrinkKeepsWhatIsInUse checks that Shrink keeps the hugeblocks of open files without a name, and
// that it fails with ErrInUse, and changes nothing, if used hugeblocks are behind the new end. It also
// checks which file systems and segments are refused.
func TestShrinkKeepsWhatIsInUse(t *testing.T) {
	c, fs := mounted(t, variants[0])
	first, last := openNew(t, fs, "/first"), openNew(t, fs, "/last")
	_, err := first.WriteAt([][]byte{make([]byte, 6<<20)}, 0)
	require.NoError(t, err)
	_, err = last.WriteAt([][]byte{bytes.Repeat([]byte{3}, 1000)}, 0)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.NoError(t, fs.Unlink(RootIno, "/first"))
	require.NoError(t, fs.Unlink(RootIno, "/last"))

	free := fs.StatFS().Free
	_, err = fs.Shrink(0, 0, nvmf.MiB, 4*nvmf.MiB)
	require.ErrorIs(t, err, ErrInUse)
	require.Equal(t, free, fs.StatFS().Free, "nothing has changed")
	_, err = fs.Shrink(0, 0, nvmf.MiB, c.seg.Length)
	require.NoError(t, err)
	b := make([]byte, 1000)
	_, err = last.ReadAt([][]byte{b}, 0)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{3}, 1000), b)
	require.NoError(t, last.Close())

	length, err := fs.Shrink(0, 0, nvmf.MiB, 4*nvmf.MiB)
	require.NoError(t, err, "once the file is closed")
	require.NoError(t, fs.Vacate())
	_, err = fs.Shrink(0, 0, nvmf.MiB, 4*nvmf.MiB)
	require.ErrorIs(t, err, syscall.EBUSY, "it is about to execute a program")
	require.NoError(t, fs.Unmount())

	r, err := Mount(context.Background(), c.dev, Segment{Start: c.seg.Start, Length: length}, Options{Generation: 7, ReadOnly: true})
	require.NoError(t, err)
	_, err = r.Shrink(0, 0, nvmf.MiB, 4*nvmf.MiB)
	require.ErrorIs(t, err, syscall.EROFS)
	require.NoError(t, r.Unmount())

	for _, c := range []struct {
		name string
		seg  Segment
	}{
		{"longer than it was formatted", Segment{Start: c.seg.Start, Length: c.seg.Length + nvmf.MiB}},
		{"another start", Segment{Start: c.seg.Start + blockSize, Length: length}},
		{"no space for data", Segment{Start: c.seg.Start, Length: 4 * blockSize}},
	} {
		g, err := decodeSuperblock(encoded(fs.g))
		require.NoError(t, err)
		require.ErrorIs(t, g.fit(c.seg, g.lba), ErrCorrupt, c.name)
	}
}

func encoded(g *geometry) []byte {
	b := make([]byte, blockSize)
	g.encode(b)
	return b
}

func writeAt(t *testing.T, dev nvmf.Device, at nvmf.Bytes, b []byte) {
	transferAt(t, dev, nvmf.Write, at, b)
}

func readFrom(t *testing.T, dev nvmf.Device, at nvmf.Bytes, n int) []byte {
	b := make([]byte, n)
	transferAt(t, dev, nvmf.Read, at, b)
	return b
}

func transferAt(t *testing.T, dev nvmf.Device, op nvmf.Opcode, at nvmf.Bytes, b []byte) {
	q, err := dev.OpenQueue(context.Background(), 8)
	require.NoError(t, err)
	var m mover
	id := dev.Identity()
	require.NoError(t, m.transfer(q, id, op, nvmf.LBA(at/id.LBASize), b, true))
	require.NoError(t, q.Close())
}

// TestShrinkAfterDeath kills writers whose last commands may still be executed, so that the next writer
// starts at other hugeblocks. It checks that the partition can be made half as long nevertheless.
func TestShrinkAfterDeath(t *testing.T) {
	for _, size := range []nvmf.Bytes{64 * nvmf.MiB, 128 * nvmf.MiB, 256 * nvmf.MiB, 512 * nvmf.MiB, nvmf.GiB} {
		t.Run(size.String(), func(t *testing.T) {
			ctx := context.Background()
			dev, err := memdev.New(size, 4096, memdev.Options{})
			require.NoError(t, err)
			seg := Segment{Length: size}
			require.NoError(t, Format(ctx, dev, seg, FormatOptions{Generation: 7}))
			late := Options{Generation: 7, Claimed: func(*Claim) (Late, error) { return LateUnlikely, nil }}
			for n := range 3 {
				fs, err := Mount(ctx, dev, seg, late)
				require.NoError(t, err)
				f := openNew(t, fs, fmt.Sprintf("/log-%d", n))
				_, err = f.WriteAt([][]byte{make([]byte, 1000)}, 0)
				require.NoError(t, err)
				if n < 2 {
					fs.ckpt.stop() // as if the process was killed
					continue
				}
				_, err = fs.Shrink(8*nvmf.MiB, 0, nvmf.MiB, size/2)
				require.NoError(t, err)
				require.NoError(t, fs.Unmount())
			}
		})
	}
}
