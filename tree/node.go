package tree

import (
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
	"nvmecr/tree/wire"
)

// A node is an open directory, or a file opened with O_PATH. It is a vfs.File.
type node struct {
	fs   *FS
	ino  microfs.Ino
	mode uint32
}

var _ vfs.File = (*node)(nil)

// Ino returns the inode number.
func (n *node) Ino() microfs.Ino { return n.ino }

// IsDir reports whether the node is a directory.
func (n *node) IsDir() bool { return n.mode&unix.S_IFMT == unix.S_IFDIR }

// Size returns the size.
func (n *node) Size() (int64, error) {
	a, err := n.Stat()
	return a.Size, err
}

// Stat requests the attributes from the index.
func (n *node) Stat() (microfs.Attr, error) {
	a, err := n.fs.stat(n.ino, "", true)
	return n.fs.shown(&a), err
}

// SetAttr changes attributes.
func (n *node) SetAttr(s microfs.SetAttr) error { return n.fs.SetAttr(n.ino, "", true, s) }

// ReadDir returns up to count names behind after; all if count is not positive.
func (n *node) ReadDir(after string, count int) (list []microfs.Dirent, err error) {
	if !n.IsDir() {
		return nil, syscall.ENOTDIR
	}
	for count <= 0 || len(list) < count {
		request := wire.ReadDir{Ino: n.ino, After: after, N: wire.MaxEntries}
		if count > 0 {
			request.N = uint32(min(count-len(list), wire.MaxEntries))
		}
		var answer wire.Entries
		if err := n.fs.client.Call(wire.OpReadDir, &request, &answer); err != nil {
			return nil, err
		}
		if len(answer.List) == 0 {
			break
		}
		list = append(list, answer.List...)
		after = list[len(list)-1].Name
	}
	return list, nil
}

// Sync makes names durable.
func (n *node) Sync() error { return n.fs.client.Call(wire.OpSync, nil, nil) }

// Close closes the node.
func (n *node) Close() error {
	return n.fs.client.Call(wire.OpClose, &wire.Close{Publication: wire.Publication{Ino: n.ino}}, nil)
}

// errData returns the error of calls that need a regular file.
func (n *node) errData() error {
	if n.IsDir() {
		return syscall.EISDIR
	}
	return syscall.EBADF
}

// ReadAt and the methods below are for regular files only.
func (n *node) ReadAt([][]byte, int64) (int, error)  { return 0, n.errData() }
func (n *node) WriteAt([][]byte, int64) (int, error) { return 0, syscall.EBADF }
func (n *node) AppendBelow([][]byte, int64) (int, int64, error) {
	return 0, 0, syscall.EBADF
}
func (n *node) Truncate(int64) error               { return syscall.EINVAL }
func (n *node) Allocate(int64, int64, bool) error  { return syscall.EBADF }
func (n *node) Punch(int64, int64) error           { return syscall.EBADF }
func (n *node) ZeroRange(int64, int64, bool) error { return syscall.EBADF }
func (n *node) Advise(int64, int64, int) error     { return nil }
func (n *node) SeekData(int64) (int64, error)      { return 0, n.errData() }
func (n *node) SeekHole(int64) (int64, error)      { return 0, n.errData() }
