package microfs

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/memdev"
)

// TestMemoryStaysFlat makes a million writes of 4 KiB, or fewer with -short: sequential and scattered
// overwrites of a file, and appends to files that are unlinked afterwards. It checks that the process
// then uses hardly more memory than after the first rounds, and that writes allocate almost nothing.
func TestMemoryStaysFlat(t *testing.T) {
	skipRace(t)
	const size, piece = 32 << 20, 4 << 10 // of a file and a write
	const writes = size / piece
	rounds := 32 // a million writes, and a little more
	if testing.Short() {
		rounds = 6
	}
	dev := memory(t, 256*nvmf.MiB, 4096)
	data := dev.(*memdev.Device).Bytes()
	seg := Segment{Length: 256 * nvmf.MiB}
	require.NoError(t, Format(context.Background(), dev, seg, FormatOptions{}))
	fs, err := Mount(context.Background(), dev, seg, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fs.Unmount()) })
	open := func(name string) *File {
		f, err := fs.Open(RootIno, name, unix.O_CREAT|unix.O_RDWR, 0o600)
		require.NoError(t, err)
		return f
	}
	bufs := [][]byte{make([]byte, piece)}
	full := func(n int, err error) {
		if n != piece || err != nil {
			t.Fatal(n, err)
		}
	}
	f := open("overwritten")
	round := func(k int) {
		for i := range writes {
			full(f.WriteAt(bufs, int64(i*piece)))
		}
		for i := range writes {
			full(f.WriteAt(bufs, int64(i*5003%writes*piece))) // each piece once, never a neighbour of the one before
		}
		name := fmt.Sprintf("appended%d", k)
		a := open(name)
		for range writes {
			n, _, err := a.Append(bufs)
			full(n, err)
		}
		require.NoError(t, a.Close())
		require.NoError(t, fs.Unlink(RootIno, name))
		for i := range writes {
			full(f.WriteAt(bufs, int64((i/64*64+63-i%64)*piece))) // backwards, in runs of 64 pieces
		}
	}
	round(0)
	round(1)
	before, resident := inUse(), rss(t, data)
	for k := range rounds {
		round(k + 2)
	}
	after, last := inUse(), rss(t, data)
	calls := uint64(rounds * 4 * writes)
	t.Logf("%d writes: heap %d to %d KiB, resident %d to %d KiB, %.4f allocations and %.2f bytes a write, %d collections",
		calls, before.HeapAlloc>>10, after.HeapAlloc>>10, resident>>10, last>>10,
		float64(after.Mallocs-before.Mallocs)/float64(calls), float64(after.TotalAlloc-before.TotalAlloc)/float64(calls), after.NumGC-before.NumGC)
	// The heap may have grown a little: the buffers grow with the largest state checkpoint so far.
	require.Less(t, after.HeapAlloc, before.HeapAlloc+256<<10, "bytes in use")
	require.Less(t, last, resident+1<<20, "resident bytes")
	require.Less(t, after.Mallocs-before.Mallocs, calls/50, "allocations")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, 4*calls, "bytes allocated")
}

// inUse returns the memory statistics after garbage was collected.
func inUse() (m runtime.MemStats) {
	for range 2 { // sync.Pool frees unused memory only in the second collection
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}

// rss returns the resident bytes of this process, without garbage: the amount of garbage depends on when
// it was last collected. rss touches all pages of the device in memory first. Otherwise the result would
// depend on which pages were just deallocated, and so on how long the rounds take.
func rss(t *testing.T, device []byte) uint64 {
	for i := 0; i < len(device); i += 4096 {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&device[i])), 0) // a write that changes nothing
	}
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64)
	require.NoError(t, err)
	return pages * uint64(os.Getpagesize())
}
