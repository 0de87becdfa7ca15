package tree

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
)

// TestDirect reads small pieces of a file without the lock of its inode, and has the file changed in each way in between.
func TestDirect(t *testing.T) {
	const size = 100_000
	r := newRig(t, 2)
	a, b := r.join(0), r.join(1)
	for _, writer := range []struct {
		name string
		*rank
	}{{"own", a}, {"others", b}} {
		path := "/" + writer.name
		writer.write(path, text('0', size))
		f := a.open(path, unix.O_RDONLY)
		piece := func(want string) {
			t.Helper()
			for _, off := range []int64{size / 2, size/2 + 10} {
				buf := make([]byte, 10)
				n, err := f.ReadAt([][]byte{buf}, off)
				require.NoError(t, err)
				require.Equal(t, want, string(buf[:n]), "%s at %d", path, off)
			}
		}
		change := func(change func(g vfs.File)) {
			g := writer.open(path, unix.O_RDWR)
			change(g)
			require.NoError(t, g.Sync())
			require.NoError(t, f.Sync())
			require.NoError(t, g.Close())
		}
		data := func(c string) string { return strings.Repeat(c, 10) }
		piece(text('0', size)[size/2 : size/2+10])
		require.NotNil(t, f.(*file).in.direct.Load(), "no part is direct")

		change(func(g vfs.File) { put(t, g, size/2, data("a")+data("a")) })
		piece(data("a"))
		change(func(g vfs.File) {
			require.NoError(t, g.Truncate(0)) // a new cut, so another shard
			put(t, g, 0, strings.Repeat("b", size))
		})
		piece(data("b"))
		change(func(g vfs.File) { require.NoError(t, g.Punch(0, size)) })
		piece(data("\x00"))
		change(func(g vfs.File) { put(t, g, 0, strings.Repeat("c", size)) })
		piece(data("c"))
		change(func(g vfs.File) { require.NoError(t, g.Truncate(size/2)) })
		piece("")
		change(func(g vfs.File) { put(t, g, 0, strings.Repeat("d", size)) })
		piece(data("d"))

		// A writer in this process is seen at once.
		g := a.open(path, unix.O_WRONLY)
		put(t, g, 0, "first, so that there is a shard to write to")
		piece(data("d"))
		put(t, g, size/2, data("e")+data("e"))
		piece(data("e"))
		require.NoError(t, g.Close())
		piece(data("e"))

		require.NoError(t, f.Close())
		_, err := f.ReadAt([][]byte{make([]byte, 10)}, 0)
		require.ErrorIs(t, err, unix.EBADF)
	}
}
