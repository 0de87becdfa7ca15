package microfs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
	"nvmecr/oplog"
)

// deallocating mounts a file system and stops its background goroutine. Tests call rest to do the
// work of that goroutine.
func deallocating(t *testing.T, v variant) (*crashRig, *FS) {
	c, fs := mounted(t, v)
	fs.ckpt.stop()
	return c, fs
}

// rest deallocates as the background goroutine does while the application makes no calls.
func rest(t *testing.T, fs *FS) {
	require.NoError(t, deallocateOp.fs(fs))
}

// storage returns the bytes of hugeblock h on the device.
func (c *crashRig) storage(fs *FS, h Hugeblock) []byte {
	b := make([]byte, fs.g.hugeblock)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	require.NoError(c.t, fs.readBlocks(fs.g.lbaOf(fs.g.dataOffset(h)), b))
	return b
}

func writeNew(t *testing.T, fs *FS, name string, n int, seed byte) *File {
	f := openNew(t, fs, name)
	got, err := f.WriteAt([][]byte{pattern(n, seed)}, 0)
	require.NoError(t, err)
	require.Equal(t, n, got)
	return f
}

// physOf returns the hugeblock on the media that the first hugeblock of a file is mapped to.
func physOf(f *File) Hugeblock { return f.in.extents.at(f.in.extents.find(0)).phys }

// TestDeallocate checks that freed hugeblocks are deallocated once the application pauses, not
// earlier and only once, and that hugeblocks in use keep their content.
func TestDeallocate(t *testing.T) {
	for _, v := range variants {
		if v.o.WriteBehind {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			c, fs := deallocating(t, v)
			f := writeNew(t, fs, "f", 1<<20, 1)
			g := writeNew(t, fs, "g", 1<<20, 2)
			at, kept := physOf(f), physOf(g)
			require.NoError(t, f.Close())
			rest(t, fs)
			require.Zero(t, c.dev.Count(nvmf.Deallocate), "nothing was freed")
			require.NoError(t, fs.Unlink(RootIno, "f"))
			fs.mu.Lock()
			fs.deallocateSome()
			fs.mu.Unlock()
			require.Zero(t, c.dev.Count(nvmf.Deallocate), "the application has only just freed it")
			old := c.storage(fs, at)
			require.False(t, isZero(old))
			rest(t, fs)
			require.Positive(t, c.dev.Count(nvmf.Deallocate))
			require.True(t, isZero(c.storage(fs, at)))
			require.False(t, isZero(c.storage(fs, kept)))
			require.Zero(t, fs.pool.usedBlocks())
			n := c.dev.Count(nvmf.Deallocate)
			rest(t, fs)
			require.Equal(t, n, c.dev.Count(nvmf.Deallocate), "once is enough")
			require.Equal(t, fs.g.blocks-fs.StatFS().Free-fs.g.spare(), Hugeblock(1<<20/fs.g.hugeblock))
			require.NoError(t, fs.Unmount())
		})
	}
}

// TestDeallocateAtTheEnd checks that Unmount and Vacate deallocate hugeblocks that were freed before.
func TestDeallocateAtTheEnd(t *testing.T) {
	for _, end := range []struct {
		name string
		do   func(*FS) error
	}{{"unmount", (*FS).Unmount}, {"exec", (*FS).Vacate}} {
		t.Run(end.name, func(t *testing.T) {
			c, fs := deallocating(t, variants[0])
			f := writeNew(t, fs, "f", 3<<20, 1)
			require.NoError(t, f.Close())
			require.NoError(t, fs.Unlink(RootIno, "f"))
			require.NoError(t, end.do(fs))
			require.Positive(t, c.dev.Count(nvmf.Deallocate))
			require.Zero(t, fs.pool.usedBlocks())
		})
	}
}

// TestDeallocateInTheBackground checks that the background goroutine deallocates freed hugeblocks
// without any call.
func TestDeallocateInTheBackground(t *testing.T) {
	c, fs := mounted(t, variants[0])
	f := writeNew(t, fs, "f", 1<<20, 1)
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unlink(RootIno, "f"))
	require.Eventually(t, func() bool { return c.dev.Count(nvmf.Deallocate) > 0 }, time.Minute, 10*time.Millisecond)
	require.NoError(t, fs.Unmount())
}

// TestDeallocateBusy checks that while an application goes on writing, freed hugeblocks are kept if
// it writes enough to use them again soon, and deallocated otherwise.
func TestDeallocateBusy(t *testing.T) {
	for _, tc := range []struct {
		name    string
		writes  Hugeblock // in the last second
		dealloc bool
	}{{"writes as much", 16, false}, {"hardly writes", 0, true}} {
		t.Run(tc.name, func(t *testing.T) {
			c, fs := deallocating(t, variants[0])
			f := writeNew(t, fs, "f", 64*32<<10, 1)
			require.NoError(t, f.Close())
			require.NoError(t, fs.Unlink(RootIno, "f"))
			d := &fs.dealloc
			d.since, d.taken = time.Now().Add(-time.Second), fs.pool.taken-uint64(tc.writes)
			fs.mu.Lock()
			fs.lastChange = time.Now()
			wait := fs.deallocateSome()
			fs.mu.Unlock()
			require.Positive(t, wait)
			assert.Equal(t, tc.dealloc, c.dev.Count(nvmf.Deallocate) > 0)
		})
	}
}

// TestDeallocateUsedFirst checks that new files use hugeblocks that were written before, so that many
// rounds of writing and unlinking touch no more of the device than the files of a few rounds need.
func TestDeallocateUsedFirst(t *testing.T) {
	_, fs := deallocating(t, variants[0])
	seen := map[Hugeblock]bool{}
	for i := range 40 {
		f := writeNew(t, fs, fmt.Sprint("f", i), 1<<20, byte(i))
		for x := range f.in.extents.all() {
			for h := x.phys; h < x.phys+x.count; h++ {
				seen[h] = true
			}
		}
		require.NoError(t, f.Close())
		if i >= 2 {
			require.NoError(t, fs.Unlink(RootIno, fmt.Sprint("f", i-2)))
		}
	}
	require.LessOrEqual(t, len(seen), 3*1<<20/int(fs.g.hugeblock))
}

// TestDeallocateLost loses the connection with a Deallocate command in flight, which the target
// executes later. It checks three things. Deallocation does not reconnect by itself. The late
// command destroys no data that was written since. The claim that Unmount writes tells the next
// mount, and only the next one, that commands may still be executed late.
func TestDeallocateLost(t *testing.T) {
	for _, v := range []variant{variants[0], variants[6]} {
		t.Run(v.name, func(t *testing.T) {
			c, fs := deallocating(t, v)
			f := writeNew(t, fs, "f", 4<<20, 1)
			require.NoError(t, f.Close())
			require.NoError(t, fs.Unlink(RootIno, "f"))
			require.NoError(t, fs.Sync())
			c.dev.DisconnectAt(nvmf.Deallocate, 1)
			rest(t, fs)
			n := c.dev.Count(nvmf.Deallocate)
			rest(t, fs)
			require.Equal(t, n, c.dev.Count(nvmf.Deallocate), "nobody has reconnected")
			var want []byte // fills all free space
			g := openNew(t, fs, "g")
			for {
				piece := pattern(512<<10, 2)
				n, err := g.WriteAt([][]byte{piece}, int64(len(want)))
				want = append(want, piece[:n]...)
				if err != nil {
					require.ErrorIs(t, err, unix.ENOSPC)
					break
				}
			}
			require.NoError(t, g.Sync())
			landed, err := c.dev.Release()
			require.NoError(t, err)
			require.Positive(t, landed)
			got := make([]byte, len(want))
			_, err = g.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			require.NoError(t, g.Close())
			require.NoError(t, fs.Unmount())
			last, err := LastClaim(t.Context(), c.dev, c.seg)
			require.NoError(t, err)
			require.True(t, last.Released && last.Late)
			asked := false
			late := Options{Generation: 7, Claimed: func(*Claim) (Late, error) { asked = true; return LateUnlikely, nil }}
			fs, err = Mount(t.Context(), c.dev, c.seg, late)
			require.NoError(t, err)
			require.True(t, asked, "the next mount keeps away")
			require.NoError(t, fs.Unmount())
			asked = false
			fs, err = Mount(t.Context(), c.dev, c.seg, late)
			require.NoError(t, err)
			require.False(t, asked, "and the one after that does not")
			require.NoError(t, fs.Unmount())
		})
	}
}

// TestDeallocateRefused checks that after the device has refused one Deallocate command the file
// system sends no other one, and logs one line.
func TestDeallocateRefused(t *testing.T) {
	v := variants[0]
	var lines []string
	v.o.Logf = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	c, fs := deallocating(t, v)
	c.dev.FailAt(nvmf.Deallocate, 1, &nvmf.StatusError{Opcode: nvmf.Deallocate, SC: 0x02, DNR: true})
	free := fs.StatFS().Free
	for i := range 3 {
		f := writeNew(t, fs, "f", 1<<20, byte(i))
		require.NoError(t, f.Close())
		require.NoError(t, fs.Unlink(RootIno, "f"))
		rest(t, fs)
	}
	require.Equal(t, 1, c.dev.Count(nvmf.Deallocate))
	require.Equal(t, free, fs.StatFS().Free)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "deallocates nothing")
	require.NoError(t, fs.Unmount())
}

// TestDeallocateFlushFails checks that a failed Flush before a deallocation is not hidden: nothing is
// deallocated, and the next Sync fails with EIO.
func TestDeallocateFlushFails(t *testing.T) {
	v := variants[0]
	v.cache = true
	c, fs := deallocating(t, v)
	f := writeNew(t, fs, "f", 4<<20, 1)
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unlink(RootIno, "f"))
	require.Positive(t, fs.pendingFreeBlocks())
	c.dev.FailAt(nvmf.Flush, 1, &nvmf.StatusError{Opcode: nvmf.Flush, SC: 0x06, DNR: true})
	rest(t, fs)
	require.Zero(t, c.dev.Count(nvmf.Deallocate))
	require.ErrorIs(t, fs.Sync(), unix.EIO)
	require.NoError(t, fs.Sync())
	require.NoError(t, fs.Unmount())
}

// TestGranules checks that granules shrinks a run to whole deallocation units of the device, and by
// less than one unit at each end.
func TestGranules(t *testing.T) {
	mem, err := memdev.New(64*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	g, err := newGeometry(mem.Identity(), Segment{Start: nvmf.MiB, Length: 60 * nvmf.MiB}, &FormatOptions{})
	require.NoError(t, err)
	for _, unit := range []nvmf.Bytes{0, 4 * nvmf.KiB, 32 * nvmf.KiB, 256 * nvmf.KiB, 96 * nvmf.KiB, nvmf.GiB} {
		dev := identified{mem, *mem.Identity()}
		dev.identity.DeallocateUnit = unit
		fs := &FS{g: g, dev: &dev}
		random := rand.New(rand.NewPCG(newSeed(t), 1))
		for range 100 {
			r := run{start: Hugeblock(random.Uint32N(500)), count: 1 + Hugeblock(random.Uint32N(500))}
			lba, blocks := fs.granules(r)
			start, end := nvmf.Bytes(lba)*4096, nvmf.Bytes(lba+blocks)*4096
			from := g.seg.Start + g.dataOffset(r.start)
			to := from + nvmf.Bytes(r.count)*g.hugeblock
			if blocks == 0 {
				require.True(t, unit > g.hugeblock && (from+unit-1)/unit*unit >= to/unit*unit, "unit %v, %v", unit, r)
				continue
			}
			u := max(unit, 4096)
			require.True(t, start%u == 0 && end%u == 0 && start >= from && end <= to && start-from < u && to-end < u, "unit %v, %v", unit, r)
		}
	}
	require.NoError(t, mem.Close())
}

// identified is a device with another Identity.
type identified struct {
	nvmf.Device
	identity nvmf.Identity
}

func (d *identified) Identity() *nvmf.Identity { return &d.identity }

// TestPool compares the pool with a set of hugeblocks, under random operations.
func TestPool(t *testing.T) {
	const blocks = 500
	seed := newSeed(t)
	random := rand.New(rand.NewPCG(seed, 2))
	for _, freshFirst := range []bool{false, true} {
		p := pool{long: 8, tracksUsed: true, freshFirst: freshFirst}
		p.putLast(run{0, blocks})
		taken := map[Hugeblock]bool{}
		take := func(r run, ok bool) {
			require.Equal(t, ok, r.count > 0)
			for h := r.start; h < r.start+r.count; h++ {
				require.False(t, taken[h] || h >= blocks, "hugeblock %d", h)
				taken[h] = true
			}
		}
		for range 20000 {
			switch random.IntN(6) {
			case 0, 1:
				r, ok := p.take(Hugeblock(random.IntN(40)))
				take(r, ok)
				if ok && random.IntN(10) == 0 {
					p.untake(r)
					for h := r.start; h < r.start+r.count; h++ {
						delete(taken, h)
					}
				}
			case 2:
				r, ok := p.takeUsed(Hugeblock(random.IntN(40)))
				take(r, ok)
				for h := r.start; h < r.start+r.count; h++ {
					delete(taken, h)
				}
				p.putLast(r)
			case 3:
				if random.IntN(100) == 0 {
					p.rotate(^Hugeblock(0))
				}
			default: // free a run of taken hugeblocks
				start := Hugeblock(random.IntN(blocks))
				r := run{start: start}
				for taken[r.start+r.count] && r.count < Hugeblock(random.IntN(60)) {
					delete(taken, r.start+r.count)
					r.count++
				}
				p.give(r)
			}
			require.Equal(t, blocks-len(taken), int(p.free))
			require.Equal(t, p.free, p.fresh.free+p.used.free+p.open.count)
		}
		p.stopTracking()
		require.Zero(t, p.usedBlocks())
		require.Equal(t, blocks-len(taken), int(p.fresh.free))
	}
}

// TestRetiredByDeallocation checks that the hugeblocks of a Deallocate command that was in flight when
// the connection was lost are not free at first, and are free again after the quarantine.
func TestRetiredByDeallocation(t *testing.T) {
	c, fs := deallocating(t, variants[0])
	free := fs.StatFS().Free
	f := writeNew(t, fs, "f", 4<<20, 1)
	require.NoError(t, f.Close())
	require.NoError(t, fs.Unlink(RootIno, "f"))
	c.dev.DisconnectAt(nvmf.Deallocate, 1)
	rest(t, fs)
	require.Less(t, fs.StatFS().Free, free)
	for h, r := range fs.retired {
		r.since = r.since.Add(-oplog.Quarantine)
		fs.retired[h] = r
	}
	require.NoError(t, fs.Mkdir(RootIno, "d", 0o700)) // this call reconnects
	fs.dealloc.lost = time.Time{}
	rest(t, fs)
	require.Equal(t, free, fs.StatFS().Free)
	require.Zero(t, fs.pool.usedBlocks())
	require.NoError(t, fs.Unmount())
}
