package posixshim

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"
)

// The kernel copies from and to memory that may not be there, or not be
// writable, and says EFAULT, or does the part that it can. Here the memory is
// touched first, a byte of each page that the call will use anyway: a fault in
// Go code is a panic, for which Go has its handler in place, and in the kernel
// it would look like a broken connection. The application's handlers do not see
// it (shim/runtime/faults.c).

// readable cuts bufs to what can be read of them, from the start on. EFAULT if
// that is nothing of something.
func readable(bufs [][]byte) ([][]byte, error) { return touched(bufs, 1<<62, load) }

// writable is the same for what can be written to, of the first limit bytes.
func writable(bufs [][]byte, limit int64) ([][]byte, error) { return touched(bufs, limit, loadStore) }

// good says whether all of buf can be written to.
func good(buf []byte) bool { return touchPages(buf, loadStore) == len(buf) }

func touched(bufs [][]byte, limit int64, touch func(*byte)) ([][]byte, error) {
	for i, b := range bufs {
		n := int(max(0, min(int64(len(b)), limit)))
		limit -= int64(n)
		good := touchPages(b[:n], touch)
		if good == n {
			continue
		}
		if good == 0 && i == 0 {
			return nil, syscall.EFAULT
		}
		bufs[i] = b[:good]
		return bufs[:i+1], nil
	}
	return bufs, nil
}

// touchPages returns how many bytes lie before the first page of b that cannot
// be touched.
func touchPages(b []byte, touch func(*byte)) (good int) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if e := recover(); e != nil {
			if _, fault := e.(runtime.Error); !fault {
				panic(e)
			}
		}
	}()
	for good < len(b) {
		p := &b[good]
		touch(p)
		good = min(len(b), good+page-int(uintptr(unsafe.Pointer(p))%page))
	}
	return good
}

//go:noinline
func load(p *byte) { _ = get(p) }

// loadStore writes back what is there. If somebody else writes to the byte at
// the same time, that is lost, as it is when the call then writes to it.
//
//go:noinline
func loadStore(p *byte) { set(p, get(p)) }

// The compiler does not see that these are not needed.

//go:noinline
func get(p *byte) byte { return *p }

//go:noinline
func set(p *byte, b byte) { *p = b }
