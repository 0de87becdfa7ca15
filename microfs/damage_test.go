package microfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

// logRig is a mounted file system in memory; tests damage its media through mem.
type logRig struct {
	*crashRig
	mem *memdev.Device
	fs  *FS
}

func newLogRig(t *testing.T, v variant) *logRig {
	mem, err := memdev.New(16*nvmf.MiB, v.lba, memdev.Options{})
	require.NoError(t, err)
	r := &logRig{crashRig: newCrashRigOn(t, mem, crashSegment, v), mem: mem}
	t.Cleanup(func() { _ = r.dev.Close() })
	r.fs, err = r.mount()
	require.NoError(t, err)
	return r
}

// tailPage returns both slots of the log page written last.
func (r *logRig) tailPage() []byte {
	lba, _, _ := r.fs.log.TailRead()
	at := nvmf.Bytes(lba) * r.v.lba
	at -= (at - r.fs.g.seg.Start - logOffset) % (2 * oplog.PageSize)
	return r.mem.Bytes()[at : at+2*oplog.PageSize]
}

// fillPage makes a symbolic link whose record takes most of a log page.
func (r *logRig) fillPage(name string) {
	require.NoError(r.t, r.fs.Symlink(strings.Repeat("x", 3400), RootIno, name))
}

func (r *logRig) requireNames(names ...string) {
	for _, name := range names {
		_, err := r.fs.Stat(RootIno, name, false)
		require.NoError(r.t, err, name)
	}
}

// TestOneBadSector damages one slot of a log page after a Sync. It checks that recovery finds all
// records with the copy in the other slot.
func TestOneBadSector(t *testing.T) {
	for _, v := range []variant{variants[0], variants[7]} {
		for slot := range 2 {
			t.Run(fmt.Sprintf("%s, slot %d", v.name, slot), func(t *testing.T) {
				r := newLogRig(t, v)
				for i := range 46 { // they fill a page, except for a few bytes
					require.NoError(t, r.fs.Mkdir(RootIno, fmt.Sprintf("dir%033d", i), 0o700))
				}
				require.NoError(t, r.fs.Sync())
				page := r.tailPage()
				for _, name := range []string{"acknowledged", "later"} {
					r.fillPage(name)
					require.NoError(t, r.fs.Sync())
				}
				copy(page[slot*oplog.PageSize:], pattern(oplog.PageSize, 9))
				r.fs = r.again(r.fs)
				r.requireNames("acknowledged", "later")
			})
		}
	}
}

// TestDamagedDurablePage damages both slots of a log page that had been flushed. It checks that Mount
// fails with ErrDamaged: later durable pages show that this page was durable, so that no loss of power
// can explain that it is missing.
func TestDamagedDurablePage(t *testing.T) {
	for _, v := range []variant{variants[0], variants[7]} {
		t.Run(v.name, func(t *testing.T) {
			r := newLogRig(t, v)
			var damaged []byte
			for i := range 5 {
				r.fillPage(fmt.Sprintf("l%d", i))
				require.NoError(t, r.fs.Sync())
				if i == 2 {
					damaged = r.tailPage()
				}
			}
			copy(damaged, pattern(len(damaged), 9))
			r.fs.ckpt.stop()
			_, err := r.mount()
			require.ErrorIs(t, err, oplog.ErrDamaged)
			require.True(t, MovedOn(err))
		})
	}
}

// TestFlushAfterGap loses power with pages D+1 and D+2 in a volatile write cache. D+2 reaches the media,
// D+1 does not. Recovery goes back to the durable page D. The test checks that records written after
// the recovery do not count as durable before a Flush.
func TestFlushAfterGap(t *testing.T) {
	r := newLogRig(t, variants[7])
	require.NoError(t, r.fs.Mkdir(RootIno, "durable", 0o700))
	require.NoError(t, r.fs.Sync())
	r.fillPage("lost")
	page := r.tailPage()
	r.fillPage("arrived")
	clear(page)
	r.fs = r.again(r.fs)
	r.requireNames("durable")
	flushes := r.dev.Count(nvmf.Flush)
	require.NoError(t, r.fs.Mkdir(RootIno, "new", 0o700))
	require.True(t, isUnflushed(r.fs))
	require.NoError(t, r.fs.Sync())
	require.Greater(t, r.dev.Count(nvmf.Flush), flushes)
}

// TestDamageAfterClose flips one bit of a file's data after Close, with and without an Unmount. It
// checks that a read fails with EIO. With a volatile write cache recovery must not treat the damage as a
// write that a crash cut short, and remove the write.
func TestDamageAfterClose(t *testing.T) {
	for _, v := range variants {
		for _, unmount := range []bool{true, false} {
			if v.f.NoDataCRC {
				continue
			}
			t.Run(fmt.Sprintf("%s, unmounted %v", v.name, unmount), func(t *testing.T) {
				r := newLogRig(t, v)
				f := openNew(t, r.fs, "f")
				_, err := f.WriteAt([][]byte{pattern(100000, 1)}, 0)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				at := r.fs.g.seg.Start + r.fs.g.dataOffset(r.fs.tree.named("f").extents.last().phys)
				if unmount {
					require.NoError(t, r.fs.Unmount())
				}
				r.mem.Bytes()[at] ^= 1
				fs := r.again(r.fs)
				f, err = fs.Open(RootIno, "f", unix.O_RDONLY, 0)
				require.NoError(t, err, "damage was taken for an unfinished write")
				_, err = f.ReadAt([][]byte{make([]byte, 100000)}, 0)
				require.ErrorIs(t, err, unix.EIO)
			})
		}
	}
}
