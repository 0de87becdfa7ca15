package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// ErrChanged is in the error of a Put whose files were changed in the store while they were read.
var ErrChanged = errors.New("it was changed while it was copied")

// A Source is where the files of a set are read.
type Source interface {
	// Open opens a file, as it was at the last Refresh or is now. Several goroutines call it at once.
	Open(rank int, path string) (Reader, error)
	// Refresh has Open open files as they are now. No Reader is open then.
	Refresh() error
}

// A Reader is an open file. One goroutine at a time uses it.
type Reader interface {
	io.ReaderAt
	// Data returns the first range from off on that is no hole; io.EOF if there is none.
	Data(off int64) (from, to int64, err error)
	// Stat returns the size and when the content was last changed.
	Stat() (size int64, modified time.Time, err error)
	Close() error
}

// Options say how to copy.
type Options struct {
	// Workers is how many segments are copied at once; 0: 4, or in the background as many as the host has processors.
	Workers int
	// Limit is the most bytes that are copied in a second, and then verified; 0: as many as there can be.
	Limit int64
	// Background has the threads that copy run when nothing else on the host wants to.
	Background bool
	// Incremental has what the set before has as well stored once, in directories that can do so (CanShare).
	Incremental bool
	// Share is what of the set is copied, and read back, where several processes put it together.
	Share Share
	// Peers is the run whose processes on other hosts copy a share each, and Limit is then that of all (Level.Join); "": none do.
	Peers string
	// Progress is told of bytes that have been copied, and of those that have been verified; or nil. Several goroutines call it.
	Progress func(copied, verified int64)

	step func(what string) error // nil but in tests: before each change of the directory
}

const defaultWorkers = 4

// workers are many in the background: where all processors are busy each worker has a small part of one only.
func (o *Options) workers() int {
	if o.Workers == 0 && o.Background {
		return max(defaultWorkers, runtime.NumCPU())
	}
	return cmp.Or(o.Workers, defaultWorkers)
}

// limiter returns nil if there is no limit.
func (o *Options) limiter() *rate.Limiter {
	if o.Limit <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(o.Limit), blockSize)
}

func (o *Options) at(what string) error {
	if o.step == nil {
		return nil
	}
	return o.step(what)
}

func (o *Options) progress(copied, verified int64) {
	if o.Progress != nil {
		o.Progress(copied, verified)
	}
}

// Put copies a set to the level and returns it as it is there: whole, durable and verified. If it is there already nothing is copied.
//
// The error is in ErrChanged, in ErrDamaged if what was read back differs, or one of reading or writing. What has been copied by then is kept
// for the next Put of the set, unless it is wrong. Of a Put that is not the first of those that share the work the set is nil.
func (l *Level) Put(ctx context.Context, s *Set, src Source, o Options) (*Set, error) {
	if err := s.check(false); err != nil {
		return nil, err
	}
	if have, err := find(l, s); have != nil || err != nil {
		return have, err
	}
	set, err := l.put(ctx, s, src, o)
	if errors.Is(err, errOthers) && o.Peers != "" { // their hosts are gone
		o.Peers = ""
		set, err = l.put(ctx, s, src, o)
	}
	return set, err
}

func (l *Level) put(ctx context.Context, s *Set, src Source, o Options) (*Set, error) {
	p, err := l.begin(s, &o)
	if err != nil {
		return nil, err
	}
	defer p.close()
	p.share()
	err = p.copy(ctx, src)
	if err == nil && o.Share.Of > 1 {
		err = p.meetOthers(ctx, p.patience())
	}
	if err == nil && o.Share.Number == 0 {
		err = p.finish(ctx, src)
	}
	if errors.Is(err, ErrChanged) || errors.Is(err, ErrDamaged) {
		err = errors.Join(err, l.root.RemoveAll(p.name))
	}
	if err != nil || o.Share.Number > 0 {
		return nil, err
	}
	return l.commit(p)
}

// commit gives the directory its name.
func (l *Level) commit(p *partial) (*Set, error) {
	for i := 1; ; i++ {
		name := label(p.set)
		if i > 1 {
			name += "~" + strconv.Itoa(i)
		}
		if err := p.o.at("rename"); err != nil {
			return nil, err
		}
		err := l.root.Rename(p.name, name)
		switch {
		case errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist):
			if have, err := find(l, p.set); have != nil || err != nil { // somebody else was first
				return have, errors.Join(err, l.root.RemoveAll(p.name))
			}
		case err != nil:
			if have, e := find(l, p.set); have != nil { // somebody else renamed what both of us have written
				return have, e
			}
			return nil, err
		default:
			p.set.Dir, p.set.Shared, p.set.Hosts = filepath.Join(l.dir, name), p.shared.Load(), max(p.o.Share.Of, 1)
			return p.set, errors.Join(l.root.Sync(partialDir), l.root.Sync("."))
		}
	}
}

// finish makes what has been copied a whole set, all but its name, unless it has changed meanwhile.
func (p *partial) finish(ctx context.Context, src Source) error {
	if err := unchangedSet(src, p.set); err != nil {
		return err
	}
	return p.seal(ctx)
}

// seal makes what has been copied a whole set, all but its name.
func (p *partial) seal(ctx context.Context) error {
	dirs := map[string]bool{".": true}
	for i := range p.set.Files {
		f := &p.set.Files[i]
		if err := p.syncFile(f); err != nil {
			return err
		}
		for dir := path.Dir(p.set.In(f)); !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	for dir := range dirs {
		if err := p.root.Sync(dir); err != nil {
			return err
		}
	}
	if err := verify(ctx, p.root, p.set, p.unverified(), *p.o, nil); err != nil {
		return err
	}
	if err := verifySizes(p.root, p.set); err != nil {
		return err
	}
	p.set.Drained, p.set.Call = time.Now().UTC(), nil
	if err := p.writeManifest(); err != nil {
		return err
	}
	return p.removeJournals()
}

// syncFile gives a file its attributes and makes it durable, also one of no bytes.
func (p *partial) syncFile(f *File) error {
	to, err := p.create(f)
	if err != nil {
		return err
	}
	err = errors.Join(to.Chmod(fs.FileMode(f.Mode).Perm()|0o400), to.Sync(), to.Close())
	if err != nil {
		return err
	}
	return p.root.Chtimes(p.set.stored(f), f.Modified)
}

// unchangedSet compares the files of the store with what was to be copied.
func unchangedSet(src Source, s *Set) error {
	if err := src.Refresh(); err != nil {
		return err
	}
	for i := range s.Files {
		if err := unchanged(src, s, &s.Files[i]); err != nil {
			return err
		}
	}
	return nil
}

// unchanged compares a file of the store with what was to be copied.
func unchanged(src Source, s *Set, f *File) error {
	r, err := src.Open(f.Rank, f.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", s.In(f), err)
	}
	size, modified, err := r.Stat()
	if err == nil && (size != f.Size || !modified.Equal(f.Modified)) {
		err = ErrChanged
	}
	if err = errors.Join(err, r.Close()); err != nil {
		return fmt.Errorf("%s: %w", s.In(f), err)
	}
	return nil
}

// removeJournals removes the journals of all who have written this set, and what their ends left of manifests.
func (p *partial) removeJournals() error {
	names, err := p.root.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, journalPrefix) && !strings.HasPrefix(name, manifestName+"-") {
			continue
		}
		if err := p.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return p.root.Sync(".")
}
