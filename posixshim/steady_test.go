package posixshim

import (
	"context"
	"io"
	"math"
	"net"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/nvmf"
	"nvmecr/nvmf/target"
	"nvmecr/nvmf/tcp"
)

// overTCP returns an empty partition in memory that a target in this process exports.
func overTCP(t testing.TB, size nvmf.Bytes) *partition {
	b, err := target.NewMemory(size, 4096)
	require.NoError(t, err)
	const nqn = "nqn.2014-08.org.nvmecr:steady"
	tgt, err := target.New(target.Config{Subsystems: []target.Subsystem{{NQN: nqn, Namespaces: []target.Namespace{{NSID: 1, Backing: b}}}}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tgt.Close(context.Background()) })
	addr, err := tgt.Listen("127.0.0.1:0")
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(addr.String())
	require.NoError(t, err)
	dev, err := tcp.Open(t.Context(), nvmf.TransportID{Transport: nvmf.TCP, Family: "IPv4", Address: host, Service: port, SubNQN: nqn, NSID: 1}, tcp.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	p := &partition{dev: dev, seg: microfs.Segment{Length: size}}
	require.NoError(t, microfs.Format(t.Context(), dev, p.seg, microfs.FormatOptions{Generation: 1, Size: 1}))
	return p
}

// TestSteadyPathDoesNotAllocate counts the allocations of this process, which includes the target, during calls that
// were made before. Only a file that grows may need memory, for its checksums.
func TestSteadyPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector drops what a sync.Pool is given, now and then")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := overTCP(t, 1<<30).process(t)
	for _, size := range []int{4 << 10, 32 << 10, 1 << 20} {
		buf := make([]byte, size)
		h := file(t, p, "f", create|syscall.O_TRUNC)
		const calls = 64
		at, end := int64(0), int64(calls*size)
		next := func() int64 { at = (at + int64(size)) % end; return at }
		for _, c := range []struct {
			name  string
			grows bool
			call  func() (int, error)
		}{
			{"write", true, func() (int, error) { return p.Write(h, buf, NoLimit) }},
			{"pwrite", false, func() (int, error) { return p.Pwrite(h, buf, next(), NoLimit) }},
			{"pread", false, func() (int, error) { return p.Pread(h, buf, next()) }},
			{"fsync", false, func() (int, error) { return size, p.Fsync(h) }},
			{"write and fsync", false, func() (int, error) {
				n, err := p.Pwrite(h, buf, next(), NoLimit)
				if err == nil {
					err = p.Fsync(h)
				}
				return n, err
			}},
		} {
			made := mallocs(t, calls, func() {
				if n, err := c.call(); err != nil || n != size {
					t.Fatalf("%s: %d of %d bytes, %v", c.name, n, size, err)
				}
			})
			limit := 0.05 // not 0, because other goroutines of the process may allocate
			if c.grows {
				limit += float64(size) / (8 << 20) // the checksums of 8 MiB
			}
			assert.Less(t, made, limit, "%s of %d bytes: allocations a call", c.name, size)
			t.Logf("%s of %d bytes: %.3f allocations a call", c.name, size, made)
		}
		require.NoError(t, p.Release(h))
	}
}

// mallocs is testing.AllocsPerRun without setting GOMAXPROCS to 1, because host and target need two processors. It
// returns the lowest of three counts, because other goroutines may allocate at the same time.
func mallocs(t testing.TB, n int, call func()) float64 {
	t.Helper()
	for range n {
		call()
	}
	least := math.Inf(1)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			call()
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/float64(n))
	}
	return least
}

// TestHotPathDoesNotAllocate checks that this package does not allocate memory in the calls of the data path.
func TestHotPathDoesNotAllocate(t *testing.T) {
	p := newPartition(t).process(t)
	h := file(t, p, "f", create)
	f, err := p.files.get(h)
	require.NoError(t, err)
	var idle vfs.File = idleFile{f.current()}
	f.file.Store(&idle)
	buf := make([]byte, 4096)
	var st syscall.Stat_t
	for name, call := range map[string]func(){
		"pread":  func() { _, _ = p.Pread(h, buf, 0) },
		"read":   func() { _, _ = p.Seek(h, 0, io.SeekStart); _, _ = p.Read(h, buf) },
		"pwrite": func() { _, _ = p.Pwrite(h, buf, 4096, NoLimit) },
		"write":  func() { _, _ = p.Write(h, buf, NoLimit) },
		"lseek":  func() { _, _ = p.Seek(h, 0, io.SeekStart) },
		"fstat":  func() { _ = p.Fstat(h, structure(&st)) },
	} {
		assert.Less(t, testing.AllocsPerRun(200, call), 1.0, name)
	}
}

// idleFile is a file that does nothing, so that a test measures only this package.
type idleFile struct{ vfs.File }

func (idleFile) ReadAt(bufs [][]byte, off int64) (int, error)  { return len(bufs[0]), nil }
func (idleFile) WriteAt(bufs [][]byte, off int64) (int, error) { return len(bufs[0]), nil }
func (idleFile) Stat() (microfs.Attr, error)                   { return microfs.Attr{}, nil }
