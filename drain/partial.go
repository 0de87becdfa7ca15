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
	name  string // of the directory, relative to the level
	root  directory
	set   *Set
	o     *Options
	base  *base // nil if nothing is shared

	shared atomic.Int64 // bytes

	mu       sync.Mutex // guards the fields below
	done     map[place]bool
	verified map[place]bool // by any process, since this process began
	stale    map[place]bool // verified before that; the data may have been lost since
	journal  file
	own      string           // name of journal
	read     map[string]int64 // bytes read from each other journal
}

// A place is a segment of a file of the set.
type place struct{ file, segment int }

// An entry is a line of a journal.
type entry struct {
	File    int `json:"file"`
	Segment int `json:"segment"`
	Sum     Sum `json:"crc64nvme"`
	// Verified means that the segment has been read back, or all of the file if the set is compressed.
	Verified bool `json:"verified,omitempty"`
	// Shared is the number of bytes of the segment that were cloned from the previous set.
	Shared int64 `json:"shared,omitempty"`
	// Whole are the checksums of the file's segments that this segment of a shard has bytes of.
	Whole []Sum `json:"whole,omitempty"`
}

// begin creates the directory of a set that is to be written, or opens the existing one to continue.
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

// start takes over the manifest of the directory if that is of the set. Otherwise it writes the first manifest. Another process that
// puts the set may do the same at any time, or complete the set and rename the directory. The directory stays the same for this process
// then, and its manifest is complete.
func (p *partial) start(s *Set, peers *call) error {
	for {
		there, err := readManifest(p.root, manifestName)
		switch {
		case err == nil && there.Same(s) && there.Compress == s.Compress && (s.Code == Code{} || slices.Equal(there.Parts, s.Parts)): // the manifest has checksums if only the renaming is missing
			p.set = there
			return nil
		case !errors.Is(err, fs.ErrNotExist): // a directory of another set, or with an incomplete manifest
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
	for try := 1; ; try++ {
		if err := l.root.MkdirAll(p.name); err != nil {
			return err
		}
		// Another process may have completed the set meanwhile, and renamed the directory.
		if p.root, err = l.root.Sub(p.name); !errors.Is(err, fs.ErrNotExist) || try == openTries {
			return err
		}
	}
}

// openTries is how often a directory is created that other processes have renamed as soon as it was there.
const openTries = 10

func (p *partial) close() {
	if p.journal != nil {
		_ = p.journal.Close() // each line was synced
	}
	p.base.close()
	_ = p.root.Close() // files have been synced
}

// withoutSums returns a copy of the set with checksums of zero.
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

// startJournal reads the existing journals and starts a new one.
func (p *partial) startJournal() (err error) {
	if err := p.readDone(); err != nil {
		return err
	}
	p.stale, p.verified = p.verified, map[place]bool{}
	p.own = journalPrefix + uuid.NewString()
	p.journal, err = p.root.Open(p.own, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o666)
	return err
}

// readDone reads the existing journals.
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

// readJournals reads lines that other processes have added to their journals.
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
		text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be incomplete
		p.read[name] += int64(len(text))
		p.readJournal(text)
	}
	return nil
}

// readJournal accepts all valid lines. Verification detects wrong ones.
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

// note applies a journal entry to the set.
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

// wholeSums returns the checksums of the whole file's segments that a segment of a shard has bytes of.
func (p *partial) wholeSums(at place) []Sum {
	w := p.set.Files[at.file].Whole
	if w == nil {
		return nil
	}
	first := at.segment * p.set.Code.Data
	return w.Sums[first:min(first+p.set.Code.Data, len(w.Sums))]
}

// record adds a durable segment to the journal.
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

// writeManifest replaces the manifest atomically.
func (p *partial) writeManifest() error { return p.placeManifest(p.root.Rename) }

// writeFirstManifest writes the manifest unless the directory has one. Then the error wraps fs.ErrExist.
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

// placeManifest writes the manifest under another name. place changes that to the name of the manifest.
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

// create creates a file of the set. Unless it is compressed it gets its final size.
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
