package unionfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// directory is an open directory: the file of the first layer, with the names of all layers.
type directory struct {
	vfs.File
	u    *FS
	rank int
}

// Ino returns the number that the process sees.
func (d *directory) Ino() microfs.Ino { return tag(d.rank, d.File.Ino()) }

// Stat tells the attributes.
func (d *directory) Stat() (microfs.Attr, error) {
	a, err := d.File.Stat()
	p := part{rank: d.rank, attr: a}
	return p.shown(), err
}

// SetAttr changes the attributes of a directory in the own file system.
func (d *directory) SetAttr(s microfs.SetAttr) error {
	if d.rank == own {
		return d.File.SetAttr(s)
	}
	path, err := d.u.PathOf(d.Ino())
	if err != nil {
		return err
	}
	return &ReadOnlyError{Path: strings.TrimRight(d.u.mount, "/") + path, Rank: d.rank}
}

// ReadDir returns up to n names behind after, sorted, of all layers' directories.
func (d *directory) ReadDir(after string, n int) ([]microfs.Dirent, error) {
	layers, err := d.u.layers()
	if err != nil {
		return nil, err
	}
	w := walk{u: d.u, layers: layers}
	stack, err := w.directory(d.Ino())
	if err != nil { // removed
		return d.File.ReadDir(after, n)
	}
	var all []microfs.Dirent
	for _, p := range stack[len(stack)-1].parts {
		names, err := list(&p, after, n)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	// Of entries with one name the first counts.
	slices.SortStableFunc(all, func(a, b microfs.Dirent) int { return strings.Compare(a.Name, b.Name) })
	all = slices.CompactFunc(all, func(a, b microfs.Dirent) bool { return a.Name == b.Name })
	if n > 0 {
		all = all[:min(n, len(all))]
	}
	return all, nil
}

// list reads names of a directory of one file system.
func list(p *part, after string, n int) ([]microfs.Dirent, error) {
	path, err := p.fs.PathOf(p.attr.Ino)
	if err != nil {
		return nil, err
	}
	f, err := p.fs.Open(microfs.RootIno, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	names, err := f.ReadDir(after, n)
	for i := range names {
		names[i].Ino = tag(p.rank, names[i].Ino)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return names, err
}

// rankFile is an open file of a rank, which may continue to change it.
type rankFile struct {
	vfs.File // as opened, for attributes that never change
	u        *FS
	rank     int
	path     string
	flags    int

	mu    sync.Mutex
	now   vfs.File // the file in the newest mount
	mount uint64
}

func newRankFile(u *FS, file vfs.File, n *node, mount uint64, flags int) *rankFile {
	return &rankFile{
		File: file, u: u, rank: n.top().rank, path: n.path, now: file, mount: mount,
		flags: flags & (unix.O_ACCMODE | unix.O_PATH | unix.O_NOFOLLOW),
	}
}

// mountOf returns the mount of a rank's file system that the walk uses.
func (w *walk) mountOf(rank int) uint64 {
	for i := range w.layers {
		if w.layers[i].Rank == rank {
			return w.layers[i].Mount
		}
	}
	return 0
}

// Ino returns the number that the process sees.
func (f *rankFile) Ino() microfs.Ino { return tag(f.rank, f.File.Ino()) }

// current returns the file in the newest mount. It fails with ESTALE if the file was removed or replaced, since its data may be
// overwritten.
func (f *rankFile) current() (vfs.File, error) {
	layers, err := f.u.layers()
	if err != nil {
		return nil, err
	}
	w := walk{u: f.u, layers: layers}
	f.mu.Lock()
	defer f.mu.Unlock()
	fs, mount := w.layer(f.rank), w.mountOf(f.rank)
	if fs == nil || mount == f.mount {
		return f.now, nil
	}
	after, err := fs.Open(microfs.RootIno, f.path, f.flags, 0)
	if err == nil && after.Ino() != f.File.Ino() {
		_ = after.Close() // only read
		err = syscall.ENOENT
	}
	if err != nil {
		return nil, fmt.Errorf("%s of rank %d has been replaced: %w", f.path, f.rank, syscall.ESTALE)
	}
	if f.now != f.File {
		_ = f.now.Close()
	}
	f.now, f.mount = after, mount
	return after, nil
}

// rereadPause is the pause before a failed read is repeated with a newer mount: the rank may have overwritten data of the older one.
const rereadPause = 5 * time.Millisecond

// ReadAt reads.
func (f *rankFile) ReadAt(bufs [][]byte, off int64) (int, error) {
	file, err := f.current()
	if err != nil {
		return 0, err
	}
	n, err := file.ReadAt(bufs, off)
	if !errors.Is(err, syscall.ESTALE) {
		return n, err
	}
	time.Sleep(rereadPause)
	if file, err = f.current(); err != nil {
		return 0, err
	}
	return file.ReadAt(bufs, off)
}

// Size returns the size.
func (f *rankFile) Size() (int64, error) {
	a, err := f.Stat()
	return a.Size, err
}

// Stat tells the attributes.
func (f *rankFile) Stat() (microfs.Attr, error) {
	file, err := f.current()
	if err != nil {
		file = f.File // as opened
	}
	a, err := file.Stat()
	a.Ino = tag(f.rank, a.Ino)
	return a, err
}

// SeekData implements SEEK_DATA of lseek(2).
func (f *rankFile) SeekData(off int64) (int64, error) {
	file, err := f.current()
	if err != nil {
		return 0, err
	}
	return file.SeekData(off)
}

// SeekHole implements SEEK_HOLE of lseek(2).
func (f *rankFile) SeekHole(off int64) (int64, error) {
	file, err := f.current()
	if err != nil {
		return 0, err
	}
	return file.SeekHole(off)
}

// SetAttr returns an error: files of ranks are read-only.
func (f *rankFile) SetAttr(microfs.SetAttr) error {
	return &ReadOnlyError{Path: strings.TrimRight(f.u.mount, "/") + f.path, Rank: f.rank}
}

// Close closes the file in all mounts.
func (f *rankFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.File.Close()
	if f.now != f.File {
		err = f.now.Close()
	}
	return err
}
