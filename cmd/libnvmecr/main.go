// Libnvmecr is the Go runtime of the preloaded library: a C shared library that libnvmecr.so loads when an application makes the
// first call on a file of a mount. It is built once for each MPI library (build tags openmpi and mpich), and once without MPI.
//
// Its exported functions are generated from posixshim/calls.txt (exports_gen.go). They translate between C and Go; package
// posixshim implements the calls, and life.go the start and the end of the process. They return -errno if they fail, and may be
// called from any thread.
package main

// typedef int nv_own(int fd, int own); // of posixshim/shim/wire.h
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

// Results of calls that are no errno, and the size of a path, as in posixshim/shim/wire.h.
const (
	pathOutside  = -4096 // NV_OUTSIDE
	pathRedirect = -4097 // NV_REDIRECT
	fileTooLarge = -4099 // NV_FILE_TOO_LARGE
	pathMax      = 4096  // NV_PATH
)

// The values of own in nv_own: NV_OWN_CLOSING and so on.
const (
	ownClosing = iota
	ownOpened
	ownReserve
	ownUnreserve
	ownKeepNumber
)

// The errors of outside, which result turns into NV_OUTSIDE and NV_REDIRECT.
var (
	errOutside  = errors.New("the path to go on with is in the caller's buffer")
	errRedirect = errors.New("the process to go on with is in the caller's buffer")
)

// result returns what an exported function returns to C.
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

// crashed is the result of every call after one that has panicked.
const crashed = -int64(syscall.EIO)

// contain is deferred by every exported function, with its name. It turns a panic into EIO: a panic must not end the application.
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

// outside turns an error for a path that leads out of the mount, or for a partition that another process has, into errOutside or
// errRedirect. It puts the path, or the address of the process, into the caller's buffer of pathMax bytes. It returns other errors
// unchanged.
func outside(err error, buf *C.char) error {
	if err == nil {
		return nil // before escape, which is allocated on the heap
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
