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

// logRig is a file system whose log can be damaged on the media.
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

// fillPage makes one operation that takes most of a log page.
func (r *logRig) fillPage(name string) {
	require.NoError(r.t, r.fs.Symlink(strings.Repeat("x", 3400), RootIno, name))
}

func (r *logRig) requireNames(names ...string) {
	for _, name := range names {
		_, err := r.fs.Stat(RootIno, name, false)
		require.NoError(r.t, err, name)
	}
}

// TestOneBadSector: after a sync one block of the log is damaged. Whichever it
// is, the other copy of what it held is enough.
func TestOneBadSector(t *testing.T) {
	for _, v := range []variant{variants[0], variants[7]} {
		for slot := range 2 {
			t.Run(fmt.Sprintf("%s, slot %d", v.name, slot), func(t *testing.T) {
				r := newLogRig(t, v)
				for i := range 46 { // a full page but for a few bytes
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

// TestDamagedDurablePage: both slots of a log page that had been flushed are
// damaged. Later durable pages tell that it was there: that is damage, and not
// what a power failure leaves of a cache.
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

// TestFlushAfterGap: power fails with pages D+1 and D+2 in a volatile cache, of
// which D+2 arrives and D+1 does not. Recovery goes back to the durable page D,
// and must not take what comes after it for durable, too.
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

// TestDamageAfterClose: one bit of a file's data is damaged after close, with
// and without an unmount. That is EIO; with a volatile write cache it must not
// be taken for a write that was not finished.
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
