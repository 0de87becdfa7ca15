package posixshim

import (
	"cmp"
	"slices"

	"nvmecr/microfs"
)

// A Locker is a File whose locks also exclude processes that this one does not serve. Among this
// process and the processes that it serves, type locks keeps the locks.
type Locker interface {
	// Lock makes what all of these have locked of [start, end) what hold says, which is in order and does not overlap: with
	// flock if whole is true, else with fcntl. EAGAIN: others have a lock that does not go with it, and nothing has changed.
	Lock(whole bool, start, end int64, hold []Held) error
	// Conflict returns a lock of others that does not go with one, and the process that has it; 0 if there is none.
	Conflict(whole bool, want Held) (l Held, pid int, err error)
}

// Held is a part [Start, End) of a file that is locked.
type Held struct {
	Start, End int64
	Write      bool
}

// merged returns the locks of all owners in a range, as one set.
func merged(held []lock, start, end int64) []Held {
	var all []Held
	for _, h := range held {
		if h := (Held{max(h.start, start), min(h.end, end), h.write}); h.Start < h.End {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Held) int { return cmp.Compare(a.Start, b.Start) })
	n := 0
	for _, h := range all { // those that overlap are for reading
		if n > 0 && h.Start < all[n-1].End {
			all[n-1].End = max(all[n-1].End, h.End)
			continue
		}
		all[n] = h
		n++
	}
	return all[:n]
}

// lockRemotely requests from the Locker that the locks of a file in the range of l become those in held.
func lockRemotely(f *openFile, whole bool, l *lock, held []lock) error {
	locker, ok := f.current().(Locker)
	if !ok {
		return nil
	}
	return locker.Lock(whole, l.start, l.end, merged(held, l.start, l.end))
}

// remoteConflict returns a lock of other processes that conflicts with l, if there is one.
func remoteConflict(f *openFile, l *lock) (*lock, error) {
	locker, ok := f.current().(Locker)
	if !ok {
		return nil, nil
	}
	h, pid, err := locker.Conflict(false, Held{l.start, l.end, l.write})
	if err != nil || pid == 0 {
		return nil, err
	}
	return &lock{owner: ofProcess(pid), start: h.Start, end: h.End, write: h.Write}, nil
}

// reacquire takes the locks again of files that are in another mount now. A lock that another process has taken meanwhile is lost.
func (l *locks) reacquire(logf func(format string, args ...any)) {
	if l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range []*map[microfs.Ino][]lock{&l.ranges, &l.whole} {
		for ino, held := range *m {
			f := held[0].by
			if err := lockRemotely(f, m == &l.whole, everything(0), held); err != nil {
				logf("the locks on %s are lost: %v", f.path, err)
				l.put(m, ino, nil)
			}
		}
	}
}
