package microfs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestCreateIsOneGroup checks that the Close record of a file that was created and closed without a
// write is logged with the next group: a crash right after the close finds the file not closed, a
// crash after any other change finds it closed.
func TestCreateIsOneGroup(t *testing.T) {
	c, fs := mounted(t, variants[0])
	touch := func(name string) {
		f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_WRONLY, 0o600)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	closed := func(name string) bool {
		a, err := fs.Stat(RootIno, name, false)
		require.NoError(t, err, name)
		return a.Closed
	}
	touch("a")
	require.True(t, closed("a"))
	fs = c.again(fs)
	require.False(t, closed("a"), "nothing was logged after it")

	for name, then := range map[string]func() error{
		"create":   func() error { touch("another"); return nil },
		"sync":     func() error { return fs.Sync() },
		"mkdir":    func() error { return fs.Mkdir(RootIno, "d", 0o700) },
		"write":    func() error { return writeOp("a", 0, []byte("x")).fs(fs) },
		"more":     func() error { return writeOp("a", 0, make([]byte, 3<<20)).fs(fs) },
		"unmount":  func() error { return fs.Unmount() },
		"link":     func() error { return fs.Link(RootIno, "create", RootIno, "also", false) },
		"renaming": func() error { return fs.Rename(RootIno, "renaming", RootIno, "renamed", 0) },
	} {
		if name == "link" {
			touch("create")
		}
		touch(name)
		require.NoError(t, then(), name)
		fs = c.again(fs)
		if name == "renaming" {
			name = "renamed"
		}
		require.True(t, closed(name), name)
	}
}

// TestCreatedThenWritten checks that the deferred Close record of a file does not go to the log after
// records of later writes to that file, whose writer dies: the file must not count as closed.
func TestCreatedThenWritten(t *testing.T) {
	for _, size := range []int{1, 100, 3 << 20} {
		c, fs := mounted(t, variants[0])
		f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_WRONLY, 0o600)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, writeOp("f", 0, make([]byte, size)).fs(fs))
		require.NoError(t, fs.Sync())
		fs = c.again(fs)
		a, err := fs.Stat(RootIno, "f", false)
		require.NoError(t, err)
		require.False(t, a.Closed, "its writer has died")
		require.EqualValues(t, size, a.Size)
		require.NoError(t, fs.Unmount())
	}
}

// TestManyCreatedAtOnce creates and closes more files than the log can defer Close records for. The
// connection is lost now and then, and the log is small. After a crash all files must count as closed.
func TestManyCreatedAtOnce(t *testing.T) {
	v := variants[0]
	v.f.LogPages = 64
	c, fs := mounted(t, v)
	const files = 100
	for round := range 3 {
		var open []*File
		for i := range files {
			f, err := fs.Open(RootIno, fmt.Sprintf("%d.%d", round, i), unix.O_CREAT|unix.O_WRONLY, 0o600)
			require.NoError(t, err)
			open = append(open, f)
			if i == round*30 {
				c.dev.DisconnectAt(nvmf.Write, 1)
			}
		}
		for _, f := range open {
			require.NoError(t, f.Close())
		}
	}
	require.NoError(t, fs.Sync())
	fs = c.again(fs)
	for round := range 3 {
		for i := range files {
			a, err := fs.Stat(RootIno, fmt.Sprintf("%d.%d", round, i), false)
			require.NoError(t, err)
			require.True(t, a.Closed)
		}
	}
}

// TestCreateUndone checks that a create whose log image the device refuses is removed from the tree
// again: the create was applied while the image was in flight. If the connection is lost instead, the
// create succeeds.
func TestCreateUndone(t *testing.T) {
	c, fs := mounted(t, variants[0])
	require.NoError(t, fs.Mkdir(RootIno, "d", 0o700))
	before, bytes, next := fs.tree.encode(nil), fs.tree.bytes, fs.tree.nextIno
	makers := map[string]func(string) error{
		"file": func(p string) error {
			_, err := fs.Open(RootIno, p, unix.O_CREAT|unix.O_WRONLY, 0o600)
			return err
		},
		"directory": func(p string) error { return fs.Mkdir(RootIno, p, 0o700) },
		"link":      func(p string) error { return fs.Symlink("target", RootIno, p) },
	}
	for what, do := range makers {
		c.dev.FailAt(nvmf.Write, 1, &nvmf.StatusError{Opcode: nvmf.Write, SCT: 2, SC: 0x80, DNR: true})
		require.ErrorIs(t, do("d/"+what), unix.EIO, what)
		require.Equal(t, before, fs.tree.encode(nil), what)
		require.Equal(t, bytes, fs.tree.bytes, what)
		require.Equal(t, next, fs.tree.nextIno, what)
	}
	for what, do := range makers {
		c.dev.DisconnectAt(nvmf.Write, 1)
		require.NoError(t, do("d/"+what), what)
	}
	require.Equal(t, snapshotFS(t, fs), snapshotFS(t, c.again(fs)))
}
