package microfs

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/oplog"
)

// Every path operation takes a directory and a path. The directory is the inode that a relative
// path starts from; an absolute path has RootIno, and its leading slashes are ignored. All
// operations may fail with an error of resolving the path: ENOENT, ENOTDIR, EACCES, ELOOP,
// ENAMETOOLONG, or an *EscapeError. Changes may also fail with EROFS, ENOSPC, EIO.

// Open opens a file or directory, with the flags of open(2). The caller has applied the umask to mode.
// Errors: EEXIST, EISDIR, EACCES, ELOOP, EINVAL, EPERM.
func (fs *FS) Open(dir Ino, path string, flags int, mode uint32) (*File, error) {
	if err := fs.enter(); err != nil {
		return nil, err
	}
	defer fs.leave()
	if flags&unix.O_PATH != 0 { // other flags are ignored, as by open(2)
		flags &= unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	}
	creat, excl := flags&unix.O_CREAT != 0, flags&unix.O_EXCL != 0
	switch {
	case path == "":
		return nil, syscall.ENOENT
	case creat && flags&unix.O_DIRECTORY != 0:
		return nil, syscall.EINVAL
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
	case creat && p.slash:
		return nil, syscall.EISDIR
	}
	if err := fs.mayOpen(&p, flags); err != nil {
		return nil, err
	}
	if flags&unix.O_TRUNC != 0 && p.in.isRegular() {
		if err := fs.truncate(p.in, 0); err != nil {
			return nil, err
		}
	}
	return fs.opened(p.in, flags), nil
}

// OpenIno opens a file or directory by its inode number, for a process that continues with the open
// files of another one. It does not check names and permissions again, and uses the flags that Open
// keeps. It fails with ESTALE if the file does not exist any more. Other errors: EISDIR, EROFS.
func (fs *FS) OpenIno(ino Ino, flags int) (*File, error) {
	if err := fs.enter(); err != nil {
		return nil, err
	}
	defer fs.leave()
	in := fs.tree.inodes.get(ino)
	switch {
	case in == nil:
		return nil, syscall.ESTALE
	case in.isDir() && flags&unix.O_ACCMODE != unix.O_RDONLY:
		return nil, syscall.EISDIR
	case flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0 && fs.opts.ReadOnly:
		return nil, syscall.EROFS
	}
	return fs.opened(in, flags), nil
}

// mayOpen checks that an existing file can be opened with flags.
func (fs *FS) mayOpen(p *place, flags int) error {
	in := p.in
	want := uint32(permR)
	switch flags & unix.O_ACCMODE {
	case unix.O_WRONLY:
		want = permW
	case unix.O_RDWR, unix.O_ACCMODE: // Linux's access mode 3 needs both permissions, and allows no access
		want = permR | permW
	}
	if flags&unix.O_TRUNC != 0 {
		want |= permW
	}
	if flags&unix.O_PATH != 0 {
		want = 0
	}
	switch {
	case !in.isDir() && (flags&unix.O_DIRECTORY != 0 || p.slash):
		return syscall.ENOTDIR
	case in.isSymlink() && flags&unix.O_PATH == 0:
		return syscall.ELOOP
	case in.isDir() && (want&permW != 0 || flags&unix.O_CREAT != 0):
		return syscall.EISDIR
	case !fs.may(in, want):
		return syscall.EACCES
	case want&permW != 0 && fs.opts.ReadOnly:
		return syscall.EROFS
	case flags&unix.O_NOATIME != 0 && fs.opts.Cred.UID != 0 && fs.opts.Cred.UID != in.uid:
		return syscall.EPERM
	}
	return nil
}

func (fs *FS) opened(in *inode, flags int) *File {
	acc := flags & unix.O_ACCMODE
	f := &File{fs: fs, in: in, ino: in.ino,
		readable: acc == unix.O_RDONLY || acc == unix.O_RDWR, writable: acc == unix.O_WRONLY || acc == unix.O_RDWR}
	f.sync, f.losses = flags&unix.O_DSYNC != 0, fs.losses[in.ino].count
	if f.dir = in.isDir(); f.dir {
		f.writable = false
	}
	if flags&unix.O_PATH != 0 {
		f.readable, f.writable = false, false
	}
	fs.opens++
	in.opened(f.writable)
	return f
}

// create makes a new inode at p, where there is none, and stores it in p.
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
		} else if mode&0o010 != 0 && c.UID != 0 && !c.inGroup(gid) {
			mode &^= syscall.S_ISGID // else a user could make a program that runs as a group he is not in
		}
	}
	fs.rec = oplog.Record{
		Type: oplog.Create, Ino: uint64(fs.tree.nextIno), Time: now(), Parent: uint64(p.dir.ino),
		Mode: mode, UID: c.UID, GID: gid, Name: []byte(p.name), NewName: []byte(target),
	}
	if err := fs.record(); err != nil {
		return err
	}
	p.in = fs.tree.inodes.get(Ino(fs.rec.Ino))
	p.in.written = p.in.isRegular() // until its writer closes it
	return nil
}

// missing resolves a path of a new name. It fails with EEXIST if the name exists.
func (fs *FS) missing(dir Ino, path string) (place, error) {
	p, err := fs.resolveEntry(dir, path)
	if err == nil && p.in != nil {
		err = syscall.EEXIST
	}
	return p, err
}

// Mkdir makes a directory. The caller has applied the umask to mode. Errors: EEXIST.
func (fs *FS) Mkdir(dir Ino, path string, mode uint32) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	p, err := fs.missing(dir, path)
	if err != nil {
		return err
	}
	return fs.create(&p, modeDir|mode&(0o777|syscall.S_ISVTX), "")
}

// Symlink makes a symbolic link. Errors: EEXIST, and ENAMETOOLONG for targets of more than 3500 bytes.
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

// Readlink returns the target of a symbolic link. It fails with EINVAL for other files.
func (fs *FS) Readlink(dir Ino, path string) (string, error) {
	if err := fs.enter(); err != nil {
		return "", err
	}
	defer fs.leave()
	if path == "" {
		return "", syscall.ENOENT
	}
	in, err := fs.existing(dir, path, false)
	if err != nil {
		return "", err
	}
	if !in.isSymlink() {
		return "", syscall.EINVAL
	}
	return in.target(), nil
}

// Link adds a name to a file. Errors: EEXIST, EMLINK, and EPERM for directories.
func (fs *FS) Link(odir Ino, opath string, ndir Ino, npath string, follow bool) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	if opath == "" {
		return syscall.ENOENT
	}
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

// Unlink removes a name of a file. Errors: EISDIR, EPERM.
func (fs *FS) Unlink(dir Ino, path string) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	p, err := fs.resolveEntry(dir, path)
	switch {
	case err != nil:
		return err
	case p.in == nil:
		return syscall.ENOENT
	case p.slash && !p.in.isDir():
		return syscall.ENOTDIR
	}
	if err := fs.mayChange(p.dir, p.in); err != nil {
		return err
	}
	if p.in.isDir() {
		return syscall.EISDIR
	}
	return fs.unlink(&p)
}

// Rmdir removes an empty directory. Errors: ENOTEMPTY, ENOTDIR, EINVAL for ".", EBUSY for the root.
func (fs *FS) Rmdir(dir Ino, path string) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	p, err := fs.resolveEntry(dir, path)
	switch {
	case err != nil:
		return err
	case p.in == nil:
		return syscall.ENOENT
	case p.name == "." && strings.Trim(path, "/") != "":
		return syscall.EINVAL
	case p.name == "..":
		return syscall.ENOTEMPTY
	case p.in.ino == RootIno:
		return syscall.EBUSY
	}
	if err := fs.mayChange(p.dir, p.in); err != nil {
		return err
	}
	if !p.in.isDir() {
		return syscall.ENOTDIR
	}
	if p.in.entries() > 0 {
		return syscall.ENOTEMPTY
	}
	return fs.unlink(&p)
}

func (fs *FS) unlink(p *place) error {
	fs.rec = oplog.Record{Type: oplog.Unlink, Ino: uint64(p.in.ino), Time: now(), Parent: uint64(p.dir.ino), Name: []byte(p.name)}
	return fs.record()
}

// Rename moves a name, with the flags of renameat2(2): RENAME_NOREPLACE,
// RENAME_EXCHANGE. Errors: EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL, EBUSY.
func (fs *FS) Rename(odir Ino, opath string, ndir Ino, npath string, flags uint) error {
	if err := fs.enterWrite(); err != nil {
		return err
	}
	defer fs.leave()
	exchange, noreplace := flags&unix.RENAME_EXCHANGE != 0, flags&unix.RENAME_NOREPLACE != 0
	if flags&^(unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE) != 0 || (exchange && noreplace) {
		return syscall.EINVAL
	}
	from, err := fs.resolveEntry(odir, opath)
	if err != nil {
		return err
	}
	to, err := fs.resolveEntry(ndir, npath)
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
	case from.slash && !from.in.isDir(),
		to.slash && !exchange && !from.in.isDir(),
		to.slash && exchange && !to.in.isDir():
		return syscall.ENOTDIR
	case from.in.isDir() && t.isAncestor(from.in, to.dir):
		return syscall.EINVAL
	}
	if to.in == from.in {
		return nil // a rename to the same file does nothing; the search permission suffices
	}
	if err := fs.mayChange(from.dir, from.in); err != nil {
		return err
	}
	if err := fs.mayChange(to.dir, to.in); err != nil {
		return err
	}
	// A directory that moves to another parent is itself changed: its ".." is.
	for _, in := range []*inode{from.in, to.in} {
		moves := in != nil && in.isDir() && from.dir != to.dir && (in == from.in || exchange)
		if moves && !fs.may(in, permW) {
			return syscall.EACCES
		}
	}
	if to.in == nil {
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
	case to.in.isDir() && to.in.entries() > 0:
		return syscall.ENOTEMPTY
	}
	return nil
}
