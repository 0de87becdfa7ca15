package microfs

import (
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/oplog"
)

// Every path operation takes the inode of the directory that a relative path
// starts from (RootIno for absolute ones) and a path in which leading slashes
// mean nothing. All of them may fail with what resolving a path fails with:
// ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, or an *EscapeError; changes
// also with EROFS, ENOSPC, EIO.

// Open opens a file or directory, with the flags of open(2); mode is already
// masked by umask. EEXIST, EISDIR, EACCES, ELOOP, EINVAL.
func (fs *FS) Open(dir Ino, path string, flags int, mode uint32) (*File, error) {
	if err := fs.enter(); err != nil {
		return nil, err
	}
	defer fs.leave()
	creat, excl := flags&unix.O_CREAT != 0, flags&unix.O_EXCL != 0
	if path == "" {
		return nil, syscall.ENOENT
	}
	p, err := fs.resolve(dir, path, flags&unix.O_NOFOLLOW == 0 && !(creat && excl))
	if err != nil {
		return nil, err
	}
	switch {
	case p.in == nil && !creat:
		return nil, syscall.ENOENT
	case p.in == nil:
		if err := fs.create(&p, modeRegular|mode&modePerm, ""); err != nil {
			return nil, err
		}
		return fs.opened(p.in, flags), nil
	case creat && excl:
		return nil, syscall.EEXIST
	}
	if err := fs.mayOpen(&p, flags); err != nil {
		return nil, err
	}
	if flags&unix.O_TRUNC != 0 && p.in.isRegular() && p.in.size > 0 {
		if err := fs.truncate(p.in, 0); err != nil {
			return nil, err
		}
	}
	return fs.opened(p.in, flags), nil
}

// mayOpen checks that an existing file can be opened with flags.
func (fs *FS) mayOpen(p *place, flags int) error {
	in := p.in
	want := uint32(permR)
	switch flags & unix.O_ACCMODE {
	case unix.O_WRONLY:
		want = permW
	case unix.O_RDWR:
		want = permR | permW
	}
	if flags&unix.O_TRUNC != 0 {
		want |= permW
	}
	if flags&unix.O_PATH != 0 {
		want = 0
	}
	switch {
	case in.isSymlink() && flags&unix.O_PATH == 0:
		return syscall.ELOOP
	case in.isDir() && (want&permW != 0 || flags&unix.O_CREAT != 0):
		return syscall.EISDIR
	case !in.isDir() && (flags&unix.O_DIRECTORY != 0 || p.slash):
		return syscall.ENOTDIR
	case !fs.may(in, want):
		return syscall.EACCES
	case want&permW != 0 && fs.opts.ReadOnly:
		return syscall.EROFS
	}
	return nil
}

func (fs *FS) opened(in *inode, flags int) *File {
	acc := flags & unix.O_ACCMODE
	f := &File{fs: fs, in: in, readable: acc != unix.O_WRONLY, writable: acc != unix.O_RDONLY}
	if in.isDir() || flags&unix.O_PATH != 0 {
		f.writable = false
	}
	fs.opens++
	in.opens++
	if f.writable {
		in.writers++
	}
	return f
}

// create makes a new inode at p, where nothing is, and puts it into p.
func (fs *FS) create(p *place, mode uint32, target string) error {
	switch {
	case fs.opts.ReadOnly:
		return syscall.EROFS
	case p.dir.nlink == 0:
		return syscall.ENOENT
	case p.slash && mode&modeType != modeDir:
		return syscall.EISDIR
	}
	if err := fs.mayChange(p.dir, nil); err != nil {
		return err
	}
	c := &fs.opts.Cred
	gid := c.GID
	if p.dir.mode&syscall.S_ISGID != 0 {
		gid = p.dir.gid
		if mode&modeType == modeDir {
			mode |= syscall.S_ISGID
		}
	}
	fs.rec = oplog.Record{
		Type: oplog.Create, Ino: uint64(fs.tree.nextIno), Time: now(), Parent: uint64(p.dir.ino),
		Mode: mode, UID: c.UID, GID: gid, Name: []byte(p.name), NewName: []byte(target),
	}
	if err := fs.record(); err != nil {
		return err
	}
	p.in = fs.tree.inodes[Ino(fs.rec.Ino)]
	return nil
}

// missing resolves a path at which something is to be made. EEXIST.
func (fs *FS) missing(dir Ino, path string) (place, error) {
	if path == "" {
		return place{}, syscall.ENOENT
	}
	p, err := fs.resolve(dir, path, false)
	if err == nil && p.in != nil {
		err = syscall.EEXIST
	}
	return p, err
}

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

// Access checks permission bits (R 4, W 2, X 1) as access(2). EACCES, EROFS.
func (fs *FS) Access(dir Ino, path string, mode uint32, follow bool) error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
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

// Mkdir makes a directory; mode is already masked by umask. EEXIST.
func (fs *FS) Mkdir(dir Ino, path string, mode uint32) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	p, err := fs.missing(dir, path)
	if err != nil {
		return err
	}
	return fs.create(&p, modeDir|mode&modePerm, "")
}

// Symlink makes a symbolic link. EEXIST; ENAMETOOLONG for targets of more
// than 3500 bytes.
func (fs *FS) Symlink(target string, dir Ino, path string) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	switch {
	case target == "":
		return syscall.ENOENT
	case len(target) > maxTarget:
		return syscall.ENAMETOOLONG
	}
	p, err := fs.missing(dir, path)
	if err != nil {
		return err
	}
	if p.slash {
		return syscall.ENOENT
	}
	return fs.create(&p, modeSymlink|0o777, target)
}

// Readlink returns the target of a symbolic link. EINVAL for anything else.
func (fs *FS) Readlink(dir Ino, path string) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	in, err := fs.existing(dir, path, false)
	if err != nil {
		return "", err
	}
	if !in.isSymlink() {
		return "", syscall.EINVAL
	}
	return in.target, nil
}

// Link adds a name to a file. EEXIST, EPERM for directories, EMLINK.
func (fs *FS) Link(odir Ino, opath string, ndir Ino, npath string, follow bool) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	in, err := fs.existing(odir, opath, follow)
	if err != nil {
		return err
	}
	p, err := fs.missing(ndir, npath)
	switch {
	case err != nil:
		return err
	case in.isDir():
		return syscall.EPERM
	case p.slash || p.dir.nlink == 0 || in.nlink == 0:
		return syscall.ENOENT
	case in.nlink == 1<<31:
		return syscall.EMLINK
	}
	if err := fs.mayChange(p.dir, nil); err != nil {
		return err
	}
	fs.rec = oplog.Record{Type: oplog.Link, Ino: uint64(in.ino), Time: now(), Parent: uint64(p.dir.ino), Name: []byte(p.name)}
	return fs.record()
}

// Unlink removes a name of a file. EISDIR, EPERM.
func (fs *FS) Unlink(dir Ino, path string) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	p, err := fs.resolve(dir, path, false)
	switch {
	case err != nil:
		return err
	case p.in == nil || path == "":
		return syscall.ENOENT
	case p.in.isDir():
		return syscall.EISDIR
	case p.slash:
		return syscall.ENOTDIR
	}
	return fs.unlink(&p)
}

// Rmdir removes an empty directory. ENOTEMPTY, ENOTDIR, EINVAL for ".", EBUSY
// for the root.
func (fs *FS) Rmdir(dir Ino, path string) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	p, err := fs.resolve(dir, path, false)
	switch {
	case err != nil:
		return err
	case p.in == nil || path == "":
		return syscall.ENOENT
	case !p.in.isDir():
		return syscall.ENOTDIR
	case p.in.ino == RootIno:
		return syscall.EBUSY
	case p.name == ".":
		return syscall.EINVAL
	case p.name == ".." || p.in.entries > 0:
		return syscall.ENOTEMPTY
	}
	return fs.unlink(&p)
}

func (fs *FS) unlink(p *place) error {
	if err := fs.mayChange(p.dir, p.in); err != nil {
		return err
	}
	fs.rec = oplog.Record{Type: oplog.Unlink, Ino: uint64(p.in.ino), Time: now(), Parent: uint64(p.dir.ino), Name: []byte(p.name)}
	return fs.record()
}

// Rename moves a name, with the flags of renameat2(2): RENAME_NOREPLACE,
// RENAME_EXCHANGE. EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL, EBUSY.
func (fs *FS) Rename(odir Ino, opath string, ndir Ino, npath string, flags uint) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	exchange, noreplace := flags&unix.RENAME_EXCHANGE != 0, flags&unix.RENAME_NOREPLACE != 0
	if flags&^(unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE) != 0 || (exchange && noreplace) {
		return syscall.EINVAL
	}
	from, err := fs.resolve(odir, opath, false)
	if err != nil {
		return err
	}
	to, err := fs.resolve(ndir, npath, false)
	if err != nil {
		return err
	}
	if err := fs.mayRename(&from, &to, exchange, noreplace); err != nil {
		return err
	}
	if to.in == from.in {
		return nil
	}
	r := oplog.Record{
		Type: oplog.Rename, Ino: uint64(from.in.ino), Time: now(),
		Parent: uint64(from.dir.ino), NewParent: uint64(to.dir.ino), Name: []byte(from.name), NewName: []byte(to.name),
	}
	if exchange {
		r.Flags = oplog.RenameExchange
	}
	fs.rec = r
	return fs.record()
}

func (fs *FS) mayRename(from, to *place, exchange, noreplace bool) error {
	t := fs.tree
	switch {
	case from.in == nil || (exchange && to.in == nil) || to.dir.nlink == 0:
		return syscall.ENOENT
	case noreplace && to.in != nil:
		return syscall.EEXIST
	case from.name == "." || from.name == ".." || to.name == "." || to.name == "..":
		return syscall.EBUSY
	case !from.in.isDir() && (from.slash || to.slash):
		return syscall.ENOTDIR
	case from.in.isDir() && t.isAncestor(from.in, to.dir):
		return syscall.EINVAL
	}
	if err := fs.mayChange(from.dir, from.in); err != nil {
		return err
	}
	if err := fs.mayChange(to.dir, to.in); err != nil {
		return err
	}
	if to.in == nil || to.in == from.in {
		return nil
	}
	if exchange {
		if to.in.isDir() && t.isAncestor(to.in, from.dir) {
			return syscall.EINVAL
		}
		return nil
	}
	switch {
	case to.in.isDir() && t.isAncestor(to.in, from.dir):
		return syscall.ENOTEMPTY
	case from.in.isDir() && !to.in.isDir():
		return syscall.ENOTDIR
	case !from.in.isDir() && to.in.isDir():
		return syscall.EISDIR
	case to.in.isDir() && to.in.entries > 0:
		return syscall.ENOTEMPTY
	}
	return nil
}

// Truncate sets the size of a file. EISDIR, EACCES, EFBIG, EINVAL.
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
	if in.writers == 0 {
		return fs.closeWritten(in)
	}
	return nil
}

// truncate shrinks or extends a file. What it cuts inside a unit gets a
// checksum of its own, so the rest of that unit is read first.
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
	g := fs.g
	r := oplog.Record{Type: oplog.Truncate, Ino: uint64(in.ino), Time: now(), Size: uint64(size)}
	h := Hugeblock(nvmf.Bytes(size) / g.hugeblock)
	if x := in.lookup(h); x != nil && size < in.size && g.sums {
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
	in.tail = tail{}
	in.written = true
	return nil
}

// SetAttr changes attributes of a path. EPERM unless the caller owns the file
// (EACCES for setting times to now: unless it may write it); only root changes
// the owner.
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
	if fs.opts.ReadOnly {
		return syscall.EROFS
	}
	c := &fs.opts.Cred
	if c.UID != 0 && c.UID != in.uid {
		if s.Mode != nil || s.UID != nil || s.GID != nil || !s.TimesNow {
			return syscall.EPERM
		}
		if !fs.may(in, permW) {
			return syscall.EACCES
		}
	}
	if c.UID != 0 && ((s.UID != nil && *s.UID != in.uid) || (s.GID != nil && !c.inGroup(*s.GID))) {
		return syscall.EPERM
	}
	r := oplog.Record{Type: oplog.SetAttr, Ino: uint64(in.ino), Time: now()}
	if s.Mode != nil {
		r.Mask, r.Mode = r.Mask|oplog.SetMode, *s.Mode&modePerm
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

// PathOf returns the absolute path within the file system of a directory.
func (fs *FS) PathOf(dir Ino) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	d, err := fs.start(dir)
	if err != nil {
		return "", err
	}
	return fs.tree.pathOf(d)
}

// RealPath resolves every symbolic link and dot of path, which must exist.
func (fs *FS) RealPath(dir Ino, path string) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	p, err := fs.resolve(dir, path, true)
	switch {
	case err != nil:
		return "", err
	case p.in == nil:
		return "", syscall.ENOENT
	case p.in.isDir():
		return fs.tree.pathOf(p.in)
	case p.slash:
		return "", syscall.ENOTDIR
	}
	up, err := fs.tree.pathOf(p.dir)
	if err != nil {
		return "", err
	}
	if up == "/" {
		up = ""
	}
	return up + "/" + p.name, nil
}

// Sync makes everything acknowledged durable.
func (fs *FS) Sync() error {
	if err := fs.enter(); err != nil {
		return err
	}
	defer fs.leave()
	if fs.opts.ReadOnly {
		return nil
	}
	return fs.sync()
}
