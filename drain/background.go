package drain

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// StepBack has the goroutine run when nothing else on the host wants to, up to its end: on a thread of its own, of the policy SCHED_IDLE, by which
// the kernel takes a thread that waits for a disk last, too. The threads that the application may wait for keep their priority.
func StepBack() {
	runtime.LockOSThread()                                                                            // without an Unlock: the thread ends with the goroutine
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0) // where that is forbidden it copies nevertheless
}
