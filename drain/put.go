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

// ErrChanged is wrapped by the error of a Put whose files were changed in the store while they were read.
var ErrChanged = errors.New("it was changed while it was copied")

// A Source opens the files of a set for reading.
type Source interface {
	// Open opens the version of a file at the last Refresh, or a later one. Several goroutines call it concurrently.
	Open(rank int, path string) (Reader, error)
	// Refresh makes Open open the present versions. It is called while no Reader is open.
	Refresh() error
}

// A Reader is an open file. It is used by one goroutine at a time.
type Reader interface {
	io.ReaderAt
	// Data returns the first range from off on that is not a hole; io.EOF if there is none.
	Data(off int64) (from, to int64, err error)
	// Stat returns the size and the time of modification.
	Stat() (size int64, modified time.Time, err error)
	Close() error
}

// Options are the options of a copy.
type Options struct {
	// Workers is the number of segments copied concurrently; 0: 4, or in the background the number of processors.
	Workers int
	// Limit is the maximum rate of copying, and then of verifying, in bytes per second; 0: no limit.
	Limit int64
	// Background copies with LowerPriority.
	Background bool
	// Incremental shares equal data with the previous set, in directories that support it (CanShare).
	Incremental bool
	// Replace removes older sets of the series, the oldest first, if there is no space for the next one. The newest stays.
	Replace bool
	// Share is the part of the set that this process copies and reads back, if several processes put the set
	// together.
	Share Share
	// Peers is the run whose processes on other hosts each copy a share (Level.Join); Limit then applies to all of
	// them together. "": no peers.
	Peers string
	// Progress, unless nil, is called with numbers of bytes that have been copied and verified. Several goroutines
	// call it.
	Progress func(copied, verified int64)

	step func(what string) error // for tests: called before each change of the directory
}

const defaultWorkers = 4

// workers returns the number of workers. In the background there are many, since on a busy host each gets little
// time.
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

// Put copies a set to the level and returns the stored set: complete, durable and verified. A set that is stored
// already is not copied again.
//
// The error wraps ErrChanged; or ErrDamaged if the data read back differs; or an error of reading or writing. Data
// copied so far is kept for the next Put of the set, unless it is wrong. With a Share, only the first process gets
// the set; the others get nil.
func (l *Level) Put(ctx context.Context, s *Set, src Source, o Options) (*Set, error) {
	if err := s.check(false); err != nil {
		return nil, err
	}
	if have, err := find(l, s); have != nil || err != nil {
		return have, err
	}
	for {
		set, err := l.put(ctx, s, src, o)
		switch {
		case errors.Is(err, errOthers) && o.Peers != "": // the hosts of the peers have failed
			o.Peers = ""
		case isFull(err) && o.Share.Of <= 1:
			if err := l.makeSpace(s, o.Replace, err); err != nil {
				return nil, err
			}
		default:
			return set, err
		}
	}
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

// commit renames the directory to its final name.
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
			if have, err := find(l, p.set); have != nil || err != nil { // another process was first
				return have, errors.Join(err, l.root.RemoveAll(p.name))
			}
		case err != nil:
			if have, e := find(l, p.set); have != nil { // another process has renamed the directory that both have written
				return have, e
			}
			return nil, err
		default:
			p.set.Dir, p.set.Shared, p.set.Hosts = filepath.Join(l.dir, name), p.shared.Load(), max(p.o.Share.Of, 1)
			return p.set, errors.Join(l.root.Sync(partialDir), l.root.Sync("."))
		}
	}
}

// finish completes the set, except for its name, unless the files have changed meanwhile.
func (p *partial) finish(ctx context.Context, src Source) error {
	if err := unchangedSet(src, p.set); err != nil {
		return err
	}
	return p.seal(ctx)
}

// seal makes the copied files a complete set, except for its name.
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

// syncFile sets the attributes of a file and makes it durable. It also creates empty files.
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

// unchangedSet checks that the files of the store have not changed.
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

// unchanged checks that a file of the store has not changed.
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

// removeJournals removes the journals of all processes, and temporary manifests.
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
