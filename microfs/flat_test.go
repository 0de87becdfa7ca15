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

// TestMemoryStaysFlat writes a million times 4 KiB, or fewer with -short: over
// a file in sequence, over it at random, and to the end of files that are
// removed when they are full. Memory is what it was after the first rounds.
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
			full(f.WriteAt(bufs, int64(i*5003%writes*piece))) // each once, none beside the one before
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
			full(f.WriteAt(bufs, int64((i/64*64+63-i%64)*piece))) // backwards in stretches
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
	// A larger state checkpoint than those before makes its buffers grow, once.
	require.Less(t, after.HeapAlloc, before.HeapAlloc+256<<10, "bytes in use")
	require.Less(t, last, resident+1<<20, "resident bytes")
	require.Less(t, after.Mallocs-before.Mallocs, calls/50, "allocations")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, 4*calls, "bytes allocated")
}

// inUse is the heap after a collection.
func inUse() (m runtime.MemStats) {
	for range 2 { // what pools hold goes with the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}

// rss returns the resident bytes of this process, without what is garbage: how much
// of that there has been between two collections is not the file system's. All pages of the device count: what was
// deallocated a moment ago, which depends on how long the rounds take, is not there otherwise.
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
