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

// Locks on files, fcntl(2) and flock(2), of this process and of the processes that it serves. Record locks belong to a process
// and do not conflict with other record locks of that process. They do conflict with locks of open files (F_OFD_SETLK). Neither
// conflicts with flock, as on Linux. No call waits for a lock: the shim repeats a call that has to wait.
type locks struct {
	files atomic.Int32 // files that have a lock; mostly 0, which is read without mu

	mu     sync.Mutex
	ranges map[microfs.Ino][]lock // fcntl, lockf
	flocks map[microfs.Ino][]lock // flock
}

// lock is a lock of the range [start, end).
type lock struct {
	owner      Handle    // the open file, or ofProcess
	by         *openFile // the open file of the call that took it
	start, end int64
	write      bool
}

// ofProcess returns the owner of the record locks of a process.
func ofProcess(pid int) Handle { return Handle(-pid) }

// wholeFile returns a lock of an owner whose range is the whole file.
func wholeFile(owner Handle) *lock { return &lock{owner: owner, end: math.MaxInt64} }

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

// without returns the locks without those of l's owner in l's range.
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

// insert returns the locks with l, which is merged with those of its owner and kind that it touches.
func insert(held []lock, l lock) []lock {
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

// store sets the locks of a file. The caller holds l.mu.
func (l *locks) store(m *map[microfs.Ino][]lock, ino microfs.Ino, held []lock) {
	if *m == nil {
		*m = make(map[microfs.Ino][]lock)
	}
	if len(held) > 0 {
		(*m)[ino] = held
	} else {
		delete(*m, ino)
	}
	l.files.Store(int32(len(l.ranges) + len(l.flocks)))
}

// Lock is fcntl(2) with F_GETLK, F_SETLK, F_OFD_GETLK or F_OFD_SETLK; raw is
// the struct flock, and pid the process whose record locks are meant. EAGAIN if
// another owner has it.
func (p *Process) Lock(h Handle, pid, cmd int, raw []byte) error {
	f, err := p.getForIO(h)
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
			fillFlock(arg, found)
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
	return l.set(&l.ranges, &want, insert(without(held, &want), want), true)
}

// wanted returns a lock with the range and the kind of a struct flock.
func (f *openFile) wanted(arg *unix.Flock_t) (lock, error) {
	if arg.Type != unix.F_RDLCK && arg.Type != unix.F_WRLCK && arg.Type != unix.F_UNLCK {
		return lock{}, syscall.EINVAL
	}
	var base int64
	switch arg.Whence {
	case unix.SEEK_SET:
	case unix.SEEK_CUR:
		base = f.position()
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

// fillFlock puts the conflicting lock, if there is one, into the struct flock of F_GETLK.
func fillFlock(arg *unix.Flock_t, l *lock) {
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
	f, err := p.getForIO(h)
	if err != nil {
		return err
	}
	want := lock{owner: h, by: f, end: math.MaxInt64, write: operation == unix.LOCK_EX}
	l := &p.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	held := without(l.flocks[f.current().Ino()], &want)
	switch {
	case operation == unix.LOCK_UN:
		return l.set(&l.flocks, &want, held, false)
	case conflict(held, &want) != nil:
		return syscall.EAGAIN
	}
	return l.set(&l.flocks, &want, append(held, want), true)
}

// set makes after the locks of want's file. They differ from the present ones only in want's range. If take is set, other
// processes have to agree (lockRemotely), and the lock is dropped again if the file was closed meanwhile: no later call would
// drop it. If take is not set, locks are released, whatever error is returned. The caller holds l.mu.
func (l *locks) set(m *map[microfs.Ino][]lock, want *lock, after []lock, take bool) error {
	f := want.by
	ino := f.current().Ino()
	err := lockRemotely(f, m == &l.flocks, want, after)
	if take && err != nil {
		if !errors.Is(err, syscall.EAGAIN) { // another error may hide that the lock was granted: release it
			_ = lockRemotely(f, m == &l.flocks, want, (*m)[ino])
		}
		return err
	}
	l.store(m, ino, after)
	if take && f.refs.Load() == 0 {
		l.dropAll(f)
		return syscall.EBADF
	}
	return err
}

// drop releases the locks that an owner has on a file. If other processes cannot be told, the next fsync or close returns the
// error. The caller holds l.mu.
func (l *locks) drop(m *map[microfs.Ino][]lock, f *openFile, owner Handle) {
	all := wholeFile(owner)
	all.by = f
	held := (*m)[f.current().Ino()]
	if rest := without(held, all); len(rest) < len(held) {
		_ = l.set(m, all, rest, false)
	}
}

// descriptorClosed releases the record locks on f of a process that has closed a descriptor of it.
func (l *locks) descriptorClosed(f *openFile, process int) {
	if l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(&l.ranges, f, ofProcess(process))
}

// fileClosed releases the locks that end with the last descriptor of f: its own, and the record locks that were taken through it.
func (l *locks) fileClosed(f *openFile) {
	if l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropAll(f)
}

// dropAll is fileClosed. The caller holds l.mu.
func (l *locks) dropAll(f *openFile) {
	for _, h := range l.ranges[f.current().Ino()] {
		if h.by == f {
			l.drop(&l.ranges, f, h.owner)
		}
	}
	l.drop(&l.flocks, f, f.handle)
}

// processEnded releases the record locks of a process that has ended.
func (l *locks) processEnded(process int) {
	if process == 0 || l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, held := range l.ranges {
		for _, h := range held {
			if h.owner == ofProcess(process) {
				l.drop(&l.ranges, h.by, h.owner)
			}
		}
	}
}

// clear removes all locks: their files are closed, or have been handed over.
func (l *locks) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranges, l.flocks = nil, nil
	l.files.Store(0)
}
