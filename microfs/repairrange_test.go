package microfs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"nvmecr/nvmf"
)

// contentOf returns the content of a file.
func contentOf(t *testing.T, fs *FS, name string) []byte {
	f, err := fs.Open(RootIno, name, syscall.O_RDONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	size, err := f.Size()
	require.NoError(t, err)
	buf := make([]byte, size)
	n, err := f.ReadAt([][]byte{buf}, 0)
	require.NoError(t, err)
	require.Equal(t, len(buf), n)
	return buf
}

// TestRepairRange damages units at several places of files. It checks that FS.Repair restores them when
// it is given the original bytes, refuses other bytes, and changes nothing else.
func TestRepairRange(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			r := verifyRig(t, v)
			if !r.fs.g.sums {
				require.ErrorIs(t, r.fs.Repair(r.fs.tree.named("plain").ino, 0, contentOf(t, r.fs, "plain")), syscall.ENOTSUP)
				return
			}
			want := map[string][]byte{"plain": contentOf(t, r.fs, "plain"), "holes": contentOf(t, r.fs, "holes")}
			attr, err := r.fs.Stat(RootIno, "plain", true)
			require.NoError(t, err)
			for _, at := range []nvmf.Bytes{r.at("plain", 0), r.at("plain", 70000), r.at("plain", 199999), r.at("holes", 1<<20+39999), r.at("holes", 10<<20)} {
				r.mem.Bytes()[at] ^= 1
			}
			bad := r.verify(r.dev, VerifyOptions{}).Bad
			require.NotEmpty(t, bad)
			for _, b := range bad {
				data := append([]byte{}, want[b.Path[1:]][b.Offset:b.Offset+b.Length]...)
				data[len(data)-1]++
				require.ErrorIs(t, r.fs.Repair(b.Ino, b.Offset, data), ErrNotSame)
				data[len(data)-1]--
				require.NoError(t, r.fs.Repair(b.Ino, b.Offset, data))
			}
			require.Empty(t, r.verify(r.dev, VerifyOptions{}).Bad)
			for name, data := range want {
				require.Equal(t, data, contentOf(t, r.fs, name))
			}
			after, err := r.fs.Stat(RootIno, "plain", true)
			require.NoError(t, err)
			require.Equal(t, attr, after)
		})
	}
}

// TestRepairRefused checks that FS.Repair refuses ranges that are not whole units of a file, and
// read-only mounts.
func TestRepairRefused(t *testing.T) {
	r := verifyRig(t, variants[0])
	ino, data := r.fs.tree.named("plain").ino, contentOf(t, r.fs, "plain")
	holes := r.fs.tree.named("holes").ino
	for _, c := range []struct {
		name string
		ino  Ino
		off  int64
		data []byte
		want error
	}{
		{"between units", ino, 5, data[5 : 32<<10], syscall.EINVAL},
		{"a part of a unit", ino, 0, data[:1000], syscall.EINVAL},
		{"in a hole", holes, 512 << 10, data[:32<<10], syscall.EINVAL},
		{"more than there is", ino, 0, append(data[:len(data):len(data)], 1), syscall.EINVAL},
		{"a directory", RootIno, 0, data, syscall.ENOENT},
		{"no file", 999, 0, data, syscall.ENOENT},
	} {
		require.ErrorIs(t, r.fs.Repair(c.ino, c.off, c.data), c.want, c.name)
	}
	ro := r.v.o
	ro.ReadOnly = true
	fs, err := Mount(t.Context(), r.dev, r.seg, ro)
	require.NoError(t, err)
	defer fs.Unmount()
	require.ErrorIs(t, fs.Repair(ino, 0, data), syscall.EROFS)
	require.ErrorContains(t, r.fs.Repair(holes, 1<<20, data[1:40001]), "bytes 1048576 to ")
}
