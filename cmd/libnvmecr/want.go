package main

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// spareThreads is how many threads run Go code in daily work, with a margin.
const spareThreads = maxProcs + 4

// prepareForWant has what Go cannot be refused later on, where the memory of
// the process is limited: threads. Memory is what posixshim/shim/limits.c keeps.
func prepareForWant() {
	if !limited(unix.RLIMIT_AS) && !limited(unix.RLIMIT_DATA) {
		return
	}
	// Each of these needs a thread of its own; those that end give it back to
	// Go, which does not end threads that were not locked at the end.
	var ready, done sync.WaitGroup
	ready.Add(spareThreads)
	done.Add(spareThreads)
	for range spareThreads {
		go func() {
			runtime.LockOSThread()
			ready.Done()
			ready.Wait()
			runtime.UnlockOSThread()
			done.Done()
		}()
	}
	done.Wait()
	runtime.GC() // starts its workers
}

func limited(resource int) bool {
	var limit unix.Rlimit
	return unix.Getrlimit(resource, &limit) == nil && limit.Cur != ^uint64(0)
}
