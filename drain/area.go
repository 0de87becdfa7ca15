package drain

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/microfs"
)

// OpenArea returns the level in a microfs that contains nothing else. name is used in messages.
func OpenArea(files *microfs.FS, name string) *Level {
	return &Level{dir: name, root: areaDir{fs: files}}
}

// listBatch is the number of names that one call reads.
const listBatch = 1024

// An areaDir is a directory of a microfs.
type areaDir struct {
	fs  *microfs.FS
	dir string // path from the root
}

func (d areaDir) in(name string) string { return path.Join("/", d.dir, name) }

func (d areaDir) Open(name string, flags int, mode fs.FileMode) (file, error) {
	f, err := d.fs.Open(microfs.RootIno, d.in(name), flags|unix.O_NOFOLLOW, uint32(mode.Perm()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: d.in(name), Err: err}
	}
	return &areaFile{File: f}, nil
}

func (d areaDir) Sub(name string) (directory, error) {
	_, err := d.fs.Stat(microfs.RootIno, d.in(name), false)
	return areaDir{d.fs, d.in(name)}, err
}

func (d areaDir) List() (names []string, err error) {
	return names, d.each(".", func(e microfs.Dirent) error {
		names = append(names, e.Name)
		return nil
	})
}

// each calls f for each entry of a directory.
func (d areaDir) each(name string, f func(microfs.Dirent) error) (err error) {
	dir, err := d.fs.Open(microfs.RootIno, d.in(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	for after := ""; ; {
		entries, err := dir.ReadDir(after, listBatch)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			after = e.Name
			if err := f(e); err != nil {
				return err
			}
		}
	}
}

func (d areaDir) MkdirAll(name string) error {
	if name == "." {
		return nil
	}
	err := d.fs.Mkdir(microfs.RootIno, d.in(name), 0o777)
	if errors.Is(err, syscall.ENOENT) {
		if err = d.MkdirAll(path.Dir(name)); err == nil {
			err = d.fs.Mkdir(microfs.RootIno, d.in(name), 0o777)
		}
	}
	if errors.Is(err, syscall.EEXIST) {
		err = nil
	}
	return err
}

func (d areaDir) Rename(from, to string) error {
	return d.fs.Rename(microfs.RootIno, d.in(from), microfs.RootIno, d.in(to), 0)
}

func (d areaDir) Link(from, to string) error {
	return d.fs.Link(microfs.RootIno, d.in(from), microfs.RootIno, d.in(to), false)
}

func (d areaDir) Remove(name string) error { return d.fs.Unlink(microfs.RootIno, d.in(name)) }

func (d areaDir) RemoveAll(name string) error {
	err := d.fs.Unlink(microfs.RootIno, d.in(name))
	if errors.Is(err, syscall.EISDIR) {
		err = d.each(name, func(e microfs.Dirent) error { return d.RemoveAll(path.Join(name, e.Name)) })
		err = errors.Join(err, d.fs.Rmdir(microfs.RootIno, d.in(name)))
	}
	if errors.Is(err, syscall.ENOENT) {
		err = nil
	}
	return err
}

func (d areaDir) Chtimes(name string, modified time.Time) error {
	return d.fs.SetAttr(microfs.RootIno, d.in(name), false, microfs.SetAttr{Atime: &modified, Mtime: &modified})
}

func (d areaDir) Size(name string) (int64, error) {
	a, err := d.fs.Stat(microfs.RootIno, d.in(name), false)
	if err == nil && a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = fmt.Errorf("%s: %w: it is not a regular file", d.in(name), ErrDamaged)
	}
	return a.Size, err
}

func (d areaDir) Sync(string) error { return d.fs.Sync() }

func (d areaDir) Close() error { return nil }

// An areaFile is a file of a microfs. Write appends to the data of earlier calls of Write.
type areaFile struct {
	*microfs.File
	end int64
}

func (f *areaFile) ReadAt(p []byte, off int64) (int, error) { return ReadAt(f.File, p, off) }

// ReadAt implements io.ReaderAt for a file that reads into several buffers and may read less than requested, as the
// files of a microfs or a tree do.
func ReadAt(f interface {
	ReadAt(bufs [][]byte, off int64) (int, error)
}, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := f.ReadAt([][]byte{p[n:]}, off+int64(n))
		if err != nil {
			return n, err
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

func (f *areaFile) WriteAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		m, err := f.File.WriteAt([][]byte{p[n:]}, off+int64(n))
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

func (f *areaFile) Write(p []byte) (n int, err error) {
	n, err = f.WriteAt(p, f.end)
	f.end += int64(n)
	return n, err
}

func (f *areaFile) Chmod(mode fs.FileMode) error {
	bits := uint32(mode.Perm())
	return f.SetAttr(microfs.SetAttr{Mode: &bits})
}

func (f *areaFile) Data(off int64) (from, to int64, err error) {
	from, err = f.SeekData(off)
	if err == nil {
		to, err = f.SeekHole(from)
	}
	if errors.Is(err, syscall.ENXIO) {
		return pastEnd, pastEnd, nil
	}
	return from, to, err
}

// Clone is not supported: each block of a microfs belongs to one file.
func (f *areaFile) Clone(file, int64, int64) error { return syscall.ENOTSUP }

// Forget does nothing, since reads go to the device.
func (f *areaFile) Forget(int64, int64) {}
