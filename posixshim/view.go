package posixshim

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// The view is the FUSE file system by which nvmecr serve exports the files of a run to the kernel of the host. A large file that
// nobody writes to is mapped from the view instead of being copied (mapping.go). The kernel then reads a page when it is touched,
// and keeps it once for all processes of the host. nvmecr serve reads the store itself and never calls this process. So this
// process may touch such a page anywhere, even while it holds locks.
//
// nvmecr serve reads the blocks while this process has the partition open for writing. This process keeps the file open as long
// as it is mapped, so that the blocks are not reused, even if the file is unlinked. In a tree of the whole job the index keeps
// the blocks of open files, and other processes may write to the file. A mapped page then has the old or the new bytes.

// A View says where the kernel has the files of a process.
type View struct {
	Dir    string // the directory that corresponds to the mount; "": there is no view
	Number uint64 // the bits from ViewShift on of inode numbers in that directory
}

// ViewShift is the lowest bit of a tree's number in the inode numbers of a view. Inode numbers of microfs are smaller: their bits
// are NV_VIEW_INO of shim/wire.h.
const ViewShift = 40

// ViewFlags, with O_RDONLY, are the flags of open(2) that tell the view that the file is to be mapped. They have no other effect
// on a regular file.
const ViewFlags = unix.O_NONBLOCK | unix.O_NOFOLLOW

// minView is the smallest mapping that is made from the view. A copy of a smaller one costs less than calls to nvmecr serve,
// and stays readable if that is killed.
const minView = 1 << 20

// MapKept is NV_MAP_KEPT of shim/wire.h.
const MapKept = 1 << 32

// mapView returns the descriptor of the file in the view, which stays open until Unmap; false: the file has to be copied.
func (p *Process) mapView(f *openFile, how int, n int64) (int, bool) {
	if p.View == nil || f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY {
		return 0, false
	}
	if fd, ok := p.refMapping(f, how, -1); ok || n < minView {
		return fd, ok
	}
	view, err := p.openView(f)
	if err != nil {
		return 0, false // a copy works too, but is slower
	}
	fd, ok := p.refMapping(f, how, ownfd.Hold(view))
	return fd, ok
}

// refMapping adds a mapping of a file from the view. view is the descriptor; -1: use the one by which the file is mapped already.
func (p *Process) refMapping(f *openFile, how, view int) (int, bool) {
	t := &p.maps
	t.mu.Lock()
	defer t.mu.Unlock()
	ino := f.current().Ino()
	m := t.files[ino]
	if m == nil && view >= 0 {
		m = newMapping()
	}
	if view < 0 && m != nil && m.view >= 0 && !viewAlive(m.view) {
		return 0, false // nvmecr serve has ended, and pages that were not read raise SIGBUS
	}
	// A shared mapping must show changes of the memory, if the file has memory: the view would not show them.
	if m == nil || m.view < 0 && view < 0 || m.fd >= 0 && how&MapShared != 0 || p.Retain(f.handle) != nil {
		if view >= 0 {
			_ = ownfd.Close(view)
		}
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case view < 0:
	case m.view >= 0 && viewAlive(m.view):
		_ = ownfd.Close(view)
	default:
		if m.view >= 0 {
			_ = ownfd.Close(m.view) // nvmecr serve was killed and started again
		}
		m.view = view
	}
	f.mappedFromView.Store(!f.mountPoint.tree.Load())
	m.refreshView(f)
	t.add(ino, m)
	return m.view, true
}

// viewAlive says whether nvmecr serve still answers calls on a descriptor of the view.
func viewAlive(view int) bool {
	var st unix.Stat_t
	return unix.Fstat(view, &st) == nil
}

// refreshView is called after a file was changed. If the file is mapped from the view, the kernel is made to ask nvmecr serve for
// its attributes: it drops cached pages if size or time have changed. If nvmecr serve has ended, that fails and has no effect.
func (m *mapping) refreshView(f *openFile) {
	if m.view < 0 {
		return
	}
	if f.mountPoint.tree.Load() {
		_ = f.current().Sync() // nvmecr serve reads what has been published
	} else {
		_, _ = f.current().Stat() // writes buffered data, which nvmecr serve then reads
	}
	var st unix.Stat_t
	_ = unix.Fstat(m.view, &st)
}

// openView opens the file in the view.
func (p *Process) openView(f *openFile) (int, error) {
	view := p.View()
	if attr, err := f.current().Stat(); err != nil || view.Dir == "" || !attr.Closed || attr.Ino>>ViewShift != 0 {
		return -1, fmt.Errorf("the file is being written, is another rank's, or is not in the view: %w", errors.Join(syscall.ENOENT, err))
	}
	tree := f.mountPoint.tree.Load()
	fs, err := f.mountPoint.acquire(!tree)
	if err != nil {
		return -1, err
	}
	f.mappedFromView.Store(!tree) // from here on Yield keeps the partition
	path, attr, err := closedFile(fs, f)
	p.mu.RUnlock()
	fd := -1
	if err == nil {
		fd, err = view.open(path, &attr)
	}
	if err != nil && !p.mapsView(f) {
		f.mappedFromView.Store(false)
	}
	return fd, err
}

// mapsView says whether the file is mapped from the view.
func (p *Process) mapsView(f *openFile) bool {
	m := p.mapped(f)
	return m != nil && m.view >= 0
}

// closedFile returns the path and the attributes of a file that no process is writing, after all its data is in the store.
func closedFile(fs vfs.FS, f *openFile) (path string, attr microfs.Attr, err error) {
	file := f.current()
	if err = file.Sync(); err == nil {
		attr, err = file.Stat()
	}
	switch {
	case err != nil:
	case !attr.Closed || attr.Mode&syscall.S_IFMT != syscall.S_IFREG:
		err = fmt.Errorf("the file is being written: %w", syscall.ETXTBSY)
	case !fs.DataCRC():
		err = fmt.Errorf("readers cannot tell whether data is the file's: %w", syscall.EOPNOTSUPP)
	default:
		path, err = fs.RealPath(f.dir, f.path)
	}
	return path, attr, err
}

// open opens the file in the view that has the path and the attributes; ESTALE if the file at the path is another one.
func (v View) open(path string, attr *microfs.Attr) (int, error) {
	fd, err := unix.Open(filepath.Join(v.Dir, path), unix.O_RDONLY|unix.O_CLOEXEC|ViewFlags, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Ino != uint64(attr.Ino)|v.Number<<ViewShift || st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Size != attr.Size) {
		err = syscall.ESTALE
	}
	if err != nil {
		_ = unix.Close(fd) // nothing was read
		return -1, err
	}
	return fd, nil
}
