package posixshim

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A PathAt is a path and where it begins: at an open directory, or at the root of the mount of that number. If Dir has the bit
// Itself it is the open file, and Path is ignored.
type PathAt struct {
	Dir  Handle
	Path string
}

// Itself is NV_ITSELF of shim/wire.h.
const Itself Handle = 1 << 62

// resolve returns the mount of a path, the inode that its path is relative to, and the path.
func (p *Process) resolve(at PathAt) (*mountPoint, microfs.Ino, string, error) {
	if at.Path == "" {
		return nil, 0, "", syscall.ENOENT
	}
	if at.Dir >= 0 && at.Dir < Handle(len(p.mounts)) {
		return p.mounts[at.Dir], microfs.RootIno, at.Path, nil
	}
	f, err := p.files.get(at.Dir &^ Itself)
	if err != nil {
		return nil, 0, "", err
	}
	if at.Dir&Itself != 0 {
		return f.mountPoint, f.dir, f.path, nil
	}
	if !f.isDir {
		return nil, 0, "", syscall.ENOTDIR
	}
	return f.mountPoint, f.current().Ino(), at.Path, nil
}

// statusFlags are the flags of open(2) that F_SETFL may change.
const statusFlags = syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_DIRECT | unix.O_NOATIME | syscall.O_ASYNC

// openOnlyFlags are the flags of open(2) that F_GETFL does not return.
const openOnlyFlags = syscall.O_CREAT | syscall.O_EXCL | syscall.O_TRUNC | syscall.O_NOCTTY | syscall.O_CLOEXEC

// Open opens a file and returns its handle. The umask has been applied to mode.
func (p *Process) Open(at PathAt, flags int, mode uint32) (int, error) {
	if flags&unix.O_TMPFILE == unix.O_TMPFILE {
		if flags&syscall.O_ACCMODE == syscall.O_RDONLY {
			return 0, syscall.EINVAL
		}
		return 0, syscall.EOPNOTSUPP
	}
	changes := flags&(syscall.O_ACCMODE|syscall.O_CREAT|syscall.O_TRUNC) != 0 && flags&unix.O_PATH == 0
	m, dir, path, err := p.resolve(at)
	if err != nil {
		return 0, err
	}
	m.await()
	fs, err := m.acquire(changes)
	if err != nil {
		return 0, err
	}
	defer p.mu.RUnlock()
	file, err := fs.Open(dir, path, flags, mode)
	if err != nil {
		return 0, err
	}
	f := &openFile{mountPoint: m, isDir: file.IsDir(), dir: dir, path: path, first: file}
	f.flags.Store(int32(flags&^openOnlyFlags | unix.O_LARGEFILE))
	f.file.Store(&f.first)
	h, err := p.files.add(f)
	if err != nil {
		return 0, errors.Join(err, file.Close())
	}
	return int(h), nil
}

// moveFiles opens again, in the current mount, the files that are open in old. A file that the current mount does not have stays in
// old if keepsRetired says so, or fails with ESTALE from then on. The caller holds p.mu.
func (m *mountPoint) moveFiles(old *retiredMount) {
	p, fs := m.p, m.mount.FS
	keeps := p.keepsRetired(old)
	p.files.each(func(f *openFile) {
		if f.mountPoint != m || f.retired != nil {
			return
		}
		before := f.current()
		flags := int(f.flags.Load()) & (syscall.O_ACCMODE | syscall.O_APPEND | unix.O_PATH)
		after, err := fs.Open(f.dir, f.path, flags, 0)
		if err == nil && after.Ino() != before.Ino() && !sameDirectory(fs, before, after) {
			err = errors.Join(fmt.Errorf("%s has been replaced: %w", f.path, syscall.ESTALE), after.Close())
		}
		if err != nil && (m.mount.Tree || p.Revalidate && flags == syscall.O_RDONLY && !before.IsDir()) { // it may have been renamed
			if renamed, e := fs.OpenIno(before.Ino(), flags); e == nil {
				after, err = renamed, nil
			}
		}
		if err != nil && keeps && !before.IsDir() {
			f.retired = old
			old.files++
			return
		}
		if err != nil {
			p.logf("%s cannot be used any more: %v", f.path, err)
			after = staleFile{before}
		}
		f.file.Store(&after)
		_ = before.Close() // the file was open for reading, or its mount is closed: no data is lost
	})
}

// sameDirectory reports whether before and after, which have different inode numbers, are the same directory. The number of a
// directory that several ranks have changes when the directory is created in the file system of this process.
func sameDirectory(fs vfs.FS, before, after vfs.File) bool {
	if !before.IsDir() || !after.IsDir() {
		return false
	}
	a, err := fs.Stat(before.Ino(), ".", true)
	return err == nil && a.Ino == after.Ino()
}

// Retain adds a reference to the open file.
func (p *Process) Retain(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	for {
		n := f.refs.Load()
		if n == 0 {
			return syscall.EBADF
		}
		if f.refs.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// Release drops the reference of a descriptor of this process. The last one closes the file.
func (p *Process) Release(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	p.locks.descriptorClosed(f, syscall.Getpid())
	return errors.Join(p.release(f), f.takeRelayErr())
}

// releaseHandle and release drop a reference that is not that of a descriptor of this process: the process keeps its record locks.
func (p *Process) releaseHandle(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	return p.release(f)
}

func (p *Process) release(f *openFile) error {
	if last, err := p.unref(f); last {
		return err
	}
	return p.closeShared(f)
}

// unref drops a reference. The last one closes the file.
func (p *Process) unref(f *openFile) (last bool, err error) {
	if f.refs.Add(-1) > 0 {
		return false, nil
	}
	if p.Revalidate { // f.retired may have to be closed
		p.mu.Lock()
		defer p.mu.Unlock()
	} else {
		p.mu.RLock() // moveFiles and Finish must see it open or not at all
		defer p.mu.RUnlock()
	}
	p.locks.fileClosed(f)
	if !p.finished {
		err = f.current().Close()
		if f.retired != nil {
			err = errors.Join(err, f.leaveRetired())
		}
	}
	if err != nil && f.watch.Load() != nil {
		p.server.closeErrors.Store(f.handle, err)
	}
	p.files.remove(f) // after closeErrors is set: releaseForPeer looks there if the file is gone
	if f.predecessor != nil {
		go p.releasePredecessor(f.predecessor) // on a goroutine, because it needs p.mu
	}
	return true, err
}

// Getfl is F_GETFL.
func (p *Process) Getfl(h Handle) (int, error) {
	f, err := p.files.get(h)
	if err != nil {
		return 0, err
	}
	return int(f.flags.Load()), nil
}

// getForIO returns the open file of a handle; EBADF if it was opened with O_PATH.
func (p *Process) getForIO(h Handle) (*openFile, error) {
	f, err := p.files.get(h)
	if err == nil && f.flags.Load()&unix.O_PATH != 0 {
		return nil, syscall.EBADF
	}
	return f, err
}

// Setfl is F_SETFL.
func (p *Process) Setfl(h Handle, flags int) error {
	f, err := p.getForIO(h)
	if err != nil {
		return err
	}
	if flags&unix.O_NOATIME&^int(f.flags.Load()) != 0 {
		if err := p.mayOmitAtime(f); err != nil {
			return err
		}
	}
	for {
		now := f.flags.Load()
		if f.flags.CompareAndSwap(now, now&^statusFlags|int32(flags)&statusFlags) {
			return nil
		}
	}
}

// mayOmitAtime checks whether this process may set O_NOATIME: EPERM unless it owns the file.
func (p *Process) mayOmitAtime(f *openFile) error {
	if p.Identify == nil {
		return nil
	}
	c, err := p.Identify()
	if err != nil || c.UID == 0 {
		return err
	}
	a, err := f.current().Stat()
	if err == nil && a.UID != c.UID {
		err = syscall.EPERM
	}
	return err
}

// Fsync makes the file durable.
func (p *Process) Fsync(h Handle) error {
	f, err := p.getForIO(h)
	if err != nil {
		return err
	}
	err = errors.Join(f.takeRelayErr(), f.current().Sync())
	if Errno(err) == syscall.EROFS {
		return nil // in a mount for reading there is nothing to write
	}
	return err
}

// Ftruncate sets the size, up to limit. EINVAL if the file is not open for writing.
func (p *Process) Ftruncate(h Handle, size, limit int64) error {
	f, err := p.getForIO(h)
	if err != nil {
		return err
	}
	if size < 0 || f.flags.Load()&syscall.O_ACCMODE == syscall.O_RDONLY {
		return syscall.EINVAL
	}
	if err := checkGrowth(f.current().Stat, size, limit); err != nil {
		return err
	}
	return p.changeMapped(f, func() error { return f.current().Truncate(size) })
}

// staleFile replaces a file that the mount does not have any more. Its calls fail with ESTALE.
type staleFile struct{ was vfs.File }

func (l staleFile) Ino() microfs.Ino                   { return l.was.Ino() }
func (l staleFile) IsDir() bool                        { return l.was.IsDir() }
func (staleFile) Size() (int64, error)                 { return 0, syscall.ESTALE }
func (staleFile) ReadAt([][]byte, int64) (int, error)  { return 0, syscall.ESTALE }
func (staleFile) WriteAt([][]byte, int64) (int, error) { return 0, syscall.ESTALE }
func (staleFile) AppendBelow([][]byte, int64) (int, int64, error) {
	return 0, 0, syscall.ESTALE
}
func (staleFile) Truncate(int64) error                          { return syscall.ESTALE }
func (staleFile) Allocate(int64, int64, bool) error             { return syscall.ESTALE }
func (staleFile) Punch(int64, int64) error                      { return syscall.ESTALE }
func (staleFile) ZeroRange(int64, int64, bool) error            { return syscall.ESTALE }
func (staleFile) Advise(int64, int64, int) error                { return nil }
func (staleFile) Sync() error                                   { return syscall.ESTALE }
func (staleFile) Stat() (microfs.Attr, error)                   { return microfs.Attr{}, syscall.ESTALE }
func (staleFile) SetAttr(microfs.SetAttr) error                 { return syscall.ESTALE }
func (staleFile) ReadDir(string, int) ([]microfs.Dirent, error) { return nil, syscall.ESTALE }
func (staleFile) SeekData(int64) (int64, error)                 { return 0, syscall.ESTALE }
func (staleFile) SeekHole(int64) (int64, error)                 { return 0, syscall.ESTALE }
func (staleFile) Close() error                                  { return nil }
