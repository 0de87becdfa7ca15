package posixshim

import (
	"errors"
	"path/filepath"
	"syscall"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// locate returns the file system of a path, opened for writing if write is set, the inode that the path is relative to, and the
// path. The caller calls p.mu.RUnlock if there is no error.
func (p *Process) locate(place PathAt, write bool) (vfs.FS, microfs.Ino, string, error) {
	m, dir, path, err := p.resolve(place)
	if err != nil {
		return nil, 0, "", err
	}
	fs, err := m.acquire(write)
	return fs, dir, path, err
}

// locateBoth is locate for a call that changes two paths; EXDEV if they are on two mounts.
func (p *Process) locateBoth(from, to PathAt) (fs vfs.FS, odir microfs.Ino, opath string, ndir microfs.Ino, npath string, err error) {
	m, odir, opath, err := p.resolve(from)
	if err != nil {
		return nil, 0, "", 0, "", err
	}
	other, ndir, npath, err := p.resolve(to)
	if err == nil && m != other {
		err = syscall.EXDEV
	}
	if err == nil {
		fs, err = m.acquire(true)
	}
	return fs, odir, opath, ndir, npath, err
}

// Truncate sets the size of a file.
func (p *Process) Truncate(place PathAt, size, limit int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	fs, dir, path, err := p.locate(place, true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	if err := checkGrowth(func() (microfs.Attr, error) { return fs.Stat(dir, path, true) }, size, limit); err != nil {
		return err
	}
	return fs.Truncate(dir, path, size)
}

// Mkdir makes a directory. The umask has been applied to mode.
func (p *Process) Mkdir(place PathAt, mode uint32) error {
	fs, dir, path, err := p.locate(place, true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.Mkdir(dir, path, mode)
}

// Rmdir removes a directory.
func (p *Process) Rmdir(place PathAt) error {
	fs, dir, path, err := p.locate(place, true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.Rmdir(dir, path)
}

// Unlink removes a name.
func (p *Process) Unlink(place PathAt) error {
	fs, dir, path, err := p.locate(place, true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.Unlink(dir, path)
}

// Remove is remove(3).
func (p *Process) Remove(place PathAt) error {
	err := p.Unlink(place)
	if Errno(err) == syscall.EISDIR {
		err = p.Rmdir(place)
	}
	return err
}

// Mknod makes an empty file. Devices, pipes and sockets are not supported: EPERM.
func (p *Process) Mknod(place PathAt, mode uint32) error {
	if kind := mode & syscall.S_IFMT; kind != syscall.S_IFREG && kind != 0 {
		return syscall.EPERM
	}
	h, err := p.Open(place, syscall.O_CREAT|syscall.O_EXCL|syscall.O_WRONLY, mode&0o7777)
	if err != nil {
		return err
	}
	return p.Release(Handle(h))
}

// Rename is renameat2(2).
func (p *Process) Rename(from, to PathAt, flags uint32) error {
	fs, odir, opath, ndir, npath, err := p.locateBoth(from, to)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.Rename(odir, opath, ndir, npath, uint(flags))
}

// Link makes a hard link. If follow is not 0 and from is a symbolic link, the link is to the file that it leads to.
func (p *Process) Link(from, to PathAt, follow int) error {
	fs, odir, opath, ndir, npath, err := p.locateBoth(from, to)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.Link(odir, opath, ndir, npath, follow != 0)
}

// Symlink makes a symbolic link.
func (p *Process) Symlink(target string, place PathAt) error {
	fs, dir, path, err := p.locate(place, true)
	if err != nil {
		return err
	}
	defer p.mu.RUnlock()
	return fs.Symlink(target, dir, path)
}

// Readlink copies the target of a symbolic link, cut to the length of buf. If the path is empty, place.Dir is a symbolic link
// that was opened with O_PATH.
func (p *Process) Readlink(place PathAt, buf []byte) (int, error) {
	if len(buf) == 0 {
		return 0, syscall.EINVAL
	}
	opened := place.Path == "" && place.Dir != 0
	if opened {
		place = PathAt{Dir: place.Dir | Itself, Path: "."}
	}
	fs, dir, path, err := p.locate(place, false)
	if err != nil {
		return 0, err
	}
	defer p.mu.RUnlock()
	target, err := fs.Readlink(dir, path)
	if opened && Errno(err) == syscall.EINVAL {
		return 0, syscall.ENOENT
	}
	if err != nil {
		return 0, err
	}
	if n := min(len(buf), len(target)); !canWrite(buf[:n]) {
		return 0, syscall.EFAULT
	}
	return copy(buf, target), nil
}

// Realpath copies the path of a file, beginning with that of its mount, without symbolic links, "." and "..".
func (p *Process) Realpath(place PathAt, buf []byte) (int, error) {
	m, dir, path, err := p.resolve(place)
	if err != nil {
		return 0, err
	}
	fs, err := m.acquire(false)
	if err != nil {
		return 0, err
	}
	defer p.mu.RUnlock()
	real, err := fs.RealPath(dir, path)
	return copyPath(buf, m.absolute(real), err)
}

// Fpath copies the path of an open directory, beginning with that of its mount.
func (p *Process) Fpath(h Handle, buf []byte) (int, error) {
	f, err := p.files.get(h)
	if err != nil {
		return 0, err
	}
	fs, err := f.mountPoint.acquire(false)
	if err != nil {
		return 0, err
	}
	defer p.mu.RUnlock()
	path, err := fs.PathOf(f.current().Ino())
	return copyPath(buf, f.mountPoint.absolute(path), err)
}

// Name copies the path of an open file, beginning with that of its mount, as /proc/self/fd shows it: with " (deleted)" if the
// file has no name any more. The path of a file that has been renamed since it was opened is not known: ENOENT.
func (p *Process) Name(h Handle, buf []byte) (int, error) {
	f, err := p.files.get(h)
	if err != nil {
		return 0, err
	}
	if f.isDir {
		return p.Fpath(h, buf)
	}
	fs, err := f.mountPoint.acquire(false)
	if err != nil {
		return 0, err
	}
	defer p.mu.RUnlock()
	attr, err := f.current().Stat()
	if err != nil {
		return 0, err
	}
	parent, base := filepath.Split(f.path)
	if attr.Nlink == 0 {
		dir, err := fs.PathOf(f.dir)
		return copyPath(buf, f.mountPoint.absolute(filepath.Join("/", dir, f.path))+" (deleted)", err)
	}
	// If the last component is the file itself, only the directories before it have to be resolved.
	if now, err := fs.Stat(f.dir, f.path, false); err == nil && now.Ino == attr.Ino {
		real, err := fs.RealPath(f.dir, parent)
		return copyPath(buf, f.mountPoint.absolute(filepath.Join(real, base)), err)
	}
	real, err := fs.RealPath(f.dir, f.path)
	if err != nil {
		return 0, err
	}
	if now, err := fs.Stat(microfs.RootIno, real, false); err != nil || now.Ino != attr.Ino {
		return 0, syscall.ENOENT
	}
	return copyPath(buf, f.mountPoint.absolute(real), nil)
}

func copyPath(buf []byte, path string, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	if len(path) > len(buf) {
		return 0, syscall.ENAMETOOLONG
	}
	return copy(buf, path), nil
}

// An exchanger is a file system whose files other processes change. Publish makes what this process has written visible to them,
// Refresh makes visible here what they have published.
type exchanger interface {
	Publish() error
	Refresh() error
}

// Barrier is called before MPI_Barrier, with entering other than 0, and behind it.
func (p *Process) Barrier(entering int) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var errs []error
	for _, m := range p.mounts {
		fs, ok := m.mount.FS.(exchanger)
		switch {
		case !ok || !m.writable():
		case entering != 0:
			errs = append(errs, fs.Publish())
		default:
			errs = append(errs, fs.Refresh())
		}
	}
	return errors.Join(errs...)
}

// Syncfs makes all acknowledged changes durable, in all mounts.
func (p *Process) Syncfs() error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var errs []error
	for _, m := range p.mounts {
		if m.writable() {
			errs = append(errs, m.mount.FS.Sync())
		}
	}
	return errors.Join(errs...)
}
