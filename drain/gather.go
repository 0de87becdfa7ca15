package drain

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/google/uuid"
)

// gather takes over complete files from the directories in which other Puts have left the set: those with a call, and, if p has a call, also the
// one without.
//
// A process may still be writing to such a directory. So the directory is moved aside first: from then on no process can give it the name of a complete set. Only
// files that are durable as a whole are taken: no process writes to them any more.
func (l *Level) gather(p *partial) error {
	names, err := l.in(partialDir)
	if err != nil {
		return err
	}
	without := label(p.set)
	for _, name := range names {
		if name == path.Base(p.name) || name != without && !strings.HasPrefix(name, without+callMark) {
			continue
		}
		aside := path.Join(removalDir, uuid.NewString())
		err := errors.Join(p.o.at("aside"), l.root.MkdirAll(removalDir))
		if err == nil {
			err = l.root.Rename(path.Join(partialDir, name), aside)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has moved it
		}
		if err == nil {
			err = p.takeFrom(aside)
		}
		if err != nil {
			return err
		}
		_ = l.root.RemoveAll(aside) // the next removal removes what a late process adds
	}
	return nil
}

// takeFrom takes the complete files of a directory that has been moved aside, if they are of the same set.
func (p *partial) takeFrom(aside string) error {
	old := newPartial(aside, p.o)
	if old.reopen(p.level) != nil {
		return nil // no manifest: that Put has just begun
	}
	defer old.close()
	if !old.set.Same(p.set) || old.set.Compress != p.set.Compress {
		return nil
	}
	if err := old.readDone(); err != nil {
		return err
	}
	for i := range p.set.Files {
		if !old.has(i) || p.has(i) {
			continue
		}
		err := p.take(old, i)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removes the directory
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take moves a file from another directory, and adds its segments to the journal.
func (p *partial) take(old *partial, file int) error {
	f := &p.set.Files[file]
	name := p.set.stored(f)
	if err := errors.Join(p.o.at("take"), p.root.MkdirAll(path.Dir(name))); err != nil {
		return err
	}
	if err := p.level.root.Rename(path.Join(old.name, name), path.Join(p.name, name)); err != nil {
		return err
	}
	for i := range f.segments() {
		if err := p.record(entry{File: file, Segment: i, Sum: old.set.Files[file].Sums[i]}); err != nil {
			return err
		}
	}
	return nil
}

// has reports whether the journals have all segments of a file. It is false for an empty file, which has no entry.
func (p *partial) has(file int) bool {
	f := &p.set.Files[file]
	for i := range f.segments() {
		if !p.done[place{file, i}] {
			return false
		}
	}
	return f.Size > 0
}
