package serve

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// shortSlice is the shortest time slice of Linux, in nanoseconds. The default is several milliseconds.
const shortSlice = 100_000

// shortenSlices requests short time slices for all threads of this process, and so for threads that they start. On a
// busy processor Linux first runs the thread whose slice ends first. So the index answers soon, although ranks poll
// for messages. It needs no privilege. Before Linux 6.12 it has no effect.
func shortenSlices() error {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		id, _ := strconv.Atoi(t.Name()) // names are thread ids
		a, e := unix.SchedGetAttr(id, 0)
		if e == nil && a.Policy == unix.SCHED_NORMAL {
			a.Runtime = shortSlice
			e = unix.SchedSetAttr(id, a, 0)
		}
		if e != nil && e != unix.ESRCH { // ESRCH: the thread has ended
			err = errors.Join(err, e)
		}
	}
	return err
}
