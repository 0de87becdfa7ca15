package drain

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/google/uuid"
)

// A partial is a set that is being written: a directory in partialDir.
type partial struct {
	name string // of the directory, in the level
	root directory
	set  *Set
	o    *Options

	mu      sync.Mutex // for what is below
	done    map[place]bool
	journal file
}

// A place is a segment of a file of the set.
type place struct{ file, segment int }

// An entry is a line of a journal.
type entry struct {
	File    int `json:"file"`
	Segment int `json:"segment"`
	Sum     Sum `json:"crc64nvme"`
}

// begin makes the directory of a set that is to be written, or goes on with the one that is there.
func (l *Level) begin(s *Set, o *Options) (_ *partial, err error) {
	p := &partial{name: path.Join(partialDir, label(s)), o: o, done: map[place]bool{}}
	if err := p.open(l); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	there, err := l.manifest(p.name)
	switch {
	case err == nil && there.Same(s) && there.Compress == s.Compress: // with the checksums, if all but the name was done
		p.set = there
	case !errors.Is(err, fs.ErrNotExist): // of another set, or cut short
		if err := errors.Join(p.root.Close(), l.root.RemoveAll(p.name), p.open(l)); err != nil {
			return nil, err
		}
		fallthrough
	default:
		p.set = s.withoutSums()
		if err := p.writeManifest(); err != nil {
			return nil, err
		}
	}
	return p, p.startJournal()
}

func (p *partial) open(l *Level) (err error) {
	if err := p.o.at("directory"); err != nil {
		return err
	}
	if err := l.root.MkdirAll(p.name); err != nil {
		return err
	}
	p.root, err = l.root.Sub(p.name)
	return err
}

func (p *partial) close() {
	if p.journal != nil {
		_ = p.journal.Close() // each line has been synced
	}
	_ = p.root.Close() // nothing is written by it
}

// withoutSums returns the set with room for checksums and none in it.
func (s *Set) withoutSums() *Set {
	c := *s
	c.Files = nil
	for _, f := range s.Files {
		f.Sums = make([]Sum, f.segments())
		c.Files = append(c.Files, f)
	}
	return &c
}

// startJournal reads the journals there are and begins one of its own.
func (p *partial) startJournal() error {
	if !p.set.Drained.IsZero() {
		for i := range p.set.Files {
			for j := range p.set.Files[i].Sums {
				p.done[place{i, j}] = true
			}
		}
	}
	names, err := p.root.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, journalPrefix) {
			continue
		}
		text, err := readFile(p.root, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		p.readJournal(text)
	}
	p.journal, err = p.root.Open(journalPrefix+uuid.NewString(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
	return err
}

// readJournal believes each line that makes sense: what a line is wrong about verify finds out.
func (p *partial) readJournal(text []byte) {
	for len(text) > 0 {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		text = rest
		var e entry
		if !whole || json.Unmarshal(line, &e) != nil || e.File < 0 || e.File >= len(p.set.Files) {
			continue
		}
		if sums := p.set.Files[e.File].Sums; e.Segment >= 0 && e.Segment < len(sums) {
			sums[e.Segment] = e.Sum
			p.done[place{e.File, e.Segment}] = true
		}
	}
}

// record says that a segment is durable.
func (p *partial) record(at place, sum Sum) error {
	line, err := json.Marshal(entry{at.file, at.segment, sum})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set.Files[at.file].Sums[at.segment] = sum
	p.done[at] = true
	if err := p.o.at("journal"); err != nil {
		return err
	}
	_, err = p.journal.Write(append(line, '\n'))
	return err
}

// writeManifest writes the manifest, the old one or the new one at any time.
func (p *partial) writeManifest() error {
	text, err := encode(p.set)
	if err != nil {
		return err
	}
	for {
		next := manifestName + "-" + uuid.NewString()
		if err := p.writeFile(next, text); err != nil {
			return err
		}
		err := p.root.Rename(next, manifestName)
		if errors.Is(err, fs.ErrNotExist) {
			continue // who was quicker has tidied up
		}
		return errors.Join(err, p.root.Sync("."))
	}
}

func (p *partial) writeFile(name string, text []byte) error {
	f, err := p.root.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, p.o.at("manifest"), f.Sync(), f.Close())
}

// create opens a file of the set for writing. Unless it is compressed it has its size from then on.
func (p *partial) create(f *File) (file, error) {
	if err := p.o.at("create"); err != nil {
		return nil, err
	}
	if err := p.root.MkdirAll(path.Dir(p.set.stored(f))); err != nil {
		return nil, err
	}
	to, err := p.root.Open(p.set.stored(f), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil || p.set.Compress != Plain {
		return to, err
	}
	if err := to.Truncate(f.Size); err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return to, nil
}
