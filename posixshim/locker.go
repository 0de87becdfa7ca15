package posixshim

import (
	"cmp"
	"slices"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// This file is about locks between processes on several hosts, which files of a job's tree have (vfs.Locker). To other processes
// the locks of all owners of this process are one set.

// merged returns the locks of all owners in a range, sorted and without overlaps.
func merged(held []lock, start, end int64) []vfs.Held {
	var all []vfs.Held
	for _, h := range held {
		if h := (vfs.Held{Start: max(h.start, start), End: min(h.end, end), Write: h.write}); h.Start < h.End {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b vfs.Held) int { return cmp.Compare(a.Start, b.Start) })
	n := 0
	for _, h := range all { // only locks for reading overlap
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
	locker, ok := f.current().(vfs.Locker)
	if !ok {
		return nil
	}
	return locker.Lock(whole, l.start, l.end, merged(held, l.start, l.end))
}

// remoteConflict returns a lock of other processes that conflicts with l, if there is one.
func remoteConflict(f *openFile, l *lock) (*lock, error) {
	locker, ok := f.current().(vfs.Locker)
	if !ok {
		return nil, nil
	}
	h, pid, err := locker.Conflict(false, vfs.Held{Start: l.start, End: l.end, Write: l.write})
	if err != nil || pid == 0 {
		return nil, err
	}
	return &lock{owner: ofProcess(pid), start: h.Start, end: h.End, write: h.Write}, nil
}

// reacquire takes the locks again after the mount of their files was replaced. A lock that another process has taken meanwhile is
// lost.
func (l *locks) reacquire(logf func(format string, args ...any)) {
	if l.files.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range []*map[microfs.Ino][]lock{&l.ranges, &l.flocks} {
		for ino, held := range *m {
			f := held[0].by
			if err := lockRemotely(f, m == &l.flocks, wholeFile(0), held); err != nil {
				logf("the locks on %s are lost: %v", f.path, err)
				l.store(m, ino, nil)
			}
		}
	}
}
