package microfs

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// TestCrashBehind crashes into workloads with write-behind. It checks that after the crash the file
// system has the effects of all operations before the writes that were still buffered.
func TestCrashBehind(t *testing.T) {
	skipRace(t)
	var held, made *File
	write := func(name string, at func(m *model) int64, n int) letter {
		return letter{name, func(m *model) (op, bool) {
			m.writes++
			off, data := at(m), stamp(n, m.writes)
			o := writeOp("/t", off, data)
			o.fs = func(*FS) error { _, err := held.WriteAt([][]byte{data}, off); return err }
			return o, true
		}}
	}
	end := func(m *model) int64 { return m.size("/t") }
	letters := []letter{
		write("on", end, 1500),
		write("full", end, 4800),
		write("large", end, 7000),
		write("back", func(*model) int64 { return 100 }, 200),
		{"append", func(*model) (op, bool) { return op{}, false }}, // replaced below: an append to another file
		{"new", func(m *model) (op, bool) {
			o := createOp("/n", 0o600)
			o.fs = func(fs *FS) (err error) {
				made, err = fs.Open(RootIno, "/n", unix.O_CREAT|unix.O_WRONLY, 0o600)
				return err
			}
			return o, !m.has("/n")
		}},
		{"close new", func(m *model) (op, bool) {
			o := closeOp("/n")
			o.fs = func(*FS) error { return made.Close() }
			o.durable = false
			_, _, n := m.find("/n")
			return o, n != nil && n.written
		}},
		{"close", func(*model) (op, bool) {
			o := closeOp("/t")
			o.fs = func(fs *FS) error {
				if err := held.Close(); err != nil {
					return err
				}
				var err error
				held, err = fs.Open(RootIno, "/t", unix.O_RDWR, 0)
				return err
			}
			return o, true
		}},
		{"fsync", func(*model) (op, bool) {
			return op{name: "fsync", fs: func(*FS) error { return held.Sync() }, model: func(*model) {}, durable: true}, true
		}},
	}
	letters[4] = alphabet[0]
	open := createOp("/t", 0o600)
	open.fs = func(fs *FS) (err error) {
		held, err = fs.Open(RootIno, "/t", unix.O_CREAT|unix.O_RDWR, 0o600)
		return err
	}
	for _, cfg := range []crashConfig{
		{name: "checksums", lba: 512},
		{name: "no checksums", lba: 4096, noSums: true},
		{name: "cache", lba: 4096, cache: true},
	} {
		t.Run(cfg.name, func(t *testing.T) {
			cfg.behind = true
			cfg.setup = setup{name: "held", blocks: 30, live: func(*model) []op { return []op{open} }}
			c := newCrasher(t, cfg, 1)
			c.images.MaxImages, c.images.Tears, c.images.Samples, c.images.NoPairs = 1<<5, 1, 2, true
			depth := 3
			if testing.Short() || cfg.cache {
				depth = 2
			}
			for n := range depth + 1 {
				each(letters, n, func(ls []letter) {
					if r := c.record(ls); r != nil && n > 0 {
						c.crash(r)
					}
				})
			}
			t.Logf("%s", &c.n)
		})
	}
}

// behindFS mounts a file system with write-behind, and opens a new file.
func behindFS(t *testing.T) (*crashRig, *FS, *File) {
	c, fs := mounted(t, behindVariants[0])
	f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	return c, fs, f
}

// refuseNext makes the device refuse the next write.
func (c *crashRig) refuseNext() {
	c.dev.FailAt(nvmf.Write, 1, &nvmf.StatusError{Opcode: nvmf.Write, SCT: 2, SC: 0x80, DNR: true})
}

// TestBehindError checks what happens after the device refused a buffered write that had been
// acknowledged. Each open file that was open then fails in write, fsync and close with EIO. Open
// files that are opened later work. The file does not count as closed until it is truncated to 0 and
// written again. FS.Sync reports the error once.
func TestBehindError(t *testing.T) {
	c, fs, f := behindFS(t)
	second, err := fs.Open(RootIno, "f", unix.O_RDWR, 0)
	require.NoError(t, err)
	write := func(f *File, b byte, off int64) error {
		n, err := f.WriteAt([][]byte{bytes.Repeat([]byte{b}, 1000)}, off)
		if err == nil {
			require.Equal(t, 1000, n)
		}
		return err
	}
	require.NoError(t, write(f, 1, 0))
	require.NoError(t, f.Sync())
	require.NoError(t, write(f, 2, 1000))
	require.NoError(t, write(f, 3, 2000))
	c.refuseNext()
	a, err := fs.Stat(RootIno, "f", false)
	require.NoError(t, err, "it is nobody else's error")
	require.EqualValues(t, 1000, a.Size)
	third, err := fs.Open(RootIno, "f", unix.O_RDWR, 0)
	require.NoError(t, err)
	for range 2 {
		require.ErrorIs(t, write(f, 4, 3000), unix.EIO)
		require.ErrorIs(t, f.Sync(), unix.EIO)
	}
	require.ErrorContains(t, f.Sync(), "bytes 1000 to 2999")
	require.ErrorIs(t, second.Sync(), unix.EIO)
	require.ErrorIs(t, write(second, 4, 3000), unix.EIO)
	require.NoError(t, write(third, 5, 4000), "it was opened afterwards")
	require.NoError(t, third.Sync())
	require.ErrorIs(t, fs.Sync(), unix.EIO)
	require.NoError(t, fs.Sync(), "told")
	require.ErrorIs(t, f.Close(), unix.EIO)
	require.ErrorIs(t, second.Close(), unix.EIO)
	require.NoError(t, third.Close())
	a, err = fs.Stat(RootIno, "f", false)
	require.NoError(t, err)
	require.False(t, a.Closed, "it lacks something")

	f, err = fs.Open(RootIno, "f", unix.O_RDWR|unix.O_TRUNC, 0)
	require.NoError(t, err)
	require.NoError(t, write(f, 6, 0))
	require.NoError(t, f.Close())
	a, err = fs.Stat(RootIno, "f", false)
	require.NoError(t, err)
	require.True(t, a.Closed, "it was begun anew")
	require.NoError(t, fs.Unmount())
}

// TestBehindErrorAtClose checks that Close, and Unmount without a Close, report a buffered write that
// the device refused.
func TestBehindErrorAtClose(t *testing.T) {
	for _, end := range []string{"close", "unmount"} {
		c, fs, f := behindFS(t)
		_, err := f.WriteAt([][]byte{{1}}, 0)
		require.NoError(t, err)
		c.refuseNext()
		if end == "close" {
			require.ErrorIs(t, f.Close(), unix.EIO)
		}
		require.ErrorIs(t, fs.Unmount(), unix.EIO)
	}
}

// TestBehindIsSeen checks that reads, appends and Stat through any open file or path see the bytes
// of buffered writes.
func TestBehindIsSeen(t *testing.T) {
	_, fs, f := behindFS(t)
	other, err := fs.Open(RootIno, "f", unix.O_RDWR, 0)
	require.NoError(t, err)
	var want []byte
	for i := range 200 {
		p := bytes.Repeat([]byte{byte(i + 1)}, 37*i%900+1)
		var err error
		if i%5 == 4 { // a write that neither continues the buffered bytes nor covers all of them
			at := len(want) / 3
			_, err = f.WriteAt([][]byte{p}, int64(at))
			require.NoError(t, err)
			want = append(want[:at], append(bytes.Clone(p), want[min(len(want), at+len(p)):]...)...)
		}
		switch i % 3 {
		case 0:
			_, err = f.WriteAt([][]byte{p}, int64(len(want)))
		case 1:
			_, _, err = other.Append([][]byte{p[:len(p)/2], p[len(p)/2:]})
		case 2:
			var end int64
			_, end, err = f.Append([][]byte{p})
			require.EqualValues(t, len(want)+len(p), end)
		}
		require.NoError(t, err)
		want = append(want, p...)
		if i%7 == 0 {
			a, err := fs.Stat(RootIno, "f", false)
			require.NoError(t, err)
			require.EqualValues(t, len(want), a.Size)
		}
		if i%11 == 0 {
			got := make([]byte, len(want)+1)
			n, err := other.ReadAt([][]byte{got}, 0)
			require.NoError(t, err)
			require.Equal(t, want, got[:n])
		}
	}
}

// TestBehindMerges checks that small writes that continue each other take few commands. It also
// checks that a write as large as the buffer, and a write with O_DSYNC, go to the device at once.
func TestBehindMerges(t *testing.T) {
	c, fs, f := behindFS(t)
	sync, err := fs.Open(RootIno, "sync", unix.O_CREAT|unix.O_WRONLY|unix.O_DSYNC, 0o600)
	require.NoError(t, err)
	before := c.dev.Count(nvmf.Write)
	for i := range 512 {
		_, err := f.WriteAt([][]byte{make([]byte, 2048)}, int64(i)*2048)
		require.NoError(t, err)
	}
	require.Zero(t, fs.behind.n, "it was done when it was full")
	require.Less(t, c.dev.Count(nvmf.Write)-before, 30)
	for name, write := range map[string]func() (int, error){
		"large":   func() (int, error) { return f.WriteAt([][]byte{make([]byte, behindSize)}, 1<<20) },
		"O_DSYNC": func() (int, error) { return sync.WriteAt([][]byte{{1}}, 0) },
	} {
		before := c.dev.Count(nvmf.Write)
		_, err := write()
		require.NoError(t, err, name)
		require.Greater(t, c.dev.Count(nvmf.Write), before, name)
		require.Zero(t, fs.behind.n, name)
	}
}

// TestBehindNoSpace checks that with write-behind the write itself fails with ENOSPC, and not a later
// fsync or close.
func TestBehindNoSpace(t *testing.T) {
	_, fs, f := behindFS(t)
	var err error
	at := int64(0)
	for ; err == nil; at += 3000 {
		_, err = f.WriteAt([][]byte{make([]byte, 3000)}, at)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Greater(t, at, int64(8<<20))
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	a, err := fs.Stat(RootIno, "f", false)
	require.NoError(t, err)
	require.True(t, a.Closed)
}

// TestBehindBroken checks that Close fails with EIO after the file system went out of service with a
// buffered write.
func TestBehindBroken(t *testing.T) {
	c, fs, f := behindFS(t)
	_, err := f.WriteAt([][]byte{{1}}, 0)
	require.NoError(t, err)
	fs.opts.Timeout = 1
	c.dev.CutAt(1, 0)
	require.ErrorIs(t, f.Sync(), unix.EIO)
	require.ErrorIs(t, f.Close(), unix.EIO)
	_, err = fs.Stat(RootIno, "f", false)
	require.ErrorIs(t, err, unix.EIO)
}

// TestBehindOff checks that without Options.WriteBehind a write survives a crash right after it.
func TestBehindOff(t *testing.T) {
	c, fs := mounted(t, variants[0])
	f, err := fs.Open(RootIno, "f", unix.O_CREAT|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt([][]byte{{1}}, 0)
	require.NoError(t, err)
	a, err := c.again(fs).Stat(RootIno, "f", false)
	require.NoError(t, err)
	require.EqualValues(t, 1, a.Size)
}

// BenchmarkWriteBehind measures small sequential writes with write-behind.
func BenchmarkWriteBehind(b *testing.B) {
	for _, size := range []int{4 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			fs := benchFS(b, Options{WriteBehind: true})
			f, err := fs.Open(RootIno, "checkpoint", unix.O_CREAT|unix.O_RDWR, 0o600)
			require.NoError(b, err)
			bufs := [][]byte{make([]byte, size)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := range b.N {
				if _, err := f.WriteAt(bufs, int64(i*size)%(512<<20)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
