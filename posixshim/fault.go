package posixshim

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"
)

// Buffers of the application may be unmapped or write-protected. The kernel's calls then return EFAULT, or transfer the bytes
// before the bad page. To do the same, a call first touches one byte of each page of its buffers. A fault in Go code is a panic,
// which is recovered here. Without this the fault would occur in sendmsg or recvmsg, and look like a broken connection. The
// application's handlers are not called (shim/runtime/faults.c).

// readable cuts bufs before the first page that cannot be read. EFAULT if no byte can be read.
func readable(bufs [][]byte) ([][]byte, error) { return accessible(bufs, 1<<62, load) }

// writable cuts bufs to limit bytes, and before the first page that cannot be written. EFAULT if no byte can be written.
func writable(bufs [][]byte, limit int64) ([][]byte, error) {
	return accessible(bufs, limit, loadStore)
}

// canWrite says whether all of buf can be written.
func canWrite(buf []byte) bool { return touchPages(buf, loadStore) == len(buf) }

func accessible(bufs [][]byte, limit int64, touch func(*byte)) ([][]byte, error) {
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

// touchPages returns how many bytes of b are before the first page that cannot be touched.
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

// loadStore writes a byte to where it has read it. A write of another thread to the byte in between is lost; the call that follows
// overwrites the byte too.
//
//go:noinline
func loadStore(p *byte) { set(p, get(p)) }

// get and set are functions so that the compiler does not remove the accesses.

//go:noinline
func get(p *byte) byte { return *p }

//go:noinline
func set(p *byte, b byte) { *p = b }
