package microfs

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCloseKeeps checks that on a device with a volatile write cache everything that was acknowledged
// before the last close of a file survives a loss of power after it, in all the cases that Close
// distinguishes.
func TestCloseKeeps(t *testing.T) {
	skipRace(t)
	data := pattern(50_000, 9)
	write := func(t *testing.T, f *File) {
		_, err := f.WriteAt([][]byte{data}, 0)
		require.NoError(t, err)
	}
	open := func(t *testing.T, fs *FS, flags int) *File {
		f, err := fs.Open(RootIno, "f", flags, 0o600)
		require.NoError(t, err)
		return f
	}
	witness := func(t *testing.T, fs *FS) { require.NoError(t, fs.Mkdir(RootIno, "witness", 0o700)) }
	const create = unix.O_CREAT | unix.O_RDWR
	cases := []struct {
		name string
		// run ends with the last close. Before it, run makes the directory "witness".
		run  func(t *testing.T, fs *FS)
		gone bool // the file has no name any more
		none bool // the file is empty
	}{
		{"written", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			write(t, f)
			witness(t, fs)
			require.NoError(t, f.Close())
		}, false, false},
		{"synced, and something else since", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			write(t, f)
			require.NoError(t, f.Sync())
			witness(t, fs)
			require.NoError(t, f.Close())
		}, false, false},
		{"two writers, the last has not written", func(t *testing.T, fs *FS) {
			f, g := open(t, fs, create), open(t, fs, unix.O_WRONLY)
			write(t, f)
			require.NoError(t, f.Close())
			witness(t, fs)
			require.NoError(t, g.Close())
		}, false, false},
		{"a reader stays", func(t *testing.T, fs *FS) {
			f, g := open(t, fs, create), open(t, fs, unix.O_RDONLY)
			write(t, f)
			witness(t, fs)
			require.NoError(t, f.Close())
			t.Cleanup(func() { _ = g.Close() })
		}, false, false},
		{"created", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			witness(t, fs)
			require.NoError(t, f.Close())
		}, false, true},
		{"cut", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			write(t, f)
			require.NoError(t, f.Close())
			f = open(t, fs, unix.O_WRONLY)
			require.NoError(t, f.Truncate(0))
			witness(t, fs)
			require.NoError(t, f.Close())
		}, false, true},
		{"opened for writing only", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			write(t, f)
			require.NoError(t, f.Close())
			f = open(t, fs, unix.O_WRONLY)
			witness(t, fs)
			require.NoError(t, f.Close())
		}, false, false},
		{"unlinked", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			write(t, f)
			require.NoError(t, fs.Unlink(RootIno, "f"))
			witness(t, fs)
			require.NoError(t, f.Close())
		}, true, false},
		{"unlinked, a reader stays", func(t *testing.T, fs *FS) {
			f, g := open(t, fs, create), open(t, fs, unix.O_RDONLY)
			write(t, f)
			require.NoError(t, fs.Unlink(RootIno, "f"))
			witness(t, fs)
			require.NoError(t, f.Close())
			t.Cleanup(func() { _ = g.Close() })
		}, true, false},
		{"unlinked, a reader closes last", func(t *testing.T, fs *FS) {
			f, g := open(t, fs, create), open(t, fs, unix.O_RDONLY)
			write(t, f)
			require.NoError(t, fs.Unlink(RootIno, "f"))
			require.NoError(t, g.Close())
			witness(t, fs)
			require.NoError(t, f.Close())
		}, true, false},
		{"replaced by another file", func(t *testing.T, fs *FS) {
			f := open(t, fs, create)
			write(t, f)
			g, err := fs.Open(RootIno, "g", create, 0o600)
			require.NoError(t, err)
			write(t, g)
			require.NoError(t, g.Close())
			require.NoError(t, fs.Rename(RootIno, "g", RootIno, "f", 0))
			witness(t, fs)
			require.NoError(t, f.Close())
		}, false, false},
	}
	crashes := uint64(12)
	if testing.Short() {
		crashes = 2
	}
	for _, v := range allVariants {
		if !v.cache {
			continue
		}
		for _, behind := range []bool{false, true} {
			for _, tc := range cases {
				t.Run(v.name+"/"+tc.name, func(t *testing.T) {
					for seed := range crashes {
						v := v
						v.o.WriteBehind = behind
						c, fs := mounted(t, v)
						fs.ckpt.stop()
						tc.run(t, fs)
						require.NoError(t, c.dev.Crash(seed))
						c.dev.PowerOn()
						fs, err := c.mount()
						require.NoError(t, err)
						fs.ckpt.stop()
						_, err = fs.Stat(RootIno, "witness", false)
						require.NoError(t, err, "seed %d: what was before the close", seed)
						f, err := fs.Open(RootIno, "f", unix.O_RDONLY, 0)
						if tc.gone {
							require.ErrorIs(t, err, unix.ENOENT, "seed %d", seed)
							continue
						}
						require.NoError(t, err, "seed %d", seed)
						got := make([]byte, len(data)+1)
						n, err := f.ReadAt([][]byte{got}, 0)
						require.NoError(t, err)
						if tc.none {
							require.Zero(t, n)
						} else {
							require.True(t, bytes.Equal(data, got[:n]), "seed %d", seed)
						}
					}
				})
			}
		}
	}
}
