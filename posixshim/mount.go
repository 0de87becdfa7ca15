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

// defaultMaxAge is how long a mount for reading is used before the process checks whether another process has changed the
// partition. It is less than a shell takes to run a command and look at the command's output. If opening the mount takes longer,
// the maximum age is half of that time.
const defaultMaxAge = 2 * time.Millisecond

// acquire returns the file system. It first opens the mount, or opens it again, for writing if write is set, where that is
// needed. The caller calls p.mu.RUnlock when it has used the file system.
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
		m.p.Await() // relayed data of other processes has to be in the files before they are read
	}
	if err := m.prepare(write); err != nil {
		return nil, err
	}
	mu.RLock()
	if m.mount == nil || write && !m.mount.Writable { // Yield or Finish has closed it in between
		mu.RUnlock()
		return nil, syscall.EBUSY
	}
	return m.mount.FS, nil
}

// await waits until relayed data (relay.go) of all processes of this host is in the files. It is called before a file is opened,
// and before attributes are returned, because a job's tree is not opened again when another process has written to it.
func (m *mountPoint) await() {
	if m.p.Revalidate {
		m.p.FinishRelayed() // calls of nvmecr serve itself do not call Drain
	}
	if m.p.Await != nil && m.tree.Load() {
		m.p.Await()
	}
}

// mounted, writable and usable are called with Process.mu held.
func (m *mountPoint) mounted() bool { return m.mount != nil }

func (m *mountPoint) writable() bool { return m.mount != nil && m.mount.Writable }

// usable says whether a call can use the mount as it is.
func (m *mountPoint) usable(write bool) bool {
	return m.writable() || m.mounted() && !write &&
		!m.stale.Load() && !m.redirected.Load() && !m.p.Revalidate && time.Since(m.opened) < m.maxAge
}

// prepare makes the mount usable: it opens it, opens it again, or finds that it is up to date.
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
		m.setFresh(begin)
		return nil
	}
	next, err := m.open(write)
	if write {
		var served *RedirectError
		m.redirected.Store(errors.As(err, &served))
	}
	m.maxAge = defaultMaxAge
	if !write && (next == nil || !next.Writable) {
		m.setFresh(begin)
	}
	switch {
	case err != nil && !write && m.mount != nil:
		return nil // another process keeps writing: use the mount as it was when it was last opened
	case err != nil:
		return unavailable(err)
	}
	return m.replace(next)
}

// unavailable returns the error of a call that needs a mount which cannot be opened. Some errors of opening it become EIO. ENOENT
// for a missing file of keys, for example, would tell the application that there is no checkpoint.
func unavailable(err error) error {
	var other *OtherUserError
	if errors.As(err, &other) {
		return err
	}
	switch Errno(err) {
	case syscall.ENOENT, syscall.EACCES,
		// The target cannot be reached. Calls on files do not fail with these.
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ENOTCONN,
		syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.ENETDOWN:
		return fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	return err
}

// An OtherUserError says that the run belongs to another user, and this process, or one that started it, has changed its user.
// Only the user of the run may use the files. It wraps syscall.EACCES.
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

// revalidate makes the mount up to date before an open file is read, if another process writes for this one.
func (m *mountPoint) revalidate() {
	if !m.redirected.Load() {
		return
	}
	if _, err := m.acquire(false); err == nil {
		m.p.mu.RUnlock()
	}
}

// revalidateAttributes makes the mount up to date before attributes of an open file are returned, unless this process is the
// writer: tail -f waits until the size changes.
func (m *mountPoint) revalidateAttributes() {
	m.await()
	if m.isWriter() {
		return
	}
	if _, err := m.acquire(false); err == nil {
		m.p.mu.RUnlock()
	}
}

// isWriter says whether this process has the mount open for writing.
func (m *mountPoint) isWriter() bool {
	m.p.mu.RLock()
	defer m.p.mu.RUnlock()
	return m.writable()
}

// setFresh records that the mount is up to date. begin is when the check has begun.
func (m *mountPoint) setFresh(begin time.Time) {
	m.opened = time.Now()
	m.maxAge = max(defaultMaxAge, m.opened.Sub(begin)/2)
}

// replace makes next the mount, and moves open files to it. The caller holds p.mu for writing.
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

// A retiredMount is a mount for reading that was replaced, and has open files that the later mounts do not have.
type retiredMount struct {
	mount *vfs.Mount
	files int // open files that are still in it
}

// keepsRetired says whether files that have lost their names are still read from the old mount. If another process has such a
// file open for writing, its blocks are not reused. Otherwise checksums detect reused blocks.
func (p *Process) keepsRetired(old *retiredMount) bool {
	return p.Revalidate && old.mount != nil && !old.mount.Writable && old.mount.FS.DataCRC()
}

// leaveRetired removes a file that was closed from its retired mount. The last file closes the mount. The caller holds p.mu for
// writing.
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

// OpenForWriting opens the partition for writing and keeps it until the process ends. It is called in MPI_Init.
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

// Yield gives the partition to another process, which has asked for it, unless a file is open for writing or MPI_Init has opened
// the partition. Files that are open for reading move to a mount for reading.
func (p *Process) Yield() (yields bool) {
	p.Guard("giving up the partition", func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		yields = !p.keep.Load() && p.mounts[0].yield()
	})
	return yields
}

// contains says whether the file is in this mount.
func (m *mountPoint) contains(f *openFile) bool { return f.mountPoint == m }

func (m *mountPoint) yield() bool {
	p := m.p
	if !m.writable() || p.files.any(func(f *openFile) bool { return m.contains(f) && f.needsWriter() }) {
		return false
	}
	err := m.mount.Close()
	m.mount = nil
	if err != nil {
		p.logf("giving up the partition: %v", err)
	}
	if !p.files.any(m.contains) {
		return true
	}
	next, err := m.open(false)
	if err == nil {
		err = m.replace(next)
	}
	if err != nil { // the next call opens the mount and moves the files
		p.logf("reading on after giving up the partition: %v", err)
	}
	return true
}

// GiveUp gives up the mounts that are open for writing, before this process executes a program. The process goes on to exist after
// that, and the next writer, such as a child of the program, could not tell that it writes no more. If files are open for
// writing, which end with this program, the partition is only vacated. If the program cannot be executed the process goes on with
// the files, and takes the partition back. Until the program has started, no other process of this host gets the partition.
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

// quietTime is how long the end of a process waits for its target before it prints a message.
const quietTime = 2 * time.Second

// Finish closes every file, every mount, and the connections of other processes. Later calls fail with EIO.
func (p *Process) Finish() error {
	err := p.finish()
	p.server.close()
	return err
}

func (p *Process) finish() error {
	defer time.AfterFunc(quietTime, func() {
		p.logf("process %d ends, and waits until the target has taken the data that is still buffered", os.Getpid())
	}).Stop()
	p.Drain()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return nil
	}
	p.finished = true
	if listen := p.server.identity().listen.Load(); listen != nil { // other processes then open the partition themselves
		_ = ownfd.CloseFile(listen)
	}
	errs := []error{p.SyncMappings()}
	p.files.each(func(f *openFile) {
		if f.mountPoint.mounted() || f.retired != nil {
			errs = append(errs, f.current().Close(), f.leaveRetired())
		}
	})
	p.closing.Store(slices.ContainsFunc(p.mounts, (*mountPoint).mounted))
	return errors.Join(append(errs, p.unmount())...)
}

// unmount closes all mounts. The caller holds p.mu.
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
