package posixshim

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"nvmecr/internal/ownfd"
	"nvmecr/microfs"
)

// FS is what this package uses of a microfs.FS.
type FS interface {
	SetCred(microfs.Cred) error
	Open(dir microfs.Ino, path string, flags int, mode uint32) (File, error)
	OpenIno(ino microfs.Ino, flags int) (File, error)
	Stat(dir microfs.Ino, path string, follow bool) (microfs.Attr, error)
	Access(dir microfs.Ino, path string, mode uint32, follow bool) error
	AccessAs(who microfs.Cred, dir microfs.Ino, path string, mode uint32, follow bool) error
	Mkdir(dir microfs.Ino, path string, mode uint32) error
	Rmdir(dir microfs.Ino, path string) error
	Unlink(dir microfs.Ino, path string) error
	Rename(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, flags uint) error
	Link(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, follow bool) error
	Symlink(target string, dir microfs.Ino, path string) error
	Readlink(dir microfs.Ino, path string) (string, error)
	Truncate(dir microfs.Ino, path string, size int64) error
	SetAttr(dir microfs.Ino, path string, follow bool, s microfs.SetAttr) error
	PathOf(dir microfs.Ino) (string, error)
	RealPath(dir microfs.Ino, path string) (string, error)
	StatFS() microfs.StatFS
	Vacate() error
	Sync() error
}

// File is what this package uses of a microfs.File.
type File interface {
	Ino() microfs.Ino
	IsDir() bool
	// Size is Stat().Size as far as this process knows: reads ask for no more.
	Size() (int64, error)
	ReadAt(bufs [][]byte, off int64) (int, error)
	WriteAt(bufs [][]byte, off int64) (int, error)
	AppendBelow(bufs [][]byte, most int64) (n int, end int64, err error)
	Truncate(size int64) error
	Allocate(off, n int64, keepSize bool) error
	Punch(off, n int64) error
	ZeroRange(off, n int64, keepSize bool) error
	Advise(off, n int64, advice int) error
	Sync() error
	Stat() (microfs.Attr, error)
	SetAttr(s microfs.SetAttr) error
	ReadDir(after string, n int) ([]microfs.Dirent, error)
	SeekData(off int64) (int64, error)
	SeekHole(off int64) (int64, error)
	Close() error
}

// A Mount is a partition that has been opened.
type Mount struct {
	FS       FS
	Writable bool
	// Tree says that all processes have one: what is open in another mount can be opened in it by its number.
	Tree bool
	// Current reports whether a mount that is not writable shows what another
	// one would; nil if only that can tell.
	Current func() bool
	// Close unmounts. It is called once, when nothing uses FS any more.
	Close func() error
}

// Microfs makes a microfs.FS an FS.
func Microfs(fs *microfs.FS) FS { return microFS{fs} }

type microFS struct{ *microfs.FS }

func (m microFS) Open(dir microfs.Ino, path string, flags int, mode uint32) (File, error) {
	f, err := m.FS.Open(dir, path, flags, mode)
	if err != nil {
		return nil, err // not a nil *microfs.File in an interface
	}
	return f, nil
}

func (m microFS) OpenIno(ino microfs.Ino, flags int) (File, error) {
	f, err := m.FS.OpenIno(ino, flags)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// fresh is how old what a reader sees may be. A process that reads while
// another one writes looks again after this time: less than it takes a shell
// to run a command and look at what that left. Where looking takes long, for a
// command as well as for us, it is after half the time that it took last.
const fresh = 2 * time.Millisecond

// acquire returns the mount, opening it, looking again, or opening it for
// writing, as needed. The caller calls p.mu.RUnlock when it is done with it.
func (p *Process) acquire(write bool) (FS, error) {
	if p.Used != nil {
		p.used.Do(p.Used)
	}
	return p.obtain(write)
}

// obtain is acquire for who has not been asked for a file yet.
func (p *Process) obtain(write bool) (FS, error) {
	p.mu.RLock()
	if p.usable(write) {
		return p.mount.FS, nil
	}
	p.mu.RUnlock()
	if p.Await != nil {
		p.Await() // what is read from media has to be there
	}
	if err := p.prepare(write); err != nil {
		return nil, err
	}
	p.mu.RLock()
	if p.mount == nil || write && !p.mount.Writable { // given up, or finished, in between
		p.mu.RUnlock()
		return nil, syscall.EBUSY
	}
	return p.mount.FS, nil
}

// await returns when a file has what was written to it past the shim, also by way of other processes. Where others write to a
// mount that stays usable it is called before a file is opened, or its attributes are told.
func (p *Process) await() {
	if p.Attentive {
		p.FinishCarried() // as for the other calls of this library (Drain)
	}
	if p.Await != nil && p.tree.Load() {
		p.Await()
	}
}

// usable says whether the mount serves. The caller holds p.mu.
func (p *Process) usable(write bool) bool {
	return p.mount != nil &&
		(p.mount.Writable || !write && !p.stale.Load() && !p.elsewhere.Load() && !p.Attentive && time.Since(p.opened) < p.fresh)
}

// prepare makes the mount usable. Open files move over to a new one.
func (p *Process) prepare(write bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed != nil:
		return p.failed
	case p.finished:
		return errFinished
	case p.usable(write):
		return nil
	}
	begin := time.Now()
	stale := p.stale.Swap(false)
	if !write && !stale && p.mount != nil && p.mount.Current != nil && p.mount.Current() {
		p.looked(begin)
		return nil
	}
	m, err := p.open(write)
	if write {
		var served *RedirectError
		p.elsewhere.Store(errors.As(err, &served))
	}
	p.fresh = fresh
	if !write && (m == nil || !m.Writable) {
		p.looked(begin)
	}
	switch {
	case err != nil && !write && p.mount != nil:
		return nil // the writer leaves no quiet moment: the last one will do
	case err != nil:
		return unavailable(err)
	}
	return p.replace(m)
}

// unavailable keeps a file of ours that is missing or not to be read, one of keys
// for example, from looking as if it were the application's: which would take ENOENT
// for a checkpoint that there is none of, and is told nothing.
func unavailable(err error) error {
	var other *OtherUserError
	if errors.As(err, &other) {
		return err
	}
	switch Errno(err) {
	case syscall.ENOENT, syscall.EACCES:
		return fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	return err
}

// An OtherUserError says that the run is another user's, who alone has its files:
// this process, or one that it was started by, has changed its user. It is
// syscall.EACCES.
type OtherUserError struct {
	Mount     string
	Self, Run uint32 // users, by number
}

func (e *OtherUserError) Error() string {
	return fmt.Sprintf("process %d runs as user %d, and files under %s are for user %d alone, whose run this is; start the program as that user: %v",
		os.Getpid(), e.Self, e.Mount, e.Run, syscall.EACCES)
}

// Unwrap returns syscall.EACCES.
func (e *OtherUserError) Unwrap() error { return syscall.EACCES }

// look looks again before an open file is read, if what is read here is written
// by way of another process.
func (p *Process) look() {
	if !p.elsewhere.Load() {
		return
	}
	if _, err := p.acquire(false); err == nil {
		p.mu.RUnlock()
	}
}

// lookAgain looks again before the attributes of an open file are told, unless
// only this process writes: `tail -f` waits for a size to change.
func (p *Process) lookAgain() {
	p.await()
	if p.writes() {
		return
	}
	if _, err := p.acquire(false); err == nil {
		p.mu.RUnlock()
	}
}

// looked notes that what is shown was found at begin, or since.
func (p *Process) looked(begin time.Time) {
	p.opened = time.Now()
	p.fresh = max(fresh, p.opened.Sub(begin)/2)
}

// replace makes m the mount in place of the one there is, if any. The caller
// holds p.mu for writing.
func (p *Process) replace(m *Mount) error {
	old := &leftMount{mount: p.mount}
	p.mount, p.opened = m, time.Now()
	p.tree.Store(m.Tree)
	p.moveFiles(m, old)
	defer p.locks.moved(p.logf)
	if old.mount == nil || old.files > 0 {
		return nil
	}
	return old.mount.Close()
}

// A leftMount is a mount for reading that was replaced, in which there are open files that the later ones do not have.
type leftMount struct {
	mount *Mount
	files int
}

// keeps says whether files that have lost their names are read on where they were. Whoever has them open
// keeps their place, and where nobody does, checksums tell.
func (p *Process) keeps(old *leftMount) bool {
	return p.Attentive && old.mount != nil && !old.mount.Writable && old.mount.FS.StatFS().DataCRC
}

// leave takes a file that was closed from the mount that it stayed in. The caller holds p.mu for writing.
func (f *openFile) leave() error {
	if f.left == nil {
		return nil
	}
	old := f.left
	f.left = nil
	if old.files--; old.files > 0 {
		return nil
	}
	return old.mount.Close()
}

// OpenForWriting opens the partition for writing now, and keeps it until the
// process ends: MPI_Init does so.
func (p *Process) OpenForWriting() error {
	if _, err := p.obtain(true); err != nil {
		return err
	}
	p.mu.RUnlock()
	p.keep.Store(true)
	return nil
}

// Fail makes every later call that needs the mount fail with err.
func (p *Process) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// Yield gives up the partition for another process, unless a file is open for
// writing or MPI_Init has opened it. Files that are read stay open, and are
// read from a mount for reading. It is called when the other process asks.
func (p *Process) Yield() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.keep.Load() && p.yield()
}

func (p *Process) yield() bool {
	if p.mount == nil || !p.mount.Writable || p.files.any((*openFile).needsWriter) {
		return false
	}
	err := p.mount.Close()
	p.mount = nil
	if err != nil {
		p.logf("giving up the partition: %v", err)
	}
	if p.files.count.Load() == 0 {
		return true
	}
	m, err := p.open(false)
	if err == nil {
		err = p.replace(m)
	}
	if err != nil { // the files move when the mount is next needed
		p.logf("reading on after giving up the partition: %v", err)
	}
	return true
}

// GiveUp gives up the partition before the process executes a program: whoever
// writes next, a child of that program, say, need not wonder whether this process,
// which lives on, still does. A process that has files open for writing, which end
// with it, goes on with them if the program cannot be executed, and then takes it back:
// until the program is there, nobody else of this host gets it.
func (p *Process) GiveUp() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished || p.mount == nil || !p.mount.Writable {
		return nil
	}
	err := p.SyncMappings()
	if !p.yield() {
		err = errors.Join(err, p.mount.FS.Vacate())
	}
	return err
}

// patience is how long the end of a process waits for its target in silence.
const patience = 2 * time.Second

// Finish closes every file and the partition. Later calls fail with EIO.
func (p *Process) Finish() error {
	defer time.AfterFunc(patience, func() {
		p.logf("process %d is ending, and waits for its target to take what there is left", os.Getpid())
	}).Stop()
	p.Drain()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return nil
	}
	p.finished = true
	if listen := p.server.identity().listen.Load(); listen != nil { // those who come now look for themselves
		_ = ownfd.CloseFile(listen)
	}
	errs := []error{p.SyncMappings()}
	p.files.each(func(f *openFile) {
		if p.mount != nil || f.left != nil {
			errs = append(errs, f.current().Close(), f.leave())
		}
	})
	if p.mount != nil {
		p.closing.Store(true)
		errs = append(errs, p.mount.Close())
		p.mount = nil
	}
	return errors.Join(errs...)
}
