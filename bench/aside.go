package bench

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// aside calls start, and binds the processes that it starts to the last half of the
// cores, or to the last core if there are three or fewer. They represent processes that a job
// would have on other hosts, where they would take no processor time from the ranks. On
// a machine with one core all processes share it. aside returns the error of start.
func aside(start func() error) (err error) {
	runtime.LockOSThread() // processes inherit the affinity of this thread
	defer runtime.UnlockOSThread()
	var before, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	skip := before.Count() - max(1, before.Count()/2)
	for cpu, left := 0, before.Count(); left > 0; cpu++ {
		if !before.IsSet(cpu) {
			continue
		}
		left--
		if skip > 0 {
			skip--
		} else {
			last.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &last); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }()
	return start()
}

// beside returns the environment for an application whose targets are started by
// aside. It has the usual number of ranks, or fewer, so that one of the cores that are
// left has no rank: the goals are for a job with a core to spare. All ranks together
// write as much as one rank does elsewhere, since the copies take memory, too.
func (e *Env) beside() *Env {
	left := cores() - max(1, cores()/2)
	o := e.with(max(1, min(e.Ranks, left-1)))
	o.Size = max(whole(e.Size/nvmf.Bytes(o.Ranks), e.Transfer), e.Transfer)
	return o
}
