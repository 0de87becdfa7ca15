package wire

import (
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// If the index was killed during a call, the client repeats the call at the successor. That is correct for requests
// whose repetition has no further effect. Names are not created, moved or removed twice, since another process may
// have used them in between, and nothing is appended twice.

// Repeatable reports whether a request may be executed twice.
func Repeatable(op Op, request Body) bool {
	switch op {
	case OpMkdir, OpUnlink, OpRename, OpLink, OpSymlink:
		return false
	}
	switch r := request.(type) {
	case *Open:
		return r.Flags&unix.O_EXCL == 0
	case *Write:
		return r.Off != AtEnd
	}
	return true
}

// Writing reports whether flags of open(2) open a regular file for writing.
func Writing(flags uint32) bool {
	how := flags & unix.O_ACCMODE // 3 is Linux's own: allows neither
	return flags&unix.O_PATH == 0 && (how == unix.O_WRONLY || how == unix.O_RDWR)
}

// FileOf returns the inode number of the open file that a request is about, or at which its path begins; 0 if there
// is none.
func FileOf(request Body) microfs.Ino {
	if r, ok := request.(interface{ file() microfs.Ino }); ok {
		return r.file()
	}
	return 0
}

func (n *Name) file() microfs.Ino        { return n.Dir }
func (r *OpenIno) file() microfs.Ino     { return r.Ino }
func (r *Keep) file() microfs.Ino        { return r.Ino }
func (r *Publication) file() microfs.Ino { return r.Ino } // also of Close
func (r *Map) file() microfs.Ino         { return r.Ino }
func (r *Append) file() microfs.Ino      { return r.Ino }
func (r *Write) file() microfs.Ino       { return r.Ino }
func (r *Read) file() microfs.Ino        { return r.Ino }
func (r *Allocate) file() microfs.Ino    { return r.Ino }
func (r *ReadDir) file() microfs.Ino     { return r.Ino }
func (r *Lock) file() microfs.Ino        { return r.Ino }
