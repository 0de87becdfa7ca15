package microfs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

func testHolder(pid uint32) Holder {
	return Holder{
		Run: uuid.MustParse("01900000-0000-7000-8000-00000000000a"), Host: "node7",
		Machine: uuid.MustParse("11111111-2222-3333-4444-555555555555"), Boot: uuid.MustParse("66666666-7777-8888-9999-aaaaaaaaaaaa"),
		PIDSpace: 4026531836, PID: pid, Start: 123456,
	}
}

// TestGoldenClaim pins the bytes of a claim, and checks which other bytes decodeClaim accepts.
func TestGoldenClaim(t *testing.T) {
	g := goldenGeometry(t)
	c := &Claim{Holder: testHolder(4711), Sequence: 5, Released: true, Since: time.Unix(0, 1_700_000_000_000_000_001)}
	b := make([]byte, blockSize)
	c.encode(b, g.fs)
	compareGolden(t, "claim.hex", b)
	got, err := decodeClaim(b, g.fs)
	require.NoError(t, err)
	require.Equal(t, c, got)
	c.Late = true
	c.encode(b, g.fs)
	require.EqualValues(t, 2, b[clReleased])
	got, err = decodeClaim(b, g.fs)
	require.NoError(t, err)
	require.Equal(t, c, got)
	got, err = decodeClaim(make([]byte, blockSize), g.fs)
	require.NoError(t, err)
	require.Nil(t, got)
	_, err = decodeClaim(b, uuid.New())
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestClaims checks that Mount calls Options.Claimed if the last writer has not unmounted, and only
// then, and that a read-only mount never does.
func TestClaims(t *testing.T) {
	refuse := errors.New("it may be alive")
	c := newCrashRig(t, variants[0])
	defer c.dev.Close()
	var asked []Claim
	c.v.o.Claimed = func(last *Claim) (Late, error) { asked = append(asked, *last); return LateNone, refuse }
	c.v.o.Holder = testHolder(1)
	fs, err := c.mount()
	require.NoError(t, err, "nobody has claimed it yet")
	require.NoError(t, fs.Unmount())
	fs, err = c.mount()
	require.NoError(t, err, "it was released")
	fs.ckpt.stop() // this mount is never unmounted
	require.Empty(t, asked)
	_, err = c.mount()
	require.ErrorIs(t, err, refuse)
	require.Len(t, asked, 1)
	require.Equal(t, testHolder(1), asked[0].Holder)
	c.v.o.ReadOnly = true
	reader, err := c.mount()
	require.NoError(t, err, "readers take nothing over")
	require.NoError(t, reader.Unmount())
	c.v.o.ReadOnly, c.v.o.Claimed, c.v.o.Holder = false, nil, testHolder(2)
	fs, err = c.mount()
	require.NoError(t, err)
	require.NoError(t, fs.Unmount())
}

// TestRepairDoesNotReleaseForTheKilled checks that Repair leaves the claim of a process that was killed
// unreleased, and a released claim released.
func TestRepairDoesNotReleaseForTheKilled(t *testing.T) {
	for _, killed := range []bool{false, true} {
		c := newCrashRig(t, variants[0])
		defer c.dev.Close()
		c.v.o.Holder = testHolder(1)
		fs, err := c.mount()
		require.NoError(t, err)
		if killed {
			fs.ckpt.stop()
		} else {
			require.NoError(t, fs.Unmount())
		}
		for range 2 {
			_, err = Repair(t.Context(), c.dev, c.seg, c.v.o)
			require.NoError(t, err)
			last, err := LastClaim(t.Context(), c.dev, c.seg)
			require.NoError(t, err)
			require.Equal(t, !killed, last.Released)
		}
	}
}

// TestDamagedClaim checks that Mount takes the claim from one slot if the other is damaged, and calls
// Options.Claimed if both are: then it is not known whether a writer is alive.
func TestDamagedClaim(t *testing.T) {
	for slots := 1; slots <= 2; slots++ {
		c := newLogRig(t, variants[0])
		require.NoError(t, c.fs.Unmount())
		asked := 0
		c.v.o.Claimed = func(*Claim) (Late, error) { asked++; return LateNone, nil }
		at := crashSegment.Start + claimOffset
		for i := range slots {
			c.mem.Bytes()[int(at)+i*blockSize+100] ^= 1
		}
		fs, err := c.mount()
		require.NoError(t, err)
		require.Equal(t, slots-1, asked)
		require.NoError(t, fs.Unmount())
	}
}

// TestTakenOver checks a writer that loses its connection after another writer has mounted the
// partition. When the first writer reconnects it finds the claim of the other one, fails with
// ErrFenced, and writes nothing.
func TestTakenOver(t *testing.T) {
	for _, v := range []variant{variants[0], variants[7]} {
		t.Run(v.name, func(t *testing.T) {
			c, late := mounted(t, v)
			late.ckpt.stop()
			require.NoError(t, late.Mkdir(RootIno, "a", 0o700))
			require.NoError(t, late.Sync())
			c.v.o.Holder = testHolder(2)
			fs, err := c.mount()
			require.NoError(t, err)
			fs.ckpt.stop()
			require.NoError(t, fs.Mkdir(RootIno, "b", 0o700))
			want := snapshotFS(t, fs)
			c.dev.Disconnect()
			writes := c.dev.Count(nvmf.Write)
			err = late.Mkdir(RootIno, "c", 0o700)
			require.ErrorIs(t, err, nvmf.ErrFenced)
			require.ErrorIs(t, err, unix.EIO)
			require.ErrorIs(t, late.Mkdir(RootIno, "d", 0o700), unix.EIO)
			require.ErrorIs(t, late.Unmount(), nil)
			require.Equal(t, writes, c.dev.Count(nvmf.Write))
			require.Equal(t, want, snapshotFS(t, c.again(fs)))
		})
	}
}

// TestReserveAway checks that the file system calls Options.Reserve again as long as it fails because
// the target is not reachable. Reserve is called after a reconnection and after a reservation conflict.
func TestReserveAway(t *testing.T) {
	for _, gone := range []error{nvmf.ErrUnreachable, nvmf.ErrHostRefused, nvmf.ErrNoSubsystem, nvmf.ErrNoNamespace, nvmf.ErrConnectionLost} {
		for _, cause := range []func(*crashRig){
			func(c *crashRig) { c.dev.Disconnect() },
			func(c *crashRig) { c.dev.FailAt(nvmf.Write, 1, &nvmf.StatusError{Opcode: nvmf.Write, SC: 0x83}) },
		} {
			c := newCrashRig(t, variants[0])
			asked := 0
			c.v.o.Reserve = func(context.Context) error {
				if asked++; asked < 4 {
					return gone
				}
				return nil
			}
			fs, err := c.mount()
			require.NoError(t, err)
			fs.ckpt.stop()
			cause(c)
			require.NoError(t, fs.Mkdir(RootIno, "a", 0o700), gone)
			require.Equal(t, 4, asked)
			require.NoError(t, fs.Unmount())
		}
	}
}

// TestConflict checks what follows when the device refuses a write because of another host's
// reservation. The file system calls Options.Reserve. If that fails with ErrFenced the operation fails;
// otherwise the write is repeated.
func TestConflict(t *testing.T) {
	for _, status := range []uint8{0x83, 0x14} { // conflict, preempted
		testConflict(t, &nvmf.StatusError{Opcode: nvmf.Write, SC: status})
	}
}

func testConflict(t *testing.T, conflict *nvmf.StatusError) {
	workload := func(fs *FS) error {
		f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
		if err == nil {
			_, err = f.WriteAt([][]byte{pattern(100000, 1)}, 0)
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			err = fs.Mkdir(RootIno, "d", 0o700)
		}
		if err == nil {
			err = fs.Checkpoint()
		}
		return err
	}
	for _, fenced := range []bool{false, true} {
		for n := 1; ; n++ {
			c := newCrashRig(t, variants[0])
			reserved := 0
			c.v.o.Reserve = func(context.Context) error {
				reserved++
				if fenced {
					return nvmf.ErrFenced
				}
				return nil
			}
			fs, err := c.mount()
			require.NoError(t, err)
			fs.ckpt.stop()
			c.dev.FailAt(nvmf.Write, n, conflict)
			err = workload(fs)
			if reserved == 0 {
				require.NoError(t, err)
				require.Greater(t, n, 8)
				break
			}
			if fenced {
				require.ErrorIs(t, err, nvmf.ErrFenced, "write %d", n)
				require.ErrorIs(t, fs.Mkdir(RootIno, "x", 0o700), unix.EIO)
				continue
			}
			require.NoError(t, err, "write %d", n)
			want := snapshotFS(t, fs)
			require.Equal(t, want, snapshotFS(t, c.again(fs)))
		}
	}
}

// TestVacate checks that Mount does not call Options.Claimed for a partition whose writer has called
// Vacate. It also checks that this writer can go on writing, which claims the partition again, unless
// another writer has mounted it.
func TestVacate(t *testing.T) {
	refuse := errors.New("it may be alive")
	c := newCrashRig(t, variants[0])
	defer c.dev.Close()
	asked := 0
	c.v.o.Claimed = func(*Claim) (Late, error) { asked++; return LateNone, refuse }
	c.v.o.Holder = testHolder(1)
	fs, err := c.mount()
	require.NoError(t, err)
	f, err := fs.Open(RootIno, "f", unix.O_RDWR|unix.O_CREAT, 0o600)
	require.NoError(t, err)
	gone, err := fs.Open(RootIno, "gone", unix.O_RDWR|unix.O_CREAT, 0o600)
	require.NoError(t, err)
	require.NoError(t, fs.Unlink(RootIno, "gone"))
	write := func(f *File, text string) error {
		_, _, err := f.Append([][]byte{[]byte(text)})
		return err
	}
	require.NoError(t, write(f, "one"))
	require.NoError(t, write(gone, "one"))

	for range 2 { // the writer goes on after Vacate
		require.NoError(t, fs.Vacate())
		require.NoError(t, fs.Vacate(), "with nothing in between")
		require.NoError(t, write(gone, "two"))
		_, err = c.mount()
		require.ErrorIs(t, err, refuse)
	}
	require.NoError(t, fs.Vacate())
	require.NoError(t, f.Close(), "a close, too, claims it again")
	_, err = c.mount()
	require.ErrorIs(t, err, refuse)
	require.NoError(t, write(gone, "three"))
	require.Equal(t, 3, asked)

	require.NoError(t, fs.Vacate())
	c.v.o.Holder = testHolder(2)
	next, err := c.mount()
	require.NoError(t, err)
	require.Equal(t, 3, asked)
	attr, err := next.Stat(RootIno, "f", true)
	require.NoError(t, err)
	require.EqualValues(t, 3, attr.Size)
	_, err = next.Stat(RootIno, "gone", true)
	require.ErrorIs(t, err, unix.ENOENT)
	require.ErrorIs(t, write(gone, "late"), nvmf.ErrFenced)
	require.NoError(t, next.Unmount())
}

// TestVacateDisconnected loses the connection while Vacate releases the claim, or while the next write
// claims the partition again. The target executes the lost command later. The test checks the claim
// on the media after each step.
func TestVacateDisconnected(t *testing.T) {
	for _, tc := range []struct {
		name       string
		back       bool // the connection is lost when the partition is claimed again
		kind       nvmf.Opcode
		nth        int
		landsFirst bool
	}{
		{"given up, first copy", false, nvmf.Write, 1, true},
		{"given up, second copy", false, nvmf.Write, 2, false},
		{"looked at", true, nvmf.Read, 1, true},
		{"taken back, first copy", true, nvmf.Write, 1, false},
		{"taken back, second copy", true, nvmf.Write, 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCrashRig(t, variants[0])
			defer c.dev.Close()
			c.v.o.Holder = testHolder(1)
			fs, err := c.mount()
			require.NoError(t, err)
			f, err := fs.Open(RootIno, "f", unix.O_RDWR|unix.O_CREAT, 0o600)
			require.NoError(t, err)
			require.NoError(t, fs.Sync())
			lose := func() { c.dev.DisconnectAt(tc.kind, tc.nth) }
			land := func(now bool) {
				if now {
					_, err := c.dev.Release()
					require.NoError(t, err)
				}
			}
			if !tc.back {
				lose()
			}
			require.NoError(t, fs.Vacate())
			land(tc.landsFirst)
			last, _, err := fs.readClaim()
			require.NoError(t, err)
			require.True(t, last.Released)
			if tc.back {
				lose()
			}
			_, _, err = f.Append([][]byte{[]byte("more")})
			require.NoError(t, err)
			land(true)
			require.NoError(t, fs.checkClaim())
			last, _, err = fs.readClaim()
			require.NoError(t, err)
			require.False(t, last.Released)
			require.NoError(t, fs.Unmount())
		})
	}
}
