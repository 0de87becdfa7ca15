//go:build spdk

package spdk

// #cgo pkg-config: --static spdk_nvme spdk_env_dpdk spdk_sock_posix spdk_syslibs
// #cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror
// #cgo LDFLAGS: -Wl,--no-as-needed
// #cgo noescape driver_submit
// #cgo nocallback driver_submit
// #cgo noescape driver_poll
// #cgo nocallback driver_poll
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/nvmf"
)

// Version returns the version of SPDK, or an empty string if the program was built
// without SPDK.
func Version() string { return C.GoString(C.driver_version()) }

// environment is the state of SPDK's environment, of which a process has one.
var environment struct {
	mu    sync.Mutex
	ready bool
	huge  bool
	err   error // why the initialization has failed
}

// initialize initializes the environment for a transport, unless it is initialized
// already.
func initialize(transport nvmf.Transport, memory nvmf.Bytes) error {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	huge := transport != nvmf.TCP
	if !e.ready && e.err == nil {
		text, err := explained(func() syscall.Errno {
			var result C.int
			ownfd.Aside(func() {
				before := inheritable()
				result = C.driver_init(C.bool(huge), C.int(firstCPU()), C.int(memory/nvmf.MiB))
				claimEnvironment(before)
			})
			return errno(result)
		})
		switch {
		case err == 0:
			e.ready, e.huge = true, huge
		case err == syscall.EALREADY:
			e.err = fmt.Errorf("%w: %w", nvmf.ErrUnsupported, ErrUnusable)
		default:
			if huge && err != syscall.EINVAL { // EINVAL has other causes than huge pages
				text += hugeRemedy(sysfs, memory)
			}
			e.err = fmt.Errorf("initializing SPDK with %s: %w: %w%s", memory, nvmf.ErrUnsupported, err, text)
		}
	}
	if e.err == nil && huge && !e.huge {
		return fmt.Errorf("transport %s takes huge pages, and this process has opened a namespace over TCP before, without: %w",
			transport, nvmf.ErrUnsupported)
	}
	return e.err
}

// firstCPU returns a CPU on which this thread may run.
func firstCPU() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		for cpu := range len(set) * 64 {
			if set.IsSet(cpu) {
				return cpu
			}
		}
	}
	return 0
}

func errno(result C.int) syscall.Errno { return syscall.Errno(max(0, -int(result))) }

// explained runs a step and returns SPDK's message about its failure, in the form of
// behind.
func explained[E any](step func() E) (string, E) {
	text := (*C.char)(C.calloc(1, C.DRIVER_SAID))
	defer C.free(unsafe.Pointer(text))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.driver_collect(text)
	result := step()
	C.driver_collect(nil)
	return behind(text), result
}

// behind returns a message in a form to be appended to an error.
func behind(said *C.char) string {
	if s := C.GoString(said); s != "" {
		return " (SPDK says: " + s + ")"
	}
	return ""
}
