package bench

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// aside calls start, and binds the processes that it starts to the last core. They
// represent processes that a job would have on another host, where they would take no
// processor time from the ranks. On a machine with one core all processes share it.
// aside returns the error of start.
func aside(start func() error) (err error) {
	runtime.LockOSThread() // processes inherit the affinity of this thread
	defer runtime.UnlockOSThread()
	var before, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	for cpu, left := 0, before.Count(); left > 0; cpu++ {
		if before.IsSet(cpu) {
			last.Zero()
			last.Set(cpu)
			left--
		}
	}
	if err := unix.SchedSetaffinity(0, &last); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }()
	return start()
}
