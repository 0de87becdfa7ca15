package drain

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// LowerPriority makes the calling goroutine run only when no other work of the host needs the processor, until it
// ends. It moves the goroutine to a thread of its own with the policy SCHED_IDLE, by which the kernel also serves the
// disk requests of the thread last. Threads that the application may wait for keep their priority.
func LowerPriority() {
	runtime.LockOSThread()                                                                            // never unlocked: the thread ends with the goroutine
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0) // if it is not permitted, copy with the normal priority
}
