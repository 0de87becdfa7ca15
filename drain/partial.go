package drain

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// A partial is a set that is being written: a directory in partialDir.
type partial struct {
	level *Level
	name  string // of the directory, in the level
	root  directory
	set   *Set
	o     *Options
	base  *base // nil if nothing is shared

	shared atomic.Int64 // bytes

	mu       sync.Mutex // for what is below
	done     map[place]bool
	verified map[place]bool // since this process began
	stale    map[place]bool // verified before: what was there then may be lost
	journal  file
	own      string           // its name
	read     map[string]int64 // how much of each other journal
}

// A place is a segment of a file of the set.
type place struct{ file, segment int }

// An entry is a line of a journal.
type entry struct {
	File    int `json:"file"`
	Segment int `json:"segment"`
	Sum     Sum `json:"crc64nvme"`
	// Verified says that it has been read back as well; of a set that is compressed, all of the file.
	Verified bool `json:"verified,omitempty"`
	// Shared is how many bytes of the segment were cloned from the set before.
	Shared int64 `json:"shared,omitempty"`
	// Whole are the checksums of the segments of the file that it has bytes of, if the set is of shards.
	Whole []Sum `json:"whole,omitempty"`
}

// begin makes the directory of a set that is to be written, or goes on with the one that is there.
func (l *Level) begin(s *Set, o *Options) (_ *partial, err error) {
	p := newPartial(path.Join(partialDir, label(s)), o)
	call := l.callPeers(s, o)
	if call != nil {
		p.name += callMark + uuid.NewString()
	}
	if err := p.open(l); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err = p.start(s, call); err == nil {
		err = p.startJournal()
	}
	if err == nil && o.Share.Number == 0 {
		if err = l.gather(p); err == nil {
			l.removeAbandoned(p)
		}
	}
	return p, err
}

// start takes over the manifest of the directory if that is of the set, or writes the first one. Another process that puts the set may do the same at
// any time, or complete the set and rename the directory: it is the same directory for this process then, whose manifest has everything.
func (p *partial) start(s *Set, peers *call) error {
	for {
		there, err := readManifest(p.root, manifestName)
		switch {
		case err == nil && there.Same(s) && there.Compress == s.Compress && (s.Code == Code{} || slices.Equal(there.Parts, s.Parts)): // with the checksums, if all but the name was done
			p.set = there
			return nil
		case !errors.Is(err, fs.ErrNotExist): // of another set, or cut short
			if err := errors.Join(p.root.Close(), p.level.root.RemoveAll(p.name), p.open(p.level)); err != nil {
				return err
			}
		}
		p.set = s.withoutSums()
		p.set.Call = peers
		if err := p.writeFirstManifest(); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

func newPartial(name string, o *Options) *partial {
	return &partial{name: name, o: o, done: map[place]bool{}, verified: map[place]bool{}, read: map[string]int64{}}
}

func (p *partial) open(l *Level) (err error) {
	p.level = l
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
	p.base.close()
	_ = p.root.Close() // nothing is written by it
}

// withoutSums returns the set with space for checksums and none in it.
func (s *Set) withoutSums() *Set {
	c := *s
	c.Files = nil
	for _, f := range s.Files {
		f.Sums = make([]Sum, f.segments())
		if f.Whole != nil {
			f.Whole = &Whole{f.Whole.Size, make([]Sum, f.Whole.segments())}
		}
		c.Files = append(c.Files, f)
	}
	return &c
}

// startJournal reads the journals there are and begins one of its own.
func (p *partial) startJournal() (err error) {
	if err := p.readDone(); err != nil {
		return err
	}
	p.stale, p.verified = p.verified, map[place]bool{}
	p.own = journalPrefix + uuid.NewString()
	p.journal, err = p.root.Open(p.own, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
	return err
}

// readDone reads what has been done so far.
func (p *partial) readDone() error {
	if !p.set.Drained.IsZero() {
		for i := range p.set.Files {
			for j := range p.set.Files[i].Sums {
				p.done[place{i, j}] = true
			}
		}
	}
	return p.readJournals()
}

// readJournals reads what others have added to their journals.
func (p *partial) readJournals() error {
	names, err := p.root.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, journalPrefix) || name == p.own {
			continue
		}
		text, err := readFrom(p.root, name, p.read[name])
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be half written
		p.read[name] += int64(len(text))
		p.readJournal(text)
	}
	return nil
}

// readJournal believes each line that makes sense: what a line is wrong about verify finds out.
func (p *partial) readJournal(text []byte) {
	for line := range bytes.Lines(text) {
		var e entry
		if json.Unmarshal(line, &e) != nil || e.File < 0 || e.File >= len(p.set.Files) {
			continue
		}
		if sums := p.set.Files[e.File].Sums; e.Segment >= 0 && e.Segment < len(sums) && len(e.Whole) == len(p.wholeSums(place{e.File, e.Segment})) {
			p.note(e)
		}
	}
}

// note has the set know what a journal says.
func (p *partial) note(e entry) {
	at := place{e.File, e.Segment}
	p.set.Files[at.file].Sums[at.segment] = e.Sum
	copy(p.wholeSums(at), e.Whole)
	p.done[at] = true
	p.shared.Add(e.Shared)
	if e.Verified {
		p.verified[at] = true
	}
}

// wholeSums returns the checksums of what a segment of a shard has bytes of.
func (p *partial) wholeSums(at place) []Sum {
	w := p.set.Files[at.file].Whole
	if w == nil {
		return nil
	}
	first := at.segment * p.set.Code.Data
	return w.Sums[first:min(first+p.set.Code.Data, len(w.Sums))]
}

// record adds a segment to the journal that is durable.
func (p *partial) record(e entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(e)
	return p.write(e)
}

// write adds a line to the journal.
func (p *partial) write(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := p.o.at("journal"); err != nil {
		return err
	}
	_, err = p.journal.Write(append(line, '\n'))
	return err
}

// writeManifest writes the manifest, the old one or the new one at any time.
func (p *partial) writeManifest() error { return p.placeManifest(p.root.Rename) }

// writeFirstManifest writes the manifest unless there is one: then the error is in fs.ErrExist.
func (p *partial) writeFirstManifest() error {
	return p.placeManifest(func(next, name string) error {
		err := p.root.Link(next, name)
		if errors.Is(err, errNoLinks) {
			return p.root.Rename(next, name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if e := p.root.Remove(next); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return err
	})
}

// placeManifest writes the manifest under another name, which place makes that of the manifest.
func (p *partial) placeManifest(place func(next, name string) error) error {
	text, err := encode(p.set)
	if err != nil {
		return err
	}
	for {
		next := manifestName + "-" + uuid.NewString()
		if err := p.writeFile(next, text); err != nil {
			return err
		}
		err := place(next, manifestName)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the process that has completed the set has removed it
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
