package target

import "golang.org/x/sys/unix"

// When there are more hosts on this machine than cores, their threads and those of
// the target share the cores, and data waits in sockets. The data should not wait
// long, since the sockets of all hosts together do not fit the caches. So threads
// that receive data should run before threads that send it: the thread of the
// connection during writes, the host during reads.
//
// Linux runs the thread first whose next time slice would end first. Slices can
// be asked for without privilege since 6.12; earlier kernels ignore it.

const (
	// Slices in nanoseconds. A thread that takes data out of sockets gets the shortest one, a
	// thread that puts data in a longer one. The kernel's default is about 3 ms.
	takingSlice  = 100_000
	puttingSlice = 10_000_000
	// sliceAfter is the number of bytes in the other direction, in commands of largeIO or more,
	// after which the slice changes.
	sliceAfter = 2 << 20
	largeIO    = 32 << 10
)

// slicing is the time slice that the thread of a connection has asked for.
type slicing struct {
	want  bool // the host is on this machine, and the system allows it
	now   uint64
	other int // bytes in the other direction
	first *unix.SchedAttr
}

// init must be called on the thread. It stores the attributes that the thread has.
func (s *slicing) init(nearby bool) {
	if !nearby {
		return
	}
	a, err := unix.SchedGetAttr(0, 0)
	s.want = err == nil && a.Policy == unix.SCHED_NORMAL
	s.first = a
}

// moved notes that n bytes are about to be received or sent, with the slice for this direction.
func (s *slicing) moved(slice uint64, n uint32) {
	switch {
	case !s.want || n < largeIO:
		return
	case s.now == slice:
		s.other = 0
		return
	}
	if s.other += int(n); s.other >= sliceAfter {
		s.now, s.other = slice, 0
		s.set(slice)
	}
}

func (s *slicing) set(slice uint64) {
	a := *s.first
	a.Runtime = slice
	s.want = unix.SchedSetAttr(0, &a, 0) == nil
}

// end restores the attributes that the thread had.
func (s *slicing) end() {
	if s.want && s.now != 0 {
		s.set(s.first.Runtime)
	}
}
