package microfs

import (
	"bytes"
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestAllocate checks that a file can write the space that Allocate reserved for it when all other
// space is used up, also after another mount. Reserved space that was not written reads as zeros.
func TestAllocate(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			fs, mount := small(t, v)
			hb := int64(fs.g.hugeblock)
			f := openNew(t, fs, "/reserved")
			require.NoError(t, f.Allocate(0, 8*hb, false))
			a, err := f.Stat()
			require.NoError(t, err)
			require.Equal(t, 8*hb, a.Size)
			require.Equal(t, 8*hb/512, a.Blocks)
			_, err = f.SeekData(0)
			require.ErrorIs(t, err, syscall.ENXIO)
			require.NoError(t, f.Close())

			g := openNew(t, fs, "/other")
			require.ErrorIs(t, g.Allocate(0, int64(fs.g.blocks)*hb, false), syscall.ENOSPC)
			a, err = g.Stat()
			require.NoError(t, err)
			require.Zero(t, a.Size+a.Blocks, "a refused allocation leaves nothing")
			require.NoError(t, g.Allocate(hb, int64(fs.StatFS().Free)*hb, true))
			require.Zero(t, fs.StatFS().Free)
			_, err = g.WriteAt([][]byte{{1}}, 0)
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.NoError(t, g.Close())
			require.NoError(t, fs.Unmount())

			fs = mount()
			f = openNew(t, fs, "/reserved")
			data := pattern(int(8*hb), 3)
			got := make([]byte, len(data))
			_, err = f.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.Equal(t, make([]byte, len(data)), got)
			for off := range int64(8) { // in another order, in pieces, across hugeblocks
				at := (off*5%8)*hb + hb/3
				piece := data[at:min(at+hb, 8*hb)]
				_, err = f.WriteAt([][]byte{piece}, at)
				require.NoError(t, err)
			}
			_, err = f.WriteAt([][]byte{data[:hb/3]}, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([][]byte{data}, 0) // overwrites all of it
			require.NoError(t, err)
			_, err = f.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			require.NoError(t, f.Close())
			require.NoError(t, fs.Unmount())
		})
	}
}

// TestPunch checks that Punch frees the hugeblocks inside the hole, and that the hole reads as zeros.
func TestPunch(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			fs, _ := small(t, v)
			hb := int64(fs.g.hugeblock)
			f := openNew(t, fs, "/f")
			data := pattern(int(10*hb), 9)
			_, err := f.WriteAt([][]byte{data}, 0)
			require.NoError(t, err)
			before := fs.available()
			require.NoError(t, f.Punch(hb+100, 5*hb))
			require.EqualValues(t, 4, fs.available()-before)
			clear(data[hb+100:][:5*hb])
			at, err := f.SeekHole(0)
			require.NoError(t, err)
			require.Equal(t, 2*hb, at)
			at, err = f.SeekData(2 * hb)
			require.NoError(t, err)
			require.Equal(t, 6*hb, at)

			require.NoError(t, f.Allocate(0, 20*hb, true))
			require.NoError(t, f.Punch(9*hb, 11*hb))
			require.NoError(t, f.ZeroRange(0, 100, true))
			clear(data[9*hb:])
			clear(data[:100])
			got := make([]byte, len(data)+1)
			n, err := f.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got[:n]))
			a, err := f.Stat()
			require.NoError(t, err)
			require.Equal(t, 9*hb/512, a.Blocks)
			require.NoError(t, f.Close())
			require.NoError(t, fs.Unmount())
		})
	}
}

// TestRangeErrors checks the errors of Allocate, Punch and ZeroRange for invalid ranges, and on a file
// system that was formatted without the feature.
func TestRangeErrors(t *testing.T) {
	fs, _ := small(t, variants[0])
	f := openNew(t, fs, "/f")
	for _, tc := range []struct {
		off, n int64
		want   error
	}{
		{-1, 1, syscall.EINVAL},
		{0, 0, syscall.EINVAL},
		{0, -5, syscall.EINVAL},
		{1 << 62, 1, syscall.EFBIG},
		{1<<63 - 1, 1<<63 - 1, syscall.EFBIG},
	} {
		require.ErrorIs(t, f.Allocate(tc.off, tc.n, false), tc.want)
		require.ErrorIs(t, f.Punch(tc.off, tc.n), tc.want)
		require.ErrorIs(t, f.ZeroRange(tc.off, tc.n, true), tc.want)
	}
	fs.g.reserves = false // a file system of an earlier version
	require.ErrorIs(t, f.Allocate(0, 1, false), syscall.EOPNOTSUPP)
	require.NoError(t, f.Close())
	fs.g.reserves = true
	require.NoError(t, fs.Unmount())
}

// small formats and mounts a file system of few hugeblocks. The function it returns mounts the same
// file system again.
func small(t *testing.T, v variant) (*FS, func() *FS) {
	dev := memory(t, 12*nvmf.MiB, v.lba)
	seg := Segment{Length: 12 * nvmf.MiB}
	v.f.Generation, v.o.Generation = 7, 7
	require.NoError(t, Format(context.Background(), dev, seg, v.f))
	mount := func() *FS {
		fs, err := Mount(context.Background(), dev, seg, v.o)
		require.NoError(t, err)
		return fs
	}
	return mount(), mount
}

// TestSmallReadsAfterChanges checks that the bytes that an open file keeps from an earlier read are not
// returned after the file was changed: by any call, through the same open file or another one.
func TestSmallReadsAfterChanges(t *testing.T) {
	const size = 64 << 10
	write := func(off int64, n int) func(*File) error {
		return func(f *File) error {
			_, err := f.WriteAt([][]byte{pattern(n, 9)}, off)
			return err
		}
	}
	for name, change := range map[string]func(*File) error{
		"allocate":               func(f *File) error { return f.Allocate(0, 8192, false) },
		"allocate further":       func(f *File) error { return f.Allocate(0, size, false) },
		"allocate behind":        func(f *File) error { return f.Allocate(40<<10, 4096, false) },
		"allocate, keeping size": func(f *File) error { return f.Allocate(0, size, true) },
		"punch":                  func(f *File) error { return f.Punch(0, 3) },
		"zero range":             func(f *File) error { return f.ZeroRange(2, 9000, false) },
		"truncate to more":       func(f *File) error { return f.Truncate(6000) },
		"truncate to less":       func(f *File) error { return f.Truncate(2) },
		"overwrite":              write(1, 3),
		"write behind a gap":     write(7000, 10),
		"append":                 func(f *File) error { _, _, err := f.Append([][]byte{pattern(3000, 4)}); return err },
	} {
		for _, same := range []bool{true, false} {
			fs, _ := small(t, variants[0])
			f := openNew(t, fs, "/f")
			_, err := f.WriteAt([][]byte{[]byte("hello")}, 0)
			require.NoError(t, err)
			small := make([]byte, 5)
			_, err = f.ReadAt([][]byte{small}, 0)
			require.NoError(t, err)
			by := f
			if !same {
				by = openNew(t, fs, "/f")
			}
			require.NoError(t, change(by), name)
			a, err := f.Stat()
			require.NoError(t, err)
			whole := make([]byte, a.Size)
			_, err = fs.readAt(f.in, [][]byte{whole}, 0)
			require.NoError(t, err)
			for off := int64(0); off < a.Size+10; off += 499 {
				b := make([]byte, 100)
				n, err := f.ReadAt([][]byte{b}, off)
				require.NoError(t, err, "%s, at %d", name, off)
				want := whole[min(off, a.Size):min(off+100, a.Size)]
				require.Equal(t, want, b[:n], "%s, at %d, same descriptor: %v", name, off, same)
			}
		}
	}
}
