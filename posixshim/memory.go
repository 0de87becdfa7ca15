package posixshim

import (
	"syscall"
	"unsafe"
)

// maxTransfer is the most bytes that one call transfers, as on Linux. A larger call is a short one.
const maxTransfer = 0x7ffff000

// Memory returns n bytes of the application's memory at p as a slice, at most maxTransfer. The slice is valid until the call
// returns.
func Memory(p unsafe.Pointer, n uintptr) []byte {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), min(n, maxTransfer))
}

// Vectors returns the application's iovec at p as a slice. The shim has checked that n is from 0 to IOV_MAX.
func Vectors(p unsafe.Pointer, n int32) []syscall.Iovec {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*syscall.Iovec)(p), n)
}

func sliceOf(p *byte, n int) []byte { return unsafe.Slice(p, n) }
