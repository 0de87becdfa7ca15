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

// holdPoller starts Go's poller and keeps its descriptors, which Go does not tell of, from the application. While the
// runtime is loaded the numbers below them are taken, so they lie below the next one that is free, or, since other
// threads open files as well, not far behind it.
func holdPoller() {
	time.AfterFunc(time.Hour, func() {}).Stop() // starts it
	next, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		next = 1024
	} else {
		_ = unix.Close(next)
	}
	var st unix.Stat_t
	for fd := range next + 64 {
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == 0 { // no file: an epoll descriptor, for example
			if woken, ok := polls(fd); ok {
				ownfd.HoldInPlace(fd)
				ownfd.HoldInPlace(woken)
			}
		}
	}
}

// polls says whether fd is Go's epoll descriptor, and which descriptor wakes it: that is waited for by an address of
// the runtime, which no other is, whatever threads of the application open.
func polls(fd int) (woken int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, false
	}
	_, entry, ok := strings.Cut(string(text), "tfd:")
	var events, address uint64
	if n, _ := fmt.Sscanf(entry, "%d events: %x data: %x", &woken, &events, &address); !ok || n != 3 {
		return 0, false
	}
	return woken, C.of_runtime(C.uintptr_t(address)) != 0
}
