package posixshim

import (
	"syscall"
	"unsafe"
)

// maxTransfer is the most that one call moves, as on Linux: a larger one is
// done in part.
const maxTransfer = 0x7ffff000

// Memory is the application's memory at p as a slice, of at most maxTransfer
// bytes. It is the application's for the length of the call only.
func Memory(p unsafe.Pointer, n uintptr) []byte {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), min(n, maxTransfer))
}

// Vectors is the application's iovec at p. The shim has checked that n is at
// least 0 and at most IOV_MAX.
func Vectors(p unsafe.Pointer, n int32) []syscall.Iovec {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*syscall.Iovec)(p), n)
}

func sliceOf(p *byte, n int) []byte { return unsafe.Slice(p, n) }
