package drain

import (
	"errors"
	"fmt"
	"path"
	"syscall"

	"github.com/google/uuid"

	"nvmecr/checkpoint"
)

// isFull reports whether an error means that a file system is full, or a quota used up.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// removeAbandoned removes the files of older sets that were never completed, a day after the last change.
func (l *Level) removeAbandoned(p *partial) {
	d, ok := l.root.(hostDir)
	if !ok {
		return // the owner of an area removes its incomplete sets
	}
	if now, err := d.changed(p.name); err == nil { // by the clock of the file system: the journal was created just now
		l.removePartialsBefore(p.set, func(dir string) bool {
			last, err := d.changed(dir)
			return err != nil || now.Sub(last) < abandoned
		})
	}
}

// removePartialsBefore removes the files of older sets of the series that were never completed, except those that stay. A run copies only the newest set,
// so no process of it continues the older ones. Files that cannot be removed stay for the next Put.
func (l *Level) removePartialsBefore(next *Set, stays func(dir string) bool) (removed bool) {
	names, _ := l.in(partialDir)
	for _, name := range names {
		dir := path.Join(partialDir, name)
		s, err := l.manifest(dir)
		if err != nil || checkpoint.Stem(s.Pattern) != checkpoint.Stem(next.Pattern) || !s.Ended.Before(next.Ended) || stays(dir) {
			continue
		}
		aside := path.Join(removalDir, uuid.NewString())
		if l.root.MkdirAll(removalDir) == nil && l.root.Rename(dir, aside) == nil {
			removed = true
			_ = l.root.RemoveAll(aside) // if that fails, the next call tries again
		}
	}
	return removed
}

// makeSpace removes something for the next set, which got the error full: what interrupted removals have left; else the files of older sets of the
// series that were never completed; else, if sets may be replaced, the oldest of several sets of the series. If a process still copies one of the
// older sets, it fails: the next set matters more.
func (l *Level) makeSpace(next *Set, replace bool, full error) error {
	if _, ok := l.root.(hostDir); !ok {
		return full // the owner of an area makes space
	}
	if left, _ := l.in(removalDir); len(left) > 0 && l.root.RemoveAll(removalDir) == nil {
		return nil
	}
	if l.removePartialsBefore(next, func(string) bool { return false }) {
		return nil
	}
	if !replace {
		return full
	}
	sets, err := l.Sets()
	if errors.As(err, new(DamagedSets)) {
		err = nil // errors about other sets
	}
	if err != nil {
		return errors.Join(full, err)
	}
	sets = bySeries(sets)[checkpoint.Stem(next.Pattern)]
	if len(sets) < 2 {
		return fmt.Errorf("there is no space for it in addition to the newest: %w", full)
	}
	if err := l.Remove(&sets[0]); err != nil {
		return errors.Join(full, err)
	}
	return nil
}
