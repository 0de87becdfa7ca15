package microfs

import (
	"syscall"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Stat returns the attributes of a path.
func (fs *FS) Stat(dir Ino, path string, follow bool) (Attr, error) {
	if err := fs.enter(); err != nil {
		return Attr{}, err
	}
	defer fs.leave()
	in, err := fs.existing(dir, path, follow)
	if err != nil {
		return Attr{}, err
	}
	return in.attr(fs.g), nil
}

// Access checks permission bits (R 4, W 2, X 1), as access(2) does. Errors: EACCES, EROFS.
func (fs *FS) Access(dir Ino, path string, mode uint32, follow bool) error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	return fs.access(dir, path, mode, follow)
}

// AccessAs is Access for other credentials than those of Options.Cred.
func (fs *FS) AccessAs(who Cred, dir Ino, path string, mode uint32, follow bool) error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	before := fs.opts.Cred
	fs.opts.Cred = who
	defer func() { fs.opts.Cred = before }()
	return fs.access(dir, path, mode, follow)
}

func (fs *FS) access(dir Ino, path string, mode uint32, follow bool) error {
	in, err := fs.existing(dir, path, follow)
	switch {
	case err != nil:
		return err
	case !fs.may(in, mode&7):
		return syscall.EACCES
	case mode&permW != 0 && fs.opts.ReadOnly:
		return syscall.EROFS
	}
	return nil
}

// Truncate sets the size of a file. Errors: EISDIR, EACCES, EFBIG, EINVAL.
func (fs *FS) Truncate(dir Ino, path string, size int64) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	in, err := fs.existing(dir, path, true)
	switch {
	case err != nil:
		return err
	case in.isDir():
		return syscall.EISDIR
	case !fs.may(in, permW):
		return syscall.EACCES
	}
	if err := fs.truncate(in, size); err != nil {
		return err
	}
	if in.writers() == 0 && fs.losses.of(in.ino) == nil {
		if err := fs.closeWritten(in); err != nil {
			return err
		}
		return fs.sync()
	}
	return nil
}

// truncate shrinks or extends a file. If the new end lies inside a unit, the rest of the unit gets
// a new checksum, so it is read first.
func (fs *FS) truncate(in *inode, size int64) error {
	switch {
	case size < 0:
		return syscall.EINVAL
	case uint64(size) > fs.g.maxFileSize():
		return syscall.EFBIG
	case !in.isRegular():
		return syscall.EINVAL
	case fs.opts.ReadOnly:
		return syscall.EROFS
	}
	if err := fs.dropPrivileges(in); err != nil {
		return err
	}
	g := fs.g
	r := oplog.Record{Type: oplog.Truncate, Ino: uint64(in.ino), Time: now(), Size: uint64(size)}
	h := Hugeblock(nvmf.Bytes(size) / g.hugeblock)
	if x := in.extents.lookup(h); x != nil && size < in.size && g.sums {
		left := nvmf.Bytes(size) - nvmf.Bytes(x.file)*g.hugeblock
		if left < x.covered && left%g.unit != 0 {
			start := left.AlignDown(g.unit)
			buf := make([]byte, min(g.unit, x.covered-start))
			if err := fs.readExtent(in, x, start, buf); err != nil {
				return err
			}
			r.HasCRC, r.CRC = true, checksum(buf[:left-start])
		}
	}
	fs.rec = r
	if err := fs.record(); err != nil {
		return err
	}
	in.dropTail()
	in.written = true
	if size == 0 {
		fs.losses.clear(in.ino)
	}
	return nil
}

// SetAttr changes attributes of a path. Only the owner of the file may do that; others get EPERM,
// with one exception: a user with write permission may set the times to the present. Without write
// permission that fails with EACCES. Only root may change the owner.
func (fs *FS) SetAttr(dir Ino, path string, follow bool, s SetAttr) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	in, err := fs.existing(dir, path, follow)
	if err != nil {
		return err
	}
	return fs.setAttr(in, s)
}

func (fs *FS) setAttr(in *inode, s SetAttr) error {
	c := &fs.opts.Cred
	if fs.opts.ReadOnly {
		return syscall.EROFS
	}
	if c.UID != 0 && c.UID != in.uid && s != (SetAttr{}) { // chown(-1, -1) changes nothing, and needs no permission
		if s.Mode != nil || s.UID != nil || s.GID != nil || !s.TimesNow {
			return syscall.EPERM
		}
		if !fs.may(in, permW) {
			return syscall.EACCES
		}
	}
	if c.UID != 0 && ((s.UID != nil && *s.UID != in.uid) || (s.GID != nil && *s.GID != in.gid && !c.inGroup(*s.GID))) {
		return syscall.EPERM
	}
	r := oplog.Record{Type: oplog.SetAttr, Ino: uint64(in.ino), Time: now()}
	switch {
	case s.Mode != nil:
		r.Mask, r.Mode = r.Mask|oplog.SetMode, *s.Mode&modePerm
		if c.UID != 0 && !c.inGroup(in.gid) {
			r.Mode &^= syscall.S_ISGID
		}
	case (s.UID != nil || s.GID != nil) && in.isRegular() && in.mode&modePerm != fs.unprivileged(in):
		r.Mask, r.Mode = r.Mask|oplog.SetMode, fs.unprivileged(in)
	}
	if s.UID != nil {
		r.Mask, r.UID = r.Mask|oplog.SetUID, *s.UID
	}
	if s.GID != nil {
		r.Mask, r.GID = r.Mask|oplog.SetGID, *s.GID
	}
	if s.Atime != nil {
		r.Mask, r.Atime = r.Mask|oplog.SetAtime, s.Atime.UnixNano()
	}
	if s.Mtime != nil {
		r.Mask, r.Mtime = r.Mask|oplog.SetMtime, s.Mtime.UnixNano()
	}
	fs.rec = r
	return fs.record()
}

// unprivileged returns a file's mode without the bits that let a program run with
// other credentials. S_ISGID without group execute permission is no such bit; it is
// cleared only for callers who could not set it.
func (fs *FS) unprivileged(in *inode) uint32 {
	c := &fs.opts.Cred
	mode := in.mode &^ syscall.S_ISUID
	if mode&0o010 != 0 || c.UID != 0 && !c.inGroup(in.gid) {
		mode &^= syscall.S_ISGID
	}
	return mode & modePerm
}

// dropPrivileges clears the bits that unprivileged clears, if a user other than root changes the
// file.
func (fs *FS) dropPrivileges(in *inode) error {
	mode := fs.unprivileged(in)
	if fs.opts.Cred.UID == 0 || in.mode&modePerm == mode {
		return nil
	}
	fs.rec = oplog.Record{Type: oplog.SetAttr, Ino: uint64(in.ino), Time: now(), Mask: oplog.SetMode, Mode: mode}
	return fs.record()
}
