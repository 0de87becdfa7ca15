package microfs

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// TestReformat fills a partition and formats it again. It checks that nothing of the old file system
// can be seen: no names, no log records that were not replayed, and no old data in hugeblocks that the
// new file system has reserved, written in part or not written.
func TestReformat(t *testing.T) {
	skipRace(t)
	for _, v := range variants {
		for _, abandoned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, abandoned %t", v.name, abandoned), func(t *testing.T) { reformat(t, v, abandoned) })
		}
	}
}

func reformat(t *testing.T, v variant, abandoned bool) {
	ctx := context.Background()
	const length = 12 * nvmf.MiB
	dev, seg := memory(t, length, v.lba), Segment{Length: length}
	mount := func(generation uint64) (*FS, error) {
		v.o.Generation = generation
		return Mount(ctx, dev, seg, v.o)
	}
	begin := func(generation uint64) *FS {
		v.f.Generation = generation
		require.NoError(t, Format(ctx, dev, seg, v.f))
		fs, err := mount(generation)
		require.NoError(t, err)
		return fs
	}
	fs := begin(7)
	hb := int(fs.g.hugeblock)
	secret := make([]byte, hb+1)
	for i := range secret {
		secret[i] = 0xee
	}
	for n := 0; ; n++ {
		f, err := fs.Open(RootIno, fmt.Sprintf("/secret-%d", n), syscall.O_CREAT|syscall.O_RDWR, 0o600)
		if err == nil {
			_, err = f.WriteAt([][]byte{secret}, 0)
			require.NoError(t, f.Close())
		}
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
	}
	if abandoned {
		fs.ckpt.stop() // as if the process was killed: no state checkpoint is written
	} else {
		require.NoError(t, fs.Unmount())
	}

	fs = begin(8)
	_, err := mount(7)
	require.ErrorIs(t, err, ErrOtherGeneration)
	dir, err := fs.Open(RootIno, "/", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	require.NoError(t, err)
	entries, err := dir.ReadDir("", 100)
	require.NoError(t, err)
	for _, e := range entries {
		require.Contains(t, []string{".", ".."}, e.Name)
	}
	require.NoError(t, dir.Close())

	// Files with one byte each, at different offsets in a hugeblock; a file that reserves all
	// space that is left; and a file that is a hole as large as the partition.
	expect := map[string]int{}
	for n := range 8 {
		f := openNew(t, fs, fmt.Sprintf("/byte-%d", n))
		at := n * hb / 8
		_, err := f.WriteAt([][]byte{{0x11}}, int64(at))
		require.NoError(t, err)
		require.NoError(t, f.Truncate(int64(hb)))
		require.NoError(t, f.Close())
		expect[fmt.Sprintf("/byte-%d", n)] = at
	}
	for name, size := range map[string]int64{"/reserved": int64(fs.StatFS().Free) * int64(hb), "/hole": int64(length)} {
		f := openNew(t, fs, name)
		if name == "/hole" {
			require.NoError(t, f.Truncate(size))
		} else {
			require.NoError(t, f.Allocate(0, size, false))
		}
		require.NoError(t, f.Close())
		expect[name] = -1
	}
	look := func() {
		for name, at := range expect {
			f := openNew(t, fs, name)
			a, err := f.Stat()
			require.NoError(t, err)
			got := make([]byte, a.Size)
			n, err := f.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.EqualValues(t, a.Size, n)
			for i, b := range got {
				if want := byte(0x11); i == at {
					require.Equal(t, want, b, "%s at %d", name, i)
				} else if b != 0 {
					require.Failf(t, "old data", "%s: byte %d is %#x", name, i, b)
				}
			}
			require.NoError(t, f.Close())
		}
	}
	look()
	require.NoError(t, fs.Unmount())
	fs, err = mount(8)
	require.NoError(t, err)
	look()
	require.NoError(t, fs.Unmount())
}
