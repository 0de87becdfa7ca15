package microfs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
	"nvmecr/nvmf/memdev"
)

// TestDisconnect loses the connection at random commands. The target executes the writes that were in
// flight at some later time, or never. It checks that no call of the application fails, and that after
// a remount nothing is missing.
func TestDisconnect(t *testing.T) {
	for _, v := range everyVariant {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			seed := newSeed(t)
			for s := uint64(0); s < 8; s += sweepStep {
				disconnectOften(t, v, seed+s)
			}
		})
	}
}

func disconnectOften(t *testing.T, v variant, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	ops, states := (&generator{r: rand.New(rand.NewPCG(seed, 0)), m: v.model(), maxFile: 300 << 10, ranges: seed%2 == 0}).workload(80)
	v.f.LogPages = max(v.f.LogPages, 64) // with a full log an operation would wait for oplog.Quarantine
	c := newCrashRig(t, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	c.dev.Shuffle(r.Uint64())
	losses := int(fs.g.logPages / 5) // each retires up to two pages of the log
	kinds := []nvmf.Opcode{nvmf.Write, nvmf.Write, nvmf.Write, nvmf.Read, nvmf.Flush}
	for i, o := range ops {
		if r.IntN(4) == 0 && losses > 0 {
			losses--
			c.dev.DisconnectAt(kinds[r.IntN(len(kinds))], 1+r.IntN(4))
		}
		require.NoError(t, o.fs(fs), "seed %d step %d %s", seed, i, o.name)
		if r.IntN(5) == 0 {
			_, err := c.dev.Release()
			require.NoError(t, err)
		}
	}
	c.dev.Heal()
	last := len(ops)
	match(t, fs, states, last, last, fmt.Sprintf("seed %d", seed))
	fs.ckpt.stop()
	fs, err = c.mount()
	require.NoError(t, err, "seed %d", seed)
	match(t, fs, states, last, last, fmt.Sprintf("seed %d mounted again", seed))
	require.NoError(t, fs.Unmount())
}

// writeFault is the status Write Fault, of a device that cannot write a block.
var writeFault = &nvmf.StatusError{Opcode: nvmf.Write, SCT: 2, SC: 0x80}

// TestIOErrors has the device refuse single writes. It checks that the operation either fails with EIO
// and has no effect, or succeeds, and that later operations work.
func TestIOErrors(t *testing.T) {
	seed, step := newSeed(t), 1
	if testing.Short() {
		step = 3
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for nth := 1; nth <= 60; nth += step * sweepStep {
				refuseOnce(t, v, seed, nth)
			}
		})
	}
}

func refuseOnce(t *testing.T, v variant, seed uint64, nth int) {
	what := fmt.Sprintf("seed %d write %d", seed, nth)
	r := rand.New(rand.NewPCG(seed, uint64(nth)))
	g := &generator{r: r, m: v.model(), maxFile: 300 << 10}
	c := newCrashRig(t, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	c.dev.FailAt(nvmf.Write, nth, writeFault)
	for range 40 {
		o := g.next()
		err := o.fs(fs)
		if err == nil {
			o.model(g.m)
			continue
		}
		var status *nvmf.StatusError
		require.True(t, errors.As(err, &status), "%s %s: %v", what, o.name, err)
		require.ErrorIs(t, err, syscall.EIO)
	}
	require.Equal(t, g.m.snapshot(), snapshotFS(t, fs), what)
	fs.ckpt.stop()
	c.dev.Heal()
	fs, err = c.mount()
	require.NoError(t, err, what)
	require.Equal(t, g.m.snapshot(), snapshotFS(t, fs), what)
	require.NoError(t, fs.Unmount())
}

// TestRefusedStaysRefused has the device refuse a write, so that an operation fails, and makes no other
// operation after it. The failed operation may be on the media all the same, also from a first attempt
// before the connection was lost. The test checks that the next mount does not find the failed operation.
func TestRefusedStaysRefused(t *testing.T) {
	seed, step := newSeed(t), 1
	if testing.Short() {
		step = 3
	}
	for _, v := range variants {
		for _, end := range []string{"crash", "unmount", "lost, crash"} {
			t.Run(v.name+"/"+end, func(t *testing.T) {
				t.Parallel()
				for nth := 1; nth <= 60; nth += step * sweepStep {
					refuseLast(t, v, seed, nth, end)
				}
			})
		}
	}
}

func refuseLast(t *testing.T, v variant, seed uint64, nth int, end string) {
	what := fmt.Sprintf("seed %d write %d", seed, nth)
	g := &generator{r: rand.New(rand.NewPCG(seed, uint64(nth))), m: v.model(), maxFile: 300 << 10}
	c := newCrashRig(t, v)
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	if end == "lost, crash" { // the connection is lost, and the device refuses a write after that
		c.dev.DisconnectAt(nvmf.Write, nth)
		nth += 1 + g.r.IntN(4)
	}
	c.dev.FailAt(nvmf.Write, nth, writeFault)
	for range 60 {
		o := g.next()
		if err := o.fs(fs); err != nil {
			require.ErrorIs(t, err, syscall.EIO, "%s %s", what, o.name)
			what += " " + o.name
			break
		}
		o.model(g.m)
	}
	require.Equal(t, g.m.snapshot(), snapshotFS(t, fs), what)
	if end == "unmount" {
		require.NoError(t, fs.Unmount(), what)
	} else {
		fs.ckpt.stop()
		c.dev.Release()
	}
	c.dev.Heal()
	fs, err = c.mount()
	require.NoError(t, err, what)
	require.Equal(t, g.m.snapshot(), snapshotFS(t, fs), what)
	require.NoError(t, fs.Unmount())
}

// TestSectorDamage overwrites every block of the partition, one at a time. It checks that the file
// system either shows its old content or reports an error.
func TestSectorDamage(t *testing.T) {
	skipRace(t)
	seed := newSeed(t)
	mem, err := memdev.New(16*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	defer mem.Close()
	ctx := context.Background()
	o := Options{Generation: 7}
	require.NoError(t, Format(ctx, mem, crashSegment, FormatOptions{Generation: 7, LogPages: 16}))
	fs, err := Mount(ctx, mem, crashSegment, o)
	require.NoError(t, err)
	g := &generator{r: rand.New(rand.NewPCG(seed, 0)), m: newModel(), maxFile: 300 << 10}
	for i := 0; i < 150 || !hasData(g.m.snapshot()); i++ {
		op := g.next()
		require.NoError(t, op.fs(fs))
		op.model(g.m)
	}
	require.NoError(t, fs.Unmount())
	want := g.m.snapshot()
	repaired, reported := 0, 0
	junk := make([]byte, 4096)
	for i := range junk {
		junk[i] = byte(i*7 + 3)
	}
	media := mem.Bytes()
	for at := crashSegment.Start; at < crashSegment.Start+crashSegment.Length; at += 4096 {
		sector := media[at : at+4096]
		if isZero(sector) {
			continue
		}
		keep := append([]byte(nil), sector...)
		copy(sector, junk)
		if damagedIsReported(t, mem, want, fmt.Sprintf("seed %d byte %d", seed, at)) {
			reported++
		} else {
			repaired++
		}
		copy(media[at:at+4096], keep)
	}
	t.Logf("%d blocks damaged: %d made no difference, %d were reported", repaired+reported, repaired, reported)
	assert.Positive(t, reported)
	assert.Positive(t, repaired)
}

// hasData reports whether a snapshot has a file that is not empty.
func hasData(snapshot map[string]string) bool {
	for _, s := range snapshot {
		var mode, size int
		if n, _ := fmt.Sscanf(s, "file %o %d", &mode, &size); n == 2 && size > 0 {
			return true
		}
	}
	return false
}

// damagedIsReported mounts read-only and compares the content of all files with want. It returns
// whether the mount, or a read, reported damage.
func damagedIsReported(t *testing.T, dev nvmf.Device, want map[string]string, what string) bool {
	fs, err := Mount(context.Background(), dev, crashSegment, Options{Generation: 7, ReadOnly: true})
	if err != nil {
		require.ErrorIs(t, err, ErrCorrupt, what)
		return true
	}
	defer fs.Unmount()
	damaged := false
	for path, s := range want {
		a, err := fs.Stat(RootIno, path+"/.", false)
		if err != nil {
			a, err = fs.Stat(RootIno, path, false)
		}
		require.NoError(t, err, what)
		if a.Mode&modeType != modeRegular {
			continue
		}
		f, err := fs.Open(RootIno, path, unix.O_RDONLY, 0)
		require.NoError(t, err)
		b := make([]byte, a.Size)
		if _, err := f.ReadAt([][]byte{b}, 0); err != nil {
			var d *DamageError
			require.True(t, errors.As(err, &d), what)
			require.Equal(t, path, d.Name)
			damaged = true
		} else {
			require.Equal(t, s, fmt.Sprintf("file %o %d %x %t", a.Mode&modePerm, a.Size, checksum(b), a.Closed && a.Size > 0), "%s %s", what, path)
		}
		require.NoError(t, f.Close())
	}
	return damaged
}

// TestFull fills the partition until a write fails with ENOSPC. It checks that the bytes written before
// are kept, and that freed space can be used again.
func TestFull(t *testing.T) {
	skipRace(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			c := newCrashRig(t, v)
			defer c.dev.Close()
			fs, err := c.mount()
			require.NoError(t, err)
			for round := range 3 {
				f, err := fs.Open(RootIno, "big", unix.O_CREAT|unix.O_RDWR, 0o600)
				require.NoError(t, err)
				chunk := make([]byte, 300000)
				for i := range chunk {
					chunk[i] = byte(i + round)
				}
				size := int64(0)
				for {
					n, err := f.WriteAt([][]byte{chunk}, size)
					size += int64(n)
					if err != nil {
						require.ErrorIs(t, err, syscall.ENOSPC)
						break
					}
				}
				require.Greater(t, size, int64(8<<20))
				require.Zero(t, fs.StatFS().Free)
				a, err := f.Stat()
				require.NoError(t, err)
				require.Equal(t, size, a.Size)
				got := make([]byte, size)
				_, err = f.ReadAt([][]byte{got}, 0)
				require.NoError(t, err)
				for i := range got {
					if got[i] != byte(i%300000+round) {
						require.Failf(t, "wrong byte", "at %d", i)
					}
				}
				require.NoError(t, f.Close())
				require.NoError(t, fs.Unlink(RootIno, "big"))
				require.NoError(t, fs.Sync())
			}
			require.Equal(t, fs.StatFS().Blocks, fs.StatFS().Free)
			require.Equal(t, fs.g.blocks, fs.available())
			require.NoError(t, fs.Unmount())
		})
	}
}

// TestFullOfNames creates files until the state area has no space for another inode. It checks that the
// create fails with ENOSPC, and that a state checkpoint and another mount still work.
func TestFullOfNames(t *testing.T) {
	c := newCrashRig(t, variants[0])
	defer c.dev.Close()
	fs, err := c.mount()
	require.NoError(t, err)
	n := 0
	for ; ; n++ {
		f, err := fs.Open(RootIno, fmt.Sprintf("file-%06d", n), unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
		require.NoError(t, f.Close())
	}
	require.Greater(t, n, 500)
	require.NoError(t, fs.Checkpoint())
	require.NoError(t, fs.Unmount())
	fs, err = c.mount()
	require.NoError(t, err)
	require.EqualValues(t, n+1, fs.StatFS().Files)
	require.NoError(t, fs.Unlink(RootIno, "file-000000"))
	require.NoError(t, fs.Mkdir(RootIno, "again", 0o700))
	require.NoError(t, fs.Unmount())
}

// TestTargetChanged checks that operations fail with EIO once the last log page is not on the media
// any more after a reconnection.
func TestTargetChanged(t *testing.T) {
	mem, err := memdev.New(16*nvmf.MiB, 4096, memdev.Options{})
	require.NoError(t, err)
	dev, err := blocktest.NewFaulty(mem)
	require.NoError(t, err)
	defer dev.Close()
	ctx := context.Background()
	require.NoError(t, Format(ctx, dev, crashSegment, FormatOptions{Generation: 7}))
	fs, err := Mount(ctx, dev, crashSegment, Options{Generation: 7})
	require.NoError(t, err)
	require.NoError(t, fs.Mkdir(RootIno, "a", 0o700))
	clear(mem.Bytes())
	dev.Disconnect()
	err = fs.Mkdir(RootIno, "b", 0o700)
	require.ErrorIs(t, err, nvmf.ErrNamespaceChanged)
	require.ErrorIs(t, err, syscall.EIO)
	_, err = fs.Stat(RootIno, "a", true)
	require.ErrorIs(t, err, syscall.EIO)
	require.NoError(t, fs.Unmount())
}
