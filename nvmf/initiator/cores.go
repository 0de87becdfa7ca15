package initiator

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
)

// Processors returns the number of online processors of the machine. It counts those
// that this process is not bound to as well, since the target may run on any of them.
var Processors = sync.OnceValue(func() int {
	list, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0
	for _, part := range strings.Split(strings.TrimSpace(string(list)), ",") {
		first, last := 0, 0
		switch got, _ := fmt.Sscanf(part, "%d-%d", &first, &last); got {
		case 1:
			n++
		case 2:
			n += last - first + 1
		}
	}
	return max(n, 1)
})

// loadAverage returns a descriptor of /proc/loadavg, which has the number of runnable
// threads. It returns -1 if the file cannot be opened. The first call opens the file.
var loadAverage = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return ownfd.Hold(fd)
})

// Oversubscribed reports whether the machine has more runnable threads than processors.
// It returns true if the number of threads is unknown. A call takes one to two
// microseconds.
func Oversubscribed() bool {
	var line [128]byte
	n, err := unix.Pread(loadAverage(), line[:], 0)
	if err != nil {
		return true
	}
	running, ok := runnable(line[:n])
	return !ok || running > Processors()
}

// runnable returns the number of runnable threads in a line of /proc/loadavg, such as 2
// in "0.20 0.18 0.12 2/80 11206".
func runnable(line []byte) (running int, ok bool) {
	field := 0
	for _, c := range line {
		switch {
		case c == ' ':
			field++
		case field == 3 && c == '/':
			return running, ok
		case field == 3 && '0' <= c && c <= '9' && running < 1<<30:
			running, ok = 10*running+int(c-'0'), true
		}
	}
	return 0, false
}
