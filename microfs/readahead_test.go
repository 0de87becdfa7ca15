package microfs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/blocktest"
)

func openRW(t testing.TB, fs *FS, name string) *File {
	f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	return f
}

// readPieces reads a file from its start in pieces.
func readPieces(t testing.TB, f *File, piece int) []byte {
	var got []byte
	buf := make([]byte, piece)
	for {
		n, err := f.ReadAt([][]byte{buf}, int64(len(got)))
		require.NoError(t, err)
		if n == 0 {
			return got
		}
		got = append(got, buf[:n]...)
	}
}

// TestReadAheadRoundTrips bounds the number of Read commands, and the bytes they transfer, for small
// reads of a file of 16 MiB in several orders and with several advices.
func TestReadAheadRoundTrips(t *testing.T) {
	const size = 16 << 20
	want := pattern(size, 5)
	scatter := rand.New(rand.NewPCG(1, 2)).Perm(size / 4096)
	for _, c := range []struct {
		name   string
		advice int
		random bool
		piece  int
		limit  int
	}{
		{"in sequence", unix.FADV_NORMAL, false, 4096, 18}, // 256, 512 KiB, then a MiB each
		{"in sequence, larger pieces", unix.FADV_NORMAL, false, 32 << 10, 18},
		{"in sequence, odd pieces", unix.FADV_NORMAL, false, 5000, 18},
		{"FADV_SEQUENTIAL", unix.FADV_SEQUENTIAL, false, 4096, 16},
		{"FADV_WILLNEED", unix.FADV_WILLNEED, false, 4096, 16},
		{"FADV_RANDOM", unix.FADV_RANDOM, false, 4096, size / (32 << 10)},
		{"in any order", unix.FADV_NORMAL, true, 4096, size / 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, hook := onHooked(t, 64*nvmf.MiB, Options{})
			f := openRW(t, fs, "f")
			_, err := f.WriteAt([][]byte{want}, 0)
			require.NoError(t, err)
			require.NoError(t, f.Advise(0, 0, c.advice))
			trips, moved := 0, nvmf.Bytes(0)
			hook.set(func(n nvmf.Bytes) { trips, moved = trips+1, moved+n })
			if !c.random {
				require.True(t, bytes.Equal(want, readPieces(t, f, c.piece)))
				require.LessOrEqual(t, moved, nvmf.Bytes(size+18*int(fs.g.unit)), "bytes read twice")
			} else {
				buf := make([]byte, c.piece)
				for _, i := range scatter {
					_, err := f.ReadAt([][]byte{buf}, int64(i*4096))
					require.NoError(t, err)
				}
				require.LessOrEqual(t, moved, nvmf.Bytes(2*len(scatter))*fs.g.unit, "reads that do not go on read more than a unit")
			}
			require.LessOrEqual(t, trips, c.limit)
		})
	}
}

// TestReadAheadOfWriter bounds the number of commands of an application that makes small writes and
// reads the same place after each. If the writes stay inside one block, the block is read once. If
// they cross the start of a block, each round may read two blocks.
func TestReadAheadOfWriter(t *testing.T) {
	const (
		size   = 40_000
		rounds = 100
		writes = rounds // data and log image of a write are submitted together
	)
	for _, c := range []struct {
		name  string
		at    func(i int) int64 // of write number i
		read  int64
		trips int
	}{
		{"the same block", func(i int) int64 { return 33_000 + int64(i) }, 32 << 10, 1},
		{"the end", func(i int) int64 { return size + int64(4*i) }, 32 << 10, 1},
		{"across the start of the block", func(int) int64 { return 32<<10 - 2 }, 33_000, 2*rounds + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, hook := onHooked(t, 64*nvmf.MiB, Options{})
			f := openRW(t, fs, "f")
			want, got := pattern(size, 5), make([]byte, 8192)
			_, err := f.WriteAt([][]byte{want}, 0)
			require.NoError(t, err)
			require.NoError(t, f.Advise(0, 0, unix.FADV_RANDOM))
			trips := 0
			hook.set(func(nvmf.Bytes) { trips++ })
			for i := range rounds {
				text := []byte{byte(i), 2, 3, byte(i)}
				want = append(want, make([]byte, max(0, int(c.at(i))+len(text)-len(want)))...)
				copy(want[c.at(i):], text)
				_, err := f.WriteAt([][]byte{text[:1], text[1:]}, c.at(i))
				require.NoError(t, err)
				n, err := f.ReadAt([][]byte{got}, c.read)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want[c.read:min(int(c.read)+len(got), len(want))], got[:n]), "round %d", i)
			}
			require.LessOrEqual(t, trips, writes+c.trips)
		})
	}
}

// TestReadAheadOfTwoWriters checks that small overwrites through two open files of one file, next to
// each other, do not undo each other.
func TestReadAheadOfTwoWriters(t *testing.T) {
	fs, _ := onHooked(t, 64*nvmf.MiB, Options{})
	f, other := openRW(t, fs, "f"), openRW(t, fs, "f")
	want, got := pattern(20_000, 5), make([]byte, 20_000)
	_, err := f.WriteAt([][]byte{want}, 0)
	require.NoError(t, err)
	for i, w := range []*File{f, other, f, f, other, other, f} {
		text := []byte{byte(i), 1, 2, byte(i)}
		copy(want[1000*i:], text)
		_, err := w.WriteAt([][]byte{text}, int64(1000*i))
		require.NoError(t, err)
		_, err = f.ReadAt([][]byte{got}, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "write %d", i)
	}
}

// TestReadAheadIsCurrent checks that reads do not return bytes that were read ahead before the file was
// changed, through another open file or by path.
func TestReadAheadIsCurrent(t *testing.T) {
	const size = 300_000
	was := pattern(size, 5)
	for name, change := range map[string]struct {
		do   func(fs *FS, f *File) error
		want func() []byte
	}{
		"write": {
			func(_ *FS, f *File) error { _, err := f.WriteAt([][]byte{[]byte("new")}, 5000); return err },
			func() []byte { b := bytes.Clone(was); copy(b[5000:], "new"); return b },
		},
		"append": {
			func(_ *FS, f *File) error { _, _, err := f.Append([][]byte{[]byte("new")}); return err },
			func() []byte { return append(bytes.Clone(was), "new"...) },
		},
		"truncate":          {func(_ *FS, f *File) error { return f.Truncate(4500) }, func() []byte { return was[:4500] }},
		"truncate by path":  {func(fs *FS, _ *File) error { return fs.Truncate(RootIno, "f", 4500) }, func() []byte { return was[:4500] }},
		"punch":             {func(_ *FS, f *File) error { return f.Punch(4096, size) }, func() []byte { return append(bytes.Clone(was[:4096]), make([]byte, size-4096)...) }},
		"allocate":          {func(_ *FS, f *File) error { return f.Allocate(0, size+10, false) }, func() []byte { return append(bytes.Clone(was), make([]byte, 10)...) }},
		"cut and put again": {func(_ *FS, f *File) error { _ = f.Truncate(4096); return f.Truncate(size) }, func() []byte { return append(bytes.Clone(was[:4096]), make([]byte, size-4096)...) }},
	} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, writing behind %v", name, behind), func(t *testing.T) {
				fs, _ := onHooked(t, 64*nvmf.MiB, Options{WriteBehind: behind})
				f, other := openRW(t, fs, "f"), openRW(t, fs, "f")
				_, err := f.WriteAt([][]byte{was}, 0)
				require.NoError(t, err)
				head := make([]byte, 4096)
				_, err = f.ReadAt([][]byte{head}, 0)
				require.NoError(t, err)
				require.Greater(t, len(f.ahead.data), 200_000, "read ahead")
				require.NoError(t, change.do(fs, other))
				want := change.want()
				got := make([]byte, len(want)+1)
				at := 4096 // where a sequential reader continues
				for at < len(want) {
					n, err := f.ReadAt([][]byte{got[at:min(at+1000, len(got))]}, int64(at))
					require.NoError(t, err)
					require.Positive(t, n, "at %d of %d", at, len(want))
					at += n
				}
				require.Equal(t, len(want), at)
				require.True(t, bytes.Equal(want[4096:], got[4096:len(want)]))
			})
		}
	}
}

// TestReadAheadOfDamage checks that reads of a damaged unit fail with EIO, and that small reads of the
// units before and after it succeed.
func TestReadAheadOfDamage(t *testing.T) {
	const size, bad = 2 << 20, 700 << 10
	want := pattern(size, 5)
	faulty, err := blocktest.NewFaulty(memory(t, 64*nvmf.MiB, 4096))
	require.NoError(t, err)
	seg := Segment{Length: 64 * nvmf.MiB}
	require.NoError(t, Format(t.Context(), faulty, seg, FormatOptions{}))
	fs, err := Mount(t.Context(), faulty, seg, Options{})
	require.NoError(t, err)
	defer func() { _ = fs.Unmount() }()
	f := openRW(t, fs, "f")
	_, err = f.WriteAt([][]byte{want}, 0)
	require.NoError(t, err)
	unit := int(fs.g.unit)
	x := f.in.extents.lookup(Hugeblock(bad / int(fs.g.hugeblock)))
	lba := fs.g.lbaOf(fs.g.dataOffset(x.phys + Hugeblock(bad/int(fs.g.hugeblock)) - x.file))
	require.NoError(t, fs.transfer(nvmf.Write, lba, make([]byte, 4096), false))
	buf := make([]byte, 4096)
	for at := 0; at < size; at += len(buf) {
		n, err := f.ReadAt([][]byte{buf}, int64(at))
		if at-at%unit == bad-bad%unit {
			require.ErrorIs(t, err, syscall.EIO, "at %d", at)
			continue
		}
		require.NoError(t, err, "at %d", at)
		require.Equal(t, want[at:at+n], buf[:n], "at %d", at)
	}
	// A connection that is lost while a buffer is filled only delays the read.
	faulty.DisconnectAt(nvmf.Read, 3)
	_, err = f.ReadAt([][]byte{buf}, 0)
	require.NoError(t, err)
	require.Equal(t, want[:4096], buf)
}

// TestReadAheadMemory checks that the number of read-ahead buffers is bounded, that reads of a file
// that has a buffer allocate nothing, and that all buffers are freed when no file is read any more.
func TestReadAheadMemory(t *testing.T) {
	fs, _ := onHooked(t, 256*nvmf.MiB, Options{})
	want := pattern(3<<20, 5)
	var files []*File
	for i := range 3 * aheadBuffers {
		f := openRW(t, fs, fmt.Sprint(i))
		_, err := f.WriteAt([][]byte{want}, 0)
		require.NoError(t, err)
		files = append(files, f)
	}
	held := func() int {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		return len(fs.ahead.owners) + len(fs.ahead.spare)
	}
	for range 2 {
		for _, f := range files {
			require.True(t, bytes.Equal(want, readPieces(t, f, 4096)))
			require.LessOrEqual(t, held(), aheadBuffers)
		}
	}
	buf := [][]byte{make([]byte, 4096)}
	at := int64(0)
	require.Zero(t, testing.AllocsPerRun(600, func() {
		_, err := files[0].ReadAt(buf, at)
		assert.NoError(t, err)
		at += 4096
	}), "reads of a file that has a buffer allocate nothing")
	for _, f := range files[1:4] {
		require.NoError(t, f.Close())
	}
	require.LessOrEqual(t, held(), aheadBuffers)
	require.Eventually(t, func() bool { return held() == 0 }, time.Minute, time.Millisecond)
	require.True(t, bytes.Equal(want, readPieces(t, files[0], 4096)))
}

// TestReadAheadModel compares random reads, changes and advice through several open files of one file
// with a model.
func TestReadAheadModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, block := range []nvmf.Bytes{4 * nvmf.KiB, 32 * nvmf.KiB, 128 * nvmf.KiB} {
		dev := memory(t, 256*nvmf.MiB, 4096)
		seg := Segment{Length: 256 * nvmf.MiB}
		require.NoError(t, Format(t.Context(), dev, seg, FormatOptions{Hugeblock: block}))
		fs, err := Mount(t.Context(), dev, seg, Options{WriteBehind: block == 32*nvmf.KiB})
		require.NoError(t, err)
		files := []*File{openRW(t, fs, "f"), openRW(t, fs, "f"), openRW(t, fs, "f")}
		next := make([]int64, len(files))
		var model []byte
		fit := func(n int64) { model = append(model, make([]byte, max(0, n-int64(len(model))))...) }
		for step := range 4000 {
			i := r.IntN(len(files))
			f := files[i]
			off := r.Int64N(3 << 20)
			switch c := r.IntN(100); {
			case c < 80:
				if c < 60 {
					off = next[i]
				}
				buf := make([]byte, 1+r.IntN(40_000))
				n, err := f.ReadAt([][]byte{buf[:len(buf)/3], buf[len(buf)/3:]}, off)
				require.NoError(t, err)
				want := model[min(off, int64(len(model))):min(off+int64(len(buf)), int64(len(model)))]
				require.True(t, bytes.Equal(want, buf[:n]), "step %d: %d at %d of %d", step, len(buf), off, len(model))
				next[i] = off + int64(n)
			case c < 86:
				p := pattern(1+r.IntN(20_000), byte(step))
				_, err = f.WriteAt([][]byte{p}, off)
				fit(off + int64(len(p)))
				copy(model[off:], p)
			case c < 92:
				p := pattern(r.IntN(300_000), byte(step))
				_, _, err = f.Append([][]byte{p})
				model = append(model, p...)
			case c < 94:
				err = f.Truncate(off)
				fit(off)
				model = model[:off:off]
			case c < 96:
				n := 1 + r.Int64N(100_000)
				err = f.Punch(off, n)
				clear(model[min(off, int64(len(model))):min(off+n, int64(len(model)))])
			default:
				err = f.Advise(off, r.Int64N(1<<20), r.IntN(6))
			}
			require.NoError(t, err, "step %d", step)
		}
		require.NoError(t, fs.Unmount())
	}
}
