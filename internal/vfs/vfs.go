// Package vfs is the interface of a file system of a mount, as the kernel's VFS is that of the file
// systems below it. Its users, posixshim and fuseview, give processes POSIX on it. Three file systems
// implement it: a partition of one rank (Microfs), the tree of a job (package tree), and the union of
// the partitions of all ranks (internal/unionfs).
//
// Paths, flags, attributes and errors are those of package microfs. All methods may be called
// concurrently, except that Close is the last call.
package vfs

import (
	"math"

	"nvmecr/microfs"
)

// NoLimit is the limit for File.AppendBelow if the size of the file is not limited.
const NoLimit int64 = math.MaxInt64

// FS is a mounted file system.
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
	DataCRC() bool
	Vacate() error
	Sync() error
}

// File is an open file or directory.
type File interface {
	Ino() microfs.Ino
	IsDir() bool
	// Size is Stat().Size as this process knows it, which is enough for reads.
	Size() (int64, error)
	ReadAt(bufs [][]byte, off int64) (int, error)
	WriteAt(bufs [][]byte, off int64) (int, error)
	AppendBelow(bufs [][]byte, limit int64) (n int, end int64, err error)
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

// A Locker is a File whose locks also exclude processes that this process does not serve.
type Locker interface {
	// Lock replaces the locks that this process, and the processes it serves, have in [start, end)
	// by hold, which is in order and does not overlap: flock locks if whole is true, else fcntl
	// locks. EAGAIN: a lock of another process conflicts, and nothing has changed.
	Lock(whole bool, start, end int64, hold []Held) error
	// Conflict returns a lock of another process that conflicts with want, and that process; 0 if
	// there is none.
	Conflict(whole bool, want Held) (l Held, pid int, err error)
}

// Held is a locked part [Start, End) of a file.
type Held struct {
	Start, End int64
	Write      bool
}

// A Mount is a file system that has been mounted.
type Mount struct {
	FS       FS
	Writable bool
	// Tree is true if all processes have one file system: a file that is open in another mount can be opened in this one by its inode
	// number.
	Tree bool
	// Current reports whether a read-only mount shows what another mount would show; nil if only another mount can tell.
	Current func() bool
	// Close unmounts. It is called once, after the last use of FS.
	Close func() error
}
