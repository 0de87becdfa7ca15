package posixshim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"nvmecr/internal/ownfd"
	"nvmecr/internal/vfs"
)

// defaultMaxAge is how old what a reader sees may be. A process that reads while
// another one writes looks again after this time: less than it takes a shell
// to run a command and look at what that left. Where looking takes long, for a
// command as well as for us, it is after half the time that it took last.
const defaultMaxAge = 2 * time.Millisecond

// acquire returns the file system, opening the mount, looking again, or opening it for
// writing, as needed. The caller calls p.mu.RUnlock when it is done with it.
func (m *mountPoint) acquire(write bool) (vfs.FS, error) {
	if p := m.p; p.Used != nil {
		p.used.Do(p.Used)
	}
	return m.obtain(write)
}

// obtain is acquire without Process.Used.
func (m *mountPoint) obtain(write bool) (vfs.FS, error) {
	mu := &m.p.mu
	mu.RLock()
	if m.usable(write) {
		return m.mount.FS, nil
	}
	mu.RUnlock()
	if m.p.Await != nil {
		m.p.Await() // what is read from media has to be there
	}
	if err := m.prepare(write); err != nil {
		return nil, err
	}
	mu.RLock()
	if m.mount == nil || write && !m.mount.Writable { // given up, or finished, in between
		mu.RUnlock()
		return nil, syscall.EBUSY
	}
	return m.mount.FS, nil
}

// await returns when the data that was written past the shim, in any process, is in the files. In a mount that stays usable while other
// processes write to it, await is called before a file is opened, and before attributes are returned.
func (m *mountPoint) await() {
	if m.p.Revalidate {
		m.p.FinishRelayed() // as for the other calls of this library (Drain)
	}
	if m.p.Await != nil && m.tree.Load() {
		m.p.Await()
	}
}

// mounted and writable are for holders of Process.mu, as usable is.
func (m *mountPoint) mounted() bool { return m.mount != nil }

func (m *mountPoint) writable() bool { return m.mount != nil && m.mount.Writable }

// usable says whether the mount serves.
func (m *mountPoint) usable(write bool) bool {
	return m.writable() || m.mounted() && !write &&
		!m.stale.Load() && !m.redirected.Load() && !m.p.Revalidate && time.Since(m.opened) < m.maxAge
}

// prepare makes the mount usable. Open files move over to a new one.
func (m *mountPoint) prepare(write bool) error {
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	switch {
	case m.p.failed != nil:
		return m.p.failed
	case m.p.finished:
		return errFinished
	case m.usable(write):
		return nil
	}
	begin := time.Now()
	stale := m.stale.Swap(false)
	if !write && !stale && m.mount != nil && m.mount.Current != nil && m.mount.Current() {
		m.revalidated(begin)
		return nil
	}
	next, err := m.open(write)
	if write {
		var served *RedirectError
		m.redirected.Store(errors.As(err, &served))
	}
	m.maxAge = defaultMaxAge
	if !write && (next == nil || !next.Writable) {
		m.revalidated(begin)
	}
	switch {
	case err != nil && !write && m.mount != nil:
		return nil // the writer leaves no quiet moment: the last one will do
	case err != nil:
		return unavailable(err)
	}
	return m.replace(next)
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
	case syscall.ENOENT, syscall.EACCES,
		// A target that cannot be reached: no call on a file fails with these.
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ENOTCONN,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN:
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

// revalidate looks again before an open file is read, if what is read here is written
// by way of another process.
func (m *mountPoint) revalidate() {
	if !m.redirected.Load() {
		return
	}
	if _, err := m.acquire(false); err == nil {
		m.p.mu.RUnlock()
	}
}

// revalidateAttributes looks again before the attributes of an open file are told, unless
// only this process writes: `tail -f` waits for a size to change.
func (m *mountPoint) revalidateAttributes() {
	m.await()
	if m.writes() {
		return
	}
	if _, err := m.acquire(false); err == nil {
		m.p.mu.RUnlock()
	}
}

// writes says whether this process is the writer.
func (m *mountPoint) writes() bool {
	m.p.mu.RLock()
	defer m.p.mu.RUnlock()
	return m.writable()
}

// revalidated notes that what is shown was found at begin, or since.
func (m *mountPoint) revalidated(begin time.Time) {
	m.opened = time.Now()
	m.maxAge = max(defaultMaxAge, m.opened.Sub(begin)/2)
}

// replace makes next the mount in place of the one there is, if any. The caller
// holds p.mu for writing.
func (m *mountPoint) replace(next *vfs.Mount) error {
	old := &retiredMount{mount: m.mount}
	m.mount, m.opened = next, time.Now()
	m.tree.Store(next.Tree)
	m.moveFiles(old)
	defer m.p.locks.reacquire(m.p.logf)
	if old.mount == nil || old.files > 0 {
		return nil
	}
	return old.mount.Close()
}

// A retiredMount is a mount for reading that was replaced, in which there are open files that the later ones do not have.
type retiredMount struct {
	mount *vfs.Mount
	files int
}

// keeps says whether files that have lost their names are still read from the old mount. A process that has such a file open
// for writing keeps its blocks; otherwise checksums detect blocks that were reused.
func (p *Process) keeps(old *retiredMount) bool {
	return p.Revalidate && old.mount != nil && !old.mount.Writable && old.mount.FS.DataCRC()
}

// leaveRetired takes a file that was closed from the mount that it stayed in. The caller holds p.mu for writing.
func (f *openFile) leaveRetired() error {
	if f.retired == nil {
		return nil
	}
	old := f.retired
	f.retired = nil
	if old.files--; old.files > 0 {
		return nil
	}
	return old.mount.Close()
}

// OpenForWriting opens the partition for writing now, and keeps it until the
// process ends: MPI_Init does so.
func (p *Process) OpenForWriting() error {
	if _, err := p.mounts[0].obtain(true); err != nil {
		return err
	}
	p.mu.RUnlock()
	p.keep.Store(true)
	return nil
}

// Fail makes every later call that needs a mount fail with err.
func (p *Process) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// Yield gives up the partition for another process, unless a file is open for
// writing or MPI_Init has opened it. Files that are read stay open, and are
// read from a mount for reading. It is called when the other process asks.
func (p *Process) Yield() (yields bool) {
	p.Guard("giving up the partition", func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		yields = !p.keep.Load() && p.mounts[0].yield()
	})
	return yields
}

// has says whether the file is of this mount.
func (m *mountPoint) has(f *openFile) bool { return f.at == m }

func (m *mountPoint) yield() bool {
	p := m.p
	if !m.writable() || p.files.any(func(f *openFile) bool { return m.has(f) && f.needsWriter() }) {
		return false
	}
	err := m.mount.Close()
	m.mount = nil
	if err != nil {
		p.logf("giving up the partition: %v", err)
	}
	if !p.files.any(m.has) {
		return true
	}
	next, err := m.open(false)
	if err == nil {
		err = m.replace(next)
	}
	if err != nil { // the files move when the mount is next needed
		p.logf("reading on after giving up the partition: %v", err)
	}
	return true
}

// GiveUp gives up what this process writes before it executes a program: whoever
// writes next, a child of that program, say, need not wonder whether this process,
// which lives on, still does. A process that has files open for writing, which end
// with it, goes on with them if the program cannot be executed, and then takes it back:
// until the program has started, no other process of this host gets the partition.
func (p *Process) GiveUp() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished || !slices.ContainsFunc(p.mounts, (*mountPoint).writable) {
		return nil
	}
	err := p.SyncMappings()
	for _, m := range p.mounts {
		if m.writable() && !m.yield() {
			err = errors.Join(err, m.mount.FS.Vacate())
		}
	}
	return err
}

// patience is how long the end of a process waits for its target in silence.
const patience = 2 * time.Second

// Finish closes every file and every mount. Later calls fail with EIO.
func (p *Process) Finish() error {
	defer time.AfterFunc(patience, func() {
		p.logf("process %d ends, and waits until the target has taken the data that is still buffered", os.Getpid())
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
		if f.at.mounted() || f.retired != nil {
			errs = append(errs, f.current().Close(), f.leaveRetired())
		}
	})
	p.closing.Store(slices.ContainsFunc(p.mounts, (*mountPoint).mounted))
	return errors.Join(append(errs, p.unmount())...)
}

// unmount ends the use of all mounts. The caller holds p.mu.
func (p *Process) unmount() error {
	var errs []error
	for _, m := range p.mounts {
		if m.mounted() {
			errs = append(errs, m.mount.Close())
			m.mount = nil
		}
	}
	return errors.Join(errs...)
}
