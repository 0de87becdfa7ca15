package target

import "golang.org/x/sys/unix"

// When there are more hosts on this machine than cores, their threads and ours
// share the cores, and data waits in sockets. It should not wait long: the sockets
// of all hosts together do not fit the caches. So threads that receive data should
// run before threads that send it: the thread of the connection during writes, the
// host during reads.
//
// Linux runs the thread first whose next time slice would end first. Slices can
// be asked for without privilege since 6.12; earlier kernels ignore it.

const (
	// Slices in nanoseconds: of a thread that takes data out, the shortest there
	// is, and of one that puts data in. The kernel's own choice is about 3 ms.
	takingSlice  = 100_000
	puttingSlice = 10_000_000
	// sliceAfter is how many bytes have to go in the other direction, in
	// commands of largeIO or more, until the slice changes.
	sliceAfter = 2 << 20
	largeIO    = 32 << 10
)

// slicing is what the thread of a connection has asked for.
type slicing struct {
	want  bool // the host is on this machine, and the system lets us
	now   uint64
	other int // bytes that went in the other direction
	first *unix.SchedAttr
}

// init must be called on the thread. It looks at a host's address and at what
// the thread has been given.
func (s *slicing) init(nearby bool) {
	if !nearby {
		return
	}
	a, err := unix.SchedGetAttr(0, 0)
	s.want = err == nil && a.Policy == unix.SCHED_NORMAL
	s.first = a
}

// moved notes that n bytes of a command are about to be taken or put.
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

// end gives the thread back as it was.
func (s *slicing) end() {
	if s.want && s.now != 0 {
		s.set(s.first.Runtime)
	}
}
