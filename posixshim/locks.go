package posixshim

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// Locks on files, as fcntl(2) and flock(2) have them, between the open files of
// this process and the processes that it serves. Record locks belong to a
// process; those of one do not meet each other, but those of open files
// (F_OFD_SETLK). flock knows nothing of either, as on Linux. Who waits for a lock asks again: no call
// waits in here.
type locks struct {
	files atomic.Int32 // that have a lock: mostly none

	mu     sync.Mutex
	ranges map[microfs.Ino][]lock // fcntl, lockf
	whole  map[microfs.Ino][]lock // flock
}

// lock is one of a range [start, end).
type lock struct {
	owner      Handle    // the open file, or ofProcess
	by         *openFile // that it was asked for through
	start, end int64
	write      bool
}

// ofProcess is the owner of the record locks of a process.
func ofProcess(pid int) Handle { return Handle(-pid) }

// everything is the whole range of a file, for an owner.
func everything(owner Handle) *lock { return &lock{owner: owner, end: math.MaxInt64} }

func (l *lock) overlaps(o *lock) bool { return l.start < o.end && o.start < l.end }

// conflict returns a lock of another owner that conflicts with l.
func conflict(held []lock, l *lock) *lock {
	for i := range held {
		if h := &held[i]; h.owner != l.owner && h.overlaps(l) && (h.write || l.write) {
			return h
		}
	}
	return nil
}

// without returns the locks without what l's owner has in l's range.
func without(held []lock, l *lock) []lock {
	var rest []lock
	for _, h := range held {
		if h.owner != l.owner || !h.overlaps(l) {
			rest = append(rest, h)
			continue
		}
		if h.start < l.start {
			rest = append(rest, lock{h.owner, h.by, h.start, l.start, h.write})
		}
		if h.end > l.end {
			rest = append(rest, lock{h.owner, h.by, l.end, h.end, h.write})
		}
	}
	return rest
}

// joined returns the locks with l, which is one with those of its owner and kind
// that it touches.
func joined(held []lock, l lock) []lock {
	var rest []lock
	for _, h := range held {
		if h.owner == l.owner && h.write == l.write && h.start <= l.end && l.start <= h.end {
			l.start, l.end = min(l.start, h.start), max(l.end, h.end)
			continue
		}
		rest = append(rest, h)
	}
	return append(rest, l)
}

// put stores the locks of a file. The caller holds l.mu.
func (l *locks) put(m *map[microfs.Ino][]lock, ino microfs.Ino, held []lock) {
	if *m == nil {
		*m = make(map[microfs.Ino][]lock)
	}
	if len(held) > 0 {
		(*m)[ino] = held
	} else {
		delete(*m, ino)
	}
	l.files.Store(int32(len(l.ranges) + len(l.whole)))
}

// Lock is fcntl(2) with F_GETLK, F_SETLK, F_OFD_GETLK or F_OFD_SETLK; raw is
// the struct flock, and pid the process whose record locks are meant. EAGAIN if
// another owner has it.
func (p *Process) Lock(h Handle, pid, cmd int, raw []byte) error {
	f, err := p.described(h)
	if err != nil {
		return err
	}
	if len(raw) < int(unsafe.Sizeof(unix.Flock_t{})) {
		return syscall.EFAULT
	}
	arg := (*unix.Flock_t)(unsafe.Pointer(&raw[0]))
	want, err := f.wanted(arg)
	if err != nil {
		return err
	}
	want.owner, want.by = ofProcess(pid), f
	if cmd == unix.F_OFD_GETLK || cmd == unix.F_OFD_SETLK {
		if arg.Pid != 0 {
			return syscall.EINVAL
		}
		want.owner = h
	}
	l := &p.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.ranges[f.current().Ino()]
	if cmd == unix.F_GETLK || cmd == unix.F_OFD_GETLK {
		found := conflict(held, &want)
		if found == nil {
			found, err = remoteConflict(f, &want)
		}
		if err == nil {
			tell(arg, found)
		}
		return err
	}
	if arg.Type == unix.F_UNLCK {
		return l.set(&l.ranges, &want, without(held, &want), false)
	}
	access := f.flags.Load() & syscall.O_ACCMODE
	if want.write && access == syscall.O_RDONLY || !want.write && access == syscall.O_WRONLY {
		return syscall.EBADF
	}
	if conflict(held, &want) != nil {
		return syscall.EAGAIN
	}
	return l.set(&l.ranges, &want, joined(without(held, &want), want), true)
}

// wanted returns the range that a struct flock means.
func (f *openFile) wanted(arg *unix.Flock_t) (lock, error) {
	if arg.Type != unix.F_RDLCK && arg.Type != unix.F_WRLCK && arg.Type != unix.F_UNLCK {
		return lock{}, syscall.EINVAL
	}
	var base int64
	switch arg.Whence {
	case unix.SEEK_SET:
	case unix.SEEK_CUR:
		base = f.tell()
	case unix.SEEK_END:
		attr, err := f.current().Stat()
		if err != nil {
			return lock{}, err
		}
		base = attr.Size
	default:
		return lock{}, syscall.EINVAL
	}
	start, err := add(base, arg.Start)
	if err != nil {
		return lock{}, err
	}
	end := int64(math.MaxInt64)
	switch {
	case arg.Len > 0:
		if start > math.MaxInt64-arg.Len {
			return lock{}, syscall.EOVERFLOW
		}
		end = start + arg.Len
	case arg.Len < 0:
		start, end = start+arg.Len, start
	}
	if start < 0 {
		return lock{}, syscall.EINVAL
	}
	return lock{start: start, end: end, write: arg.Type == unix.F_WRLCK}, nil
}

// tell puts what is in the way, if anything, into the answer of F_GETLK.
func tell(arg *unix.Flock_t, l *lock) {
	if l == nil {
		arg.Type = unix.F_UNLCK
		return
	}
	*arg = unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Start: l.start, Pid: -1}
	if l.write {
		arg.Type = unix.F_WRLCK
	}
	if l.end != math.MaxInt64 {
		arg.Len = l.end - l.start
	}
	if l.owner < 0 {
		arg.Pid = int32(-l.owner)
	}
}

// Flock is flock(2), without waiting: EAGAIN if another open file has it.
func (p *Process) Flock(h Handle, operation int) error {
	f, err := p.described(h)
	if err != nil {
		return err
	}
	want := lock{owner: h, by: f, end: math.MaxInt64, write: operation == unix.LOCK_EX}
	l := &p.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	held := without(l.whole[f.current().Ino()], &want)
	switch {
	case operation == unix.LOCK_UN:
		return l.set(&l.whole, &want, held, false)
	case conflict(held, &want) != nil:
		return syscall.EAGAIN
	}
	return l.set(&l.whole, &want, append(held, want), true)
}

// set makes after the locks of want's file, which differ from those there are in want's range. What is taken has to
// be agreed to, and stays unless the file was closed meanwhile: then no other call would drop it. What is given up is
// given up, whatever the error is. The caller holds l.mu.
func (l *locks) set(m *map[microfs.Ino][]lock, want *lock, after []lock, take bool) error {
	f := want.by
	ino := f.current().Ino()
	err := lockRemotely(f, m == &l.whole, want, after)
	if take && err != nil {
		if !errors.Is(err, syscall.EAGAIN) { // it may have been granted, and has no owner
			_ = lockRemotely(f, m == &l.whole, want, (*m)[ino])
		}
		return err
	}
	l.put(m, ino, after)
	if take && f.refs.Load() == 0 {
		l.forget(f)
		return syscall.EBADF
	}
	return err
}

// give drops what an owner has of a file. What could not be published of it is told by the next sync or
// close. The caller holds l.mu.
func (l *locks) give(m *map[microfs.Ino][]lock, f *openFile, owner Handle) {
	all := everything(owner)
	all.by = f
	held := (*m)[f.current().Ino()]
	if rest := without(held, all); len(rest) < len(held) {
		_ = l.set(m, all, rest, false)
	}
}

// closed drops the record locks of a process that has closed a descriptor of f.
func (l *locks) closed(f *openFile, process int) {
	if l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(&l.ranges, f, ofProcess(process))
}

// gone drops the locks that go with the last descriptor of f: its own, and
// those of every process that has asked for one through it.
func (l *locks) gone(f *openFile) {
	if l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(f)
}

// forget is gone, for one who holds l.mu.
func (l *locks) forget(f *openFile) {
	for _, h := range l.ranges[f.current().Ino()] {
		if h.by == f {
			l.give(&l.ranges, f, h.owner)
		}
	}
	l.give(&l.whole, f, f.handle)
}

// ended drops the record locks of a process that has ended.
func (l *locks) ended(process int) {
	if process == 0 || l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, held := range l.ranges {
		for _, h := range held {
			if h.owner == ofProcess(process) {
				l.give(&l.ranges, h.by, h.owner)
			}
		}
	}
}

// forgetAll drops all locks: what they are on is closed, or another process has it.
func (l *locks) forgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranges, l.whole = nil, nil
	l.files.Store(0)
}
