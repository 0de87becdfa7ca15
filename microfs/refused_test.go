package microfs

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestUnlinkedAfterCheckpoint changes an open file that was unlinked before a state checkpoint. It
// checks that the next mount works: the state must include that file, since later records name it.
func TestUnlinkedAfterCheckpoint(t *testing.T) {
	tests := []struct {
		name   string
		change func(f *File) error
	}{
		{"write", func(f *File) error { _, err := f.WriteAt([][]byte{pattern(100, 1)}, 0); return err }},
		{"truncate", func(f *File) error { return f.Truncate(50) }},
		{"chmod", func(f *File) error { m := uint32(0o640); return f.SetAttr(SetAttr{Mode: &m}) }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c, fs := mounted(t, variants[0])
			f := openNew(t, fs, "temporary")
			require.NoError(t, fs.Unlink(RootIno, "temporary"))
			require.NoError(t, fs.Checkpoint())
			require.NoError(t, tc.change(f))
			require.NoError(t, f.Close())
			require.NoError(t, fs.Unmount())
			fs = c.again(fs)
			require.EqualValues(t, 1, fs.StatFS().Files)
			require.Equal(t, fs.g.blocks-fs.g.spare(), fs.StatFS().Free)
		})
	}
}

// TestRefusedRollover has the device refuse the data of a group that starts a log page, while the image
// of the group reaches the media. It checks that recovery finds the operations that succeed after the
// failed one, also after a state checkpoint.
func TestRefusedRollover(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		t.Run(fmt.Sprintf("checkpoint %v", checkpoint), func(t *testing.T) {
			c, fs := mounted(t, variants[0])
			f := openNew(t, fs, "f")
			for i := range 50 { // the page has too little space left for the next write
				require.NoError(t, fs.Mkdir(RootIno, fmt.Sprintf("d%d", i), 0o700))
			}
			c.dev.FailAt(nvmf.Write, 1, writeFault)
			_, err := f.WriteAt([][]byte{pattern(7<<20, 3)}, 0) // 224 checksums
			require.ErrorIs(t, err, unix.EIO)
			c.dev.Heal()
			if checkpoint {
				require.NoError(t, fs.Checkpoint())
			} else {
				require.NoError(t, fs.Mkdir(RootIno, "acknowledged", 0o700))
			}
			fs = c.again(fs)
			_, err = fs.Stat(RootIno, "d49", false)
			require.NoError(t, err)
			if !checkpoint {
				_, err = fs.Stat(RootIno, "acknowledged", false)
				require.NoError(t, err)
			}
		})
	}
}

// TestRefusedHeader has the device refuse one of the two header writes of a state checkpoint. The other
// header may name the new state already. It checks that this state survives a crash in the middle of
// the next state checkpoint.
func TestRefusedHeader(t *testing.T) {
	for slot := range 2 {
		t.Run(fmt.Sprintf("slot %d", slot), func(t *testing.T) {
			c, fs := mounted(t, variants[0])
			require.NoError(t, fs.Mkdir(RootIno, "a", 0o700))
			require.NoError(t, fs.Sync())
			c.dev.FailAt(nvmf.Write, 2+slot, writeFault) // the writes are: state, header, header
			require.ErrorIs(t, fs.Checkpoint(), unix.EIO)
			c.dev.Heal()
			require.NoError(t, fs.Mkdir(RootIno, "b", 0o700))
			require.NoError(t, fs.Sync())
			c.dev.CutAt(1, 1000)
			require.Error(t, fs.Checkpoint())
			c.dev.PowerOn()
			fs = c.again(fs)
			for _, name := range []string{"a", "b"} {
				_, err := fs.Stat(RootIno, name, false)
				require.NoError(t, err)
			}
		})
	}
}

// TestRefusedHugeblock checks that the next write does not use the hugeblock that the device has just
// refused to write.
func TestRefusedHugeblock(t *testing.T) {
	for _, v := range []variant{variants[0], variants[6]} {
		t.Run(v.name, func(t *testing.T) {
			c, fs := mounted(t, v)
			f := openNew(t, fs, "f")
			for range 3 {
				bad := fs.pool.fresh.first().start
				c.dev.FailAt(nvmf.Write, 1, writeFault)
				_, err := f.WriteAt([][]byte{pattern(32768, 3)}, 0)
				require.ErrorIs(t, err, unix.EIO)
				require.NotEqual(t, bad, fs.pool.fresh.first().start)
			}
			_, err := f.WriteAt([][]byte{pattern(32768, 3)}, 0)
			require.NoError(t, err)
		})
	}
}

// TestRefusedAppend has the device refuse an append to a partly filled hugeblock. It checks that the next
// append goes to another hugeblock, and that no bytes are lost.
func TestRefusedAppend(t *testing.T) {
	for _, v := range []variant{variants[0], variants[6]} {
		t.Run(v.name, func(t *testing.T) {
			c, fs := mounted(t, v)
			f := openNew(t, fs, "f")
			data := pattern(10000, 5)
			_, err := f.WriteAt([][]byte{data[:5000]}, 0)
			require.NoError(t, err)
			bad := f.in.extents.at(extentPos{}).phys
			c.dev.FailAt(nvmf.Write, 1, writeFault)
			_, _, err = f.Append([][]byte{pattern(5000, 6)})
			require.ErrorIs(t, err, unix.EIO)
			_, _, err = f.Append([][]byte{data[5000:]})
			require.NoError(t, err)
			require.NotEqual(t, bad, f.in.extents.at(extentPos{}).phys)
			fs = c.again(fs)
			got := make([]byte, len(data)+1)
			n, err := openNew(t, fs, "f").ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.Equal(t, data, got[:n])
		})
	}
}

// TestRefusedImage has the device refuse the log image of a write, although the image is on the media.
// Then a crash leaves the data of the next write on the media, and not its image. The test checks that
// recovery does not accept that data as the data of the refused write.
func TestRefusedImage(t *testing.T) {
	a, b, c := pattern(5000, 1), pattern(5000, 2), pattern(3000, 3)
	tests := []struct {
		name          string
		refused, next func(f, g *File) error
		want          []byte // the content if recovery accepts the refused write
	}{
		{"overwrite", func(f, _ *File) error { _, err := f.WriteAt([][]byte{b}, 0); return err },
			func(_, g *File) error { _, err := g.WriteAt([][]byte{c}, 0); return err }, b},
		{"append", func(f, _ *File) error { _, _, err := f.Append([][]byte{b}); return err },
			func(f, _ *File) error { _, _, err := f.Append([][]byte{c}); return err }, append(a[:5000:5000], b...)},
	}
	for _, v := range []variant{variants[0], variants[6]} {
		for _, tc := range tests {
			t.Run(v.name+", "+tc.name, func(t *testing.T) {
				r := newLogRig(t, v)
				f, g := openNew(t, r.fs, "f"), openNew(t, r.fs, "g")
				_, err := f.WriteAt([][]byte{a}, 0)
				require.NoError(t, err)
				r.dev.Record()
				r.dev.FailAt(nvmf.Write, 2, writeFault) // the writes are: data, image
				require.ErrorIs(t, tc.refused(f, g), unix.EIO)
				for _, e := range r.dev.Recorded().Events {
					if !e.Completed && e.LBA < r.fs.g.lbaOf(r.fs.g.state[0]) {
						copy(r.mem.Bytes()[nvmf.Bytes(e.LBA)*v.lba:], e.Data)
					}
				}
				r.dev.CutAt(2, 0)
				require.ErrorIs(t, tc.next(f, g), unix.EIO)
				r.dev.PowerOn()
				r.fs = r.again(r.fs)
				got := make([]byte, 20000)
				n, err := openNew(t, r.fs, "f").ReadAt([][]byte{got}, 0)
				require.NoError(t, err)
				if !bytes.Equal(got[:n], tc.want) {
					require.Equal(t, a, got[:n])
				}
			})
		}
	}
}

// TestCloseTwice checks that a second Close fails with EBADF, and that several goroutines may call
// Unmount at once.
func TestCloseTwice(t *testing.T) {
	for range 20 {
		_, fs := mounted(t, variants[0])
		f := openNew(t, fs, "f")
		ino := f.Ino()
		require.NoError(t, f.Close())
		require.Equal(t, ino, f.Ino())
		require.ErrorIs(t, f.Close(), unix.EBADF)
		done := make(chan any, 4)
		for range cap(done) {
			go func() {
				defer func() { done <- recover() }()
				_ = fs.Unmount()
			}()
		}
		for range cap(done) {
			require.Nil(t, <-done)
		}
	}
}
