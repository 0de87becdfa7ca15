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

// Where `nvmecr serve` exports the files of a run, the kernel has this process's files, too: it reads them page
// by page, when a page is touched, and keeps a page once for all processes of the host. A large file that nobody
// writes to is mapped from there, and not copied (mapping.go). The server reads the store by itself and asks this process
// for nothing, so a page may be touched wherever this process is, also while it holds locks.
//
// The server reads beside the writer, which this process has to be: it keeps the file open as long as it is mapped, so
// that its place is not used for anything else, whatever becomes of its names. In a tree that all processes have the index keeps
// the place of a file that anybody has open, and others may write to the file: the kernel then shows old bytes or new ones, as two
// opens of a file that others write do.

// A View is where the kernel has the files of a process.
type View struct {
	Dir    string // what MOUNT is to the process; "" if there is none
	Number uint64 // what the numbers of inodes there have in the bits from ViewShift on
}

// ViewShift is the first bit of a tree's number in the numbers of inodes of a view. Numbers of microfs do not reach it.
const ViewShift = 40

// ViewFlags are flags of open(2) that say to a view that the file is to be mapped, beside O_RDONLY: of a file of the
// kernel's they change nothing.
const ViewFlags = unix.O_NONBLOCK | unix.O_NOFOLLOW

// minView is the smallest mapping that is not copied: the copy costs less than the calls to the server, and lasts
// when the server is killed.
const minView = 1 << 20

// MapKept is NV_MAP_KEPT of shim/wire.h.
const MapKept = 1 << 32

// mapView returns the descriptor of the file as the kernel has it, which is the runtime's until Unmap; false
// if the file has to be copied.
func (p *Process) mapView(f *openFile, how int, n int64) (int, bool) {
	if p.View == nil || f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY {
		return 0, false
	}
	if fd, ok := p.refMapping(f, how, -1); ok || n < minView {
		return fd, ok
	}
	view, err := p.openView(f)
	if err != nil {
		return 0, false // a copy serves as well, if not as fast
	}
	fd, ok := p.refMapping(f, how, ownfd.Hold(view))
	return fd, ok
}

// refMapping counts one more mapping of a file from the view, whose descriptor is view, or what it has been mapped by before.
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
		return 0, false // unread pages would be SIGBUS: the next mapping is another server's, or a copy
	}
	// What is written to memory that shows the file shows in shared mappings of that memory only.
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
			_ = ownfd.Close(m.view) // another server has taken the place of a killed one
		}
		m.view = view
	}
	f.viewed.Store(!f.at.tree.Load())
	m.renew(f)
	t.add(ino, m)
	return m.view, true
}

// viewAlive says that the server answers for a descriptor of its view.
func viewAlive(view int) bool {
	var st unix.Stat_t
	return unix.Fstat(view, &st) == nil
}

// renew has the kernel ask the server for the attributes of a file that was changed, if it is mapped from the view: it
// forgets the pages if size or time are others than they were. Where the server is gone, there is nothing to be had any more.
func (m *mapping) renew(f *openFile) {
	if m.view < 0 {
		return
	}
	if f.at.tree.Load() {
		_ = f.current().Sync() // the server knows what has been published
	} else {
		_, _ = f.current().Stat() // what is to be written behind has to be written before
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
	tree := f.at.tree.Load()
	fs, err := f.at.acquire(!tree)
	if err != nil {
		return -1, err
	}
	f.viewed.Store(!tree) // from here on no other process gets the partition
	path, attr, err := closedFile(fs, f)
	p.mu.RUnlock()
	fd := -1
	if err == nil {
		fd, err = view.open(path, &attr)
	}
	if err != nil && !p.mapsView(f) {
		f.viewed.Store(false)
	}
	return fd, err
}

// mapsView says whether the file is mapped from the view.
func (p *Process) mapsView(f *openFile) bool {
	m := p.mapped(f)
	return m != nil && m.view >= 0
}

// closedFile returns the path, and the attributes, of a file that its writers have closed: with all that was written to it
// in the store.
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

// open opens the file of a path and of these attributes.
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
		_ = unix.Close(fd) // it was not even read
		return -1, err
	}
	return fd, nil
}
