package posixshim

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A PathAt is a path and where it begins: an open directory, or the number of a mount. With
// Itself in Dir it is the open file, and Path says nothing.
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
		return f.at, f.dir, f.path, nil
	}
	if !f.isDir {
		return nil, 0, "", syscall.ENOTDIR
	}
	return f.at, f.current().Ino(), at.Path, nil
}

// statusFlags are the flags of open(2) that F_SETFL may change.
const statusFlags = syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_DIRECT | unix.O_NOATIME | syscall.O_ASYNC

// onceFlags are the flags of open(2) that F_GETFL does not return.
const onceFlags = syscall.O_CREAT | syscall.O_EXCL | syscall.O_TRUNC | syscall.O_NOCTTY | syscall.O_CLOEXEC

// Open opens a file and returns its handle. mode is masked already.
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
	f := &openFile{at: m, isDir: file.IsDir(), dir: dir, path: path, first: file}
	f.flags.Store(int32(flags&^onceFlags | unix.O_LARGEFILE))
	f.file.Store(&f.first)
	h, err := p.files.add(f)
	if err != nil {
		return 0, errors.Join(err, file.Close())
	}
	return int(h), nil
}

// moveFiles opens the files of the mount that was in the one there is now. One that is no longer
// what it was stays in old, or fails with ESTALE from then on. The caller holds p.mu.
func (m *mountPoint) moveFiles(old *retiredMount) {
	p, fs := m.p, m.mount.FS
	keeps := p.keeps(old)
	p.files.each(func(f *openFile) {
		if f.at != m || f.retired != nil {
			return
		}
		before := f.current()
		flags := int(f.flags.Load()) & (syscall.O_ACCMODE | syscall.O_APPEND | unix.O_PATH)
		after, err := fs.Open(f.dir, f.path, flags, 0)
		if err == nil && after.Ino() != before.Ino() && !sameDirectory(fs, before, after) {
			err = errors.Join(fmt.Errorf("%s has been replaced: %w", f.path, syscall.ESTALE), after.Close())
		}
		if err != nil && (m.mount.Tree || p.Revalidate && flags == syscall.O_RDONLY && !before.IsDir()) { // it may have another name
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
		// It was only read, or its mount is closed: there is nothing to lose.
		_ = before.Close()
	})
}

// sameDirectory reports whether both are one directory by two numbers: a directory of ranks has
// another one from when it is in the file system of this process, too.
func sameDirectory(fs vfs.FS, before, after vfs.File) bool {
	if !before.IsDir() || !after.IsDir() {
		return false
	}
	a, err := fs.Stat(before.Ino(), ".", true)
	return err == nil && a.Ino == after.Ino()
}

// Retain notes one more descriptor of the open file.
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

// Release notes one descriptor less; the last one closes the file.
func (p *Process) Release(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	p.locks.closed(f, syscall.Getpid())
	return errors.Join(p.release(f), f.unwritten())
}

// releaseHandle and release are Release but for the record locks of this
// process, which closes no descriptor.
func (p *Process) releaseHandle(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	return p.release(f)
}

func (p *Process) release(f *openFile) error {
	if last, err := p.drop(f); last {
		return err
	}
	return p.closeShared(f)
}

// drop takes away one reference. The last one closes the file.
func (p *Process) drop(f *openFile) (last bool, err error) {
	if f.refs.Add(-1) > 0 {
		return false, nil
	}
	if p.Revalidate { // it may have stayed in a mount of its own
		p.mu.Lock()
		defer p.mu.Unlock()
	} else {
		p.mu.RLock() // moveFiles and Finish must see it open or not at all
		defer p.mu.RUnlock()
	}
	p.locks.gone(f)
	if !p.finished {
		err = f.current().Close()
		if f.retired != nil {
			err = errors.Join(err, f.leaveRetired())
		}
	}
	if err != nil && f.watch.Load() != nil {
		p.server.failed.Store(f.handle, err)
	}
	p.files.remove(f) // only now: until then whoever asks waits for the outcome, see unshare
	if f.predecessor != nil {
		go p.releasePredecessor(f.predecessor) // p.mu is held
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

// described returns the open file, unless it was opened with O_PATH.
func (p *Process) described(h Handle) (*openFile, error) {
	f, err := p.files.get(h)
	if err == nil && f.flags.Load()&unix.O_PATH != 0 {
		return nil, syscall.EBADF
	}
	return f, err
}

// Setfl is F_SETFL.
func (p *Process) Setfl(h Handle, flags int) error {
	f, err := p.described(h)
	if err != nil {
		return err
	}
	if flags&unix.O_NOATIME&^int(f.flags.Load()) != 0 {
		if err := p.mayHide(f); err != nil {
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

// mayHide says whether this process may set O_NOATIME: EPERM unless the file is
// its own.
func (p *Process) mayHide(f *openFile) error {
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
	f, err := p.described(h)
	if err != nil {
		return err
	}
	err = errors.Join(f.unwritten(), f.current().Sync())
	if Errno(err) == syscall.EROFS {
		return nil // what is only read is durable as far as we know
	}
	return err
}

// Ftruncate sets the size. EINVAL if the file is not open for writing.
func (p *Process) Ftruncate(h Handle, size, limit int64) error {
	f, err := p.described(h)
	if err != nil {
		return err
	}
	if size < 0 || f.flags.Load()&syscall.O_ACCMODE == syscall.O_RDONLY {
		return syscall.EINVAL
	}
	if err := mayGrow(f.current().Stat, size, limit); err != nil {
		return err
	}
	return p.besideMapping(f, func() error { return f.current().Truncate(size) })
}

// staleFile stands for a file that is gone from the mount.
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
