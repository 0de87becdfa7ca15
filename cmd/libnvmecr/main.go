// Libnvmecr is the Go runtime of the preloaded library, a C shared library
// that libnvmecr.so loads when an application first needs it. There is one for
// each MPI library (build tags openmpi and mpich) and one without.
//
// Its exported functions come from posixshim/calls.txt. They translate between
// C and Go and do nothing else: POSIX is in posixshim, opening the partition in
// open.go. They return -errno, and may be called from any thread.
package main

// typedef int nv_own(int fd, int own); // as in posixshim/shim/wire.h
//
// static inline int call_own(void *f, int fd, int own) { return ((nv_own *)f)(fd, own); }
import "C"

import (
	"errors"
	"syscall"
	"unsafe"

	"nvmecr/microfs"
	"nvmecr/posixshim"
)

func main() {}

// process is set by start, before any other function is called.
var process *posixshim.Process

// What shim/wire.h says of calls that have to go on elsewhere.
const (
	pathOutside  = -4096 // NV_OUTSIDE
	pathRedirect = -4097 // NV_REDIRECT
	fileTooLarge = -4099 // NV_FILE_TOO_LARGE
	pathMax      = 4096  // NV_PATH
)

// What it says of descriptors: NV_OWN_CLOSING and so on.
const (
	ownDrop = iota
	ownHold
	ownAside
	ownBeside
	ownStay
)

// What outside makes of an error: result turns it into NV_OUTSIDE and NV_REDIRECT.
var (
	errOutside  = errors.New("the path to go on with is in the caller's buffer")
	errRedirect = errors.New("the process to go on with is in the caller's buffer")
)

// result is what C gets.
func result(n int, err error) int64 {
	switch {
	case err == nil:
		return int64(n)
	case err == errOutside:
		return pathOutside
	case err == errRedirect:
		return pathRedirect
	case errors.Is(err, microfs.ErrFileTooLarge):
		return fileTooLarge
	}
	return -int64(process.Errno(err))
}

// crashed is the answer to every call after one that has panicked.
const crashed = -int64(syscall.EIO)

// contain is deferred by every function that C calls, with its name: a panic does not end the
// application.
func contain(call string, answer *int64) {
	if r := recover(); r != nil {
		*answer = crashed
		if process != nil {
			_ = process.Contain(call, r)
		}
	}
}

// callOwn calls the shim's nv_own_descriptor.
func callOwn(f unsafe.Pointer, fd, own int) int {
	return int(C.call_own(f, C.int(fd), C.int(own)))
}

func pathAt(dir int64, path *C.char) posixshim.PathAt {
	return posixshim.PathAt{Dir: posixshim.Handle(dir), Path: C.GoString(path)}
}

// outside puts what an error says to go on with into the caller's buffer of
// pathMax bytes: a path outside the mount, or the process that has the
// partition. Other errors stay what they are.
func outside(err error, buf *C.char) error {
	if err == nil {
		return nil // escape is of the heap
	}
	var escape *microfs.EscapeError
	var elsewhere *posixshim.RedirectError
	switch {
	case errors.As(err, &escape) && len(escape.Path) >= pathMax:
		return syscall.ENAMETOOLONG
	case errors.As(err, &escape):
		putString(buf, escape.Path)
		return errOutside
	case errors.As(err, &elsewhere):
		putString(buf, elsewhere.Address)
		return errRedirect
	}
	return err
}

func putString(buf *C.char, s string) {
	out := unsafe.Slice((*byte)(unsafe.Pointer(buf)), pathMax)
	out[copy(out, s)] = 0
}
