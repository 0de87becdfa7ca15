package main

// #define _GNU_SOURCE
// #include <dlfcn.h>
// #include <stdint.h>
//
// // of_runtime says whether an address lies in this library.
// static inline int of_runtime(uintptr_t address)
// {
//	Dl_info info, own;
//	static char here;
//
//	return dladdr((void *)address, &info) != 0 && dladdr(&here, &own) != 0 && info.dli_fbase == own.dli_fbase;
// }
import "C"

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// holdPoller starts Go's network poller and registers its descriptors as descriptors of the runtime (ownfd), so that the
// application cannot close them. Go has no function that returns them. While the runtime is loaded all low numbers are taken, so
// the two descriptors are below the next free number, or a little above it, if other threads open files at the same time.
func holdPoller() {
	time.AfterFunc(time.Hour, func() {}).Stop() // starts the poller
	next, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		next = 1024
	} else {
		_ = unix.Close(next)
	}
	var st unix.Stat_t
	for fd := range next + 64 {
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == 0 { // an anonymous inode, such as an epoll instance
			if wakeup, ok := pollerOf(fd); ok {
				ownfd.HoldInPlace(fd)
				ownfd.HoldInPlace(wakeup)
			}
		}
	}
}

// pollerOf says whether fd is Go's epoll descriptor, and returns the eventfd that wakes it up. Go has added the eventfd to the
// epoll instance with an address of the runtime as its data. No epoll instance of the application has such data.
func pollerOf(fd int) (wakeup int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, false
	}
	_, entry, ok := strings.Cut(string(text), "tfd:")
	var events, address uint64
	if n, _ := fmt.Sscanf(entry, "%d events: %x data: %x", &wakeup, &events, &address); !ok || n != 3 {
		return 0, false
	}
	return wakeup, C.of_runtime(C.uintptr_t(address)) != 0
}
