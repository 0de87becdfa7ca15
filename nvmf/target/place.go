package target

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A host on this machine wakes the thread of its connection by its own system call.
// Linux takes that for a hint that the host is about to sleep, and runs the thread on
// the host's core although other cores are idle. The two threads then alternate on one
// core, at less than half of the bandwidth, until the scheduler migrates one of them. So
// the thread moves to another core when it runs on the host's core.

// local reports whether the peer of a connection is on this machine.
func (c *conn) local() bool {
	return c.peer.Addr().Unmap().IsLoopback() || c.peer.Addr().Unmap() == c.own.Addr().Unmap()
}

// changeCore moves the calling thread to another core, if it runs on the core where fd's packets
// are sent and may use another one. After a failure the connection is only slower.
func changeCore(fd int) {
	from, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_INCOMING_CPU)
	if err != nil || from < 0 || from != currentCPU() {
		return
	}
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil {
		return
	}
	others := allowed
	if others.Clear(from); others.Count() == 0 || unix.SchedSetaffinity(0, &others) != nil {
		return
	}
	_ = unix.SchedSetaffinity(0, &allowed)
}

func currentCPU() int {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return -1
	}
	return int(cpu)
}
