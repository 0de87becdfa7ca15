package serve

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// shortSlice is the shortest time slice that Linux gives, in nanoseconds. Its own choice is one of milliseconds.
const shortSlice = 100_000

// shortenSlices asks for short time slices for all threads of this process, and for those that they will start. Where processes share their
// processors, Linux runs the thread first whose slice would end first: so the index answers soon, though other ranks poll for
// messages meanwhile. It takes no privilege. Before Linux 6.12 it changes nothing.
func shortenSlices() error {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		id, _ := strconv.Atoi(t.Name()) // the kernel names them by number
		a, e := unix.SchedGetAttr(id, 0)
		if e == nil && a.Policy == unix.SCHED_NORMAL {
			a.Runtime = shortSlice
			e = unix.SchedSetAttr(id, a, 0)
		}
		if e != nil && e != unix.ESRCH { // it has ended
			err = errors.Join(err, e)
		}
	}
	return err
}
