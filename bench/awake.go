package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime returns the processor time of a process. idle is that of its threads
// with the policy SCHED_IDLE, and awake that of all others. Only the latter takes time
// from other processes. The load of the host affects idle, but not awake.
func processorTime(pid int) (awake, idle time.Duration, err error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, 0, err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return 0, 0, err
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		text, e := os.ReadFile(filepath.Join("/proc", t.Name(), "schedstat"))
		if err != nil || e != nil {
			continue // the thread has ended
		}
		ran, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("processor time of thread %d: %w", tid, err)
		}
		if attr.Policy == unix.SCHED_IDLE {
			idle += time.Duration(n)
		} else {
			awake += time.Duration(n)
		}
	}
	return awake, idle, nil
}
