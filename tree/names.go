package tree

import (
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// call is a call of the index that returns no body.
func (fs *FS) call(op wire.Op, request wire.Body) error { return fs.client.Call(op, request, nil) }

// SetCred changes the credentials of the calls.
func (fs *FS) SetCred(c microfs.Cred) error {
	if err := fs.call(wire.OpSetCred, &wire.Cred{Cred: c}); err != nil {
		return err
	}
	fs.cred.Store(&c)
	return nil
}

// stat requests attributes from the index.
func (fs *FS) stat(dir microfs.Ino, path string, follow bool) (wire.Attr, error) {
	var answer wire.AttrAnswer
	err := fs.client.Call(wire.OpStat, &wire.Stat{Name: wire.Name{Dir: dir, Path: path}, Follow: follow}, &answer)
	return answer.Attr, err
}

// shown returns attributes from the index as this process sees them.
func (fs *FS) shown(a *wire.Attr) microfs.Attr {
	in := fs.opens(a)
	if in == nil {
		return a.Attr
	}
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.shown(a)
}

// Stat returns the attributes of a path.
func (fs *FS) Stat(dir microfs.Ino, path string, follow bool) (microfs.Attr, error) {
	a, err := fs.stat(dir, path, follow)
	if err != nil {
		return microfs.Attr{}, err
	}
	return fs.shown(&a), nil
}

// SetAttr changes attributes of a path.
func (fs *FS) SetAttr(dir microfs.Ino, path string, follow bool, s microfs.SetAttr) error {
	var answer wire.AttrAnswer
	request := wire.SetAttr{Name: wire.Name{Dir: dir, Path: path}, Follow: follow, What: s}
	if err := fs.client.Call(wire.OpSetAttr, &request, &answer); err != nil {
		return err
	}
	if path == "" {
		return nil // called through an open file, which updates its own state
	}
	if in := fs.opens(&answer.Attr); in != nil {
		in.mu.RLock()
		in.touch(s.Mtime)
		in.mu.RUnlock()
	}
	return nil
}

// Access checks permissions of the caller.
func (fs *FS) Access(dir microfs.Ino, path string, mode uint32, follow bool) error {
	return fs.AccessAs(*fs.cred.Load(), dir, path, mode, follow)
}

// AccessAs checks the permissions of other credentials.
func (fs *FS) AccessAs(who microfs.Cred, dir microfs.Ino, path string, mode uint32, follow bool) error {
	return fs.call(wire.OpAccess, &wire.Access{Name: wire.Name{Dir: dir, Path: path}, Mode: mode, Follow: follow, Who: who})
}

// Mkdir creates a directory.
func (fs *FS) Mkdir(dir microfs.Ino, path string, mode uint32) error {
	return fs.call(wire.OpMkdir, &wire.Mkdir{Name: wire.Name{Dir: dir, Path: path}, Mode: mode})
}

// Rmdir removes a directory.
func (fs *FS) Rmdir(dir microfs.Ino, path string) error {
	return fs.call(wire.OpUnlink, &wire.Unlink{Name: wire.Name{Dir: dir, Path: path}, Directory: true})
}

// Unlink removes a name.
func (fs *FS) Unlink(dir microfs.Ino, path string) error {
	return fs.call(wire.OpUnlink, &wire.Unlink{Name: wire.Name{Dir: dir, Path: path}})
}

// Rename moves a name, with the flags of renameat2(2).
func (fs *FS) Rename(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, flags uint) error {
	return fs.call(wire.OpRename, &wire.Rename{
		From: wire.Name{Dir: odir, Path: opath}, To: wire.Name{Dir: ndir, Path: npath}, Flags: uint32(flags),
	})
}

// Link gives a file another name.
func (fs *FS) Link(odir microfs.Ino, opath string, ndir microfs.Ino, npath string, follow bool) error {
	return fs.call(wire.OpLink, &wire.Link{
		From: wire.Name{Dir: odir, Path: opath}, To: wire.Name{Dir: ndir, Path: npath}, Follow: follow,
	})
}

// Symlink creates a symbolic link.
func (fs *FS) Symlink(target string, dir microfs.Ino, path string) error {
	return fs.call(wire.OpSymlink, &wire.Symlink{Target: target, Name: wire.Name{Dir: dir, Path: path}})
}

// Readlink returns the target of a symbolic link.
func (fs *FS) Readlink(dir microfs.Ino, path string) (string, error) {
	var answer wire.Text
	err := fs.client.Call(wire.OpReadlink, &wire.Readlink{Name: wire.Name{Dir: dir, Path: path}}, &answer)
	return answer.Text, err
}

// PathOf returns the path of a directory.
func (fs *FS) PathOf(dir microfs.Ino) (string, error) { return fs.RealPath(dir, "") }

// RealPath resolves every symbolic link and dot of a path.
func (fs *FS) RealPath(dir microfs.Ino, path string) (string, error) {
	var answer wire.Text
	err := fs.client.Call(wire.OpPath, &wire.Path{Name: wire.Name{Dir: dir, Path: path}}, &answer)
	return answer.Text, err
}

// Truncate sets the size of a file. Data of this process is published first.
func (fs *FS) Truncate(dir microfs.Ino, path string, size int64) error {
	if err := fs.publishAt(dir, path, true); err != nil {
		return err
	}
	var answer wire.AttrAnswer
	request := wire.Truncate{Name: wire.Name{Dir: dir, Path: path}, Size: size}
	if err := fs.client.Call(wire.OpTruncate, &request, &answer); err != nil {
		return err
	}
	in := fs.opens(&answer.Attr)
	if in == nil {
		return nil
	}
	in.lock()
	defer in.mu.Unlock()
	if err := in.refresh(); err != nil {
		return err
	}
	return in.closeOldShard()
}
