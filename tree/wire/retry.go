package wire

import (
	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// Where the index was killed during a call, the client asks its successor. That is right where a request that was carried out
// twice does no more than once: names are not made, moved or removed twice, since somebody else may have used them in between, and nothing is appended twice.

// Repeatable says whether a request may be carried out again.
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

// Writing says whether flags of open(2) open a regular file for writing.
func Writing(flags uint32) bool {
	how := flags & unix.O_ACCMODE // 3 is Linux's own: allows neither
	return flags&unix.O_PATH == 0 && (how == unix.O_WRONLY || how == unix.O_RDWR)
}

// FileOf returns the number of the file that a request is about and that its client has open, or that its path begins at; 0 if there is none.
func FileOf(request Body) microfs.Ino {
	if r, ok := request.(interface{ file() microfs.Ino }); ok {
		return r.file()
	}
	return 0
}

func (n *Name) file() microfs.Ino        { return n.Dir }
func (r *OpenIno) file() microfs.Ino     { return r.Ino }
func (r *Keep) file() microfs.Ino        { return r.Ino }
func (r *Publication) file() microfs.Ino { return r.Ino } // and of Close
func (r *Map) file() microfs.Ino         { return r.Ino }
func (r *Append) file() microfs.Ino      { return r.Ino }
func (r *Write) file() microfs.Ino       { return r.Ino }
func (r *Read) file() microfs.Ino        { return r.Ino }
func (r *Allocate) file() microfs.Ino    { return r.Ino }
func (r *ReadDir) file() microfs.Ino     { return r.Ino }
func (r *Lock) file() microfs.Ino        { return r.Ino }
