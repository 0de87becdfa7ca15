package drain

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A directory stores the sets of a level. Names in it are relative paths, and none leads out of it.
type directory interface {
	Open(name string, flags int, mode fs.FileMode) (file, error)
	// Sub opens a subdirectory. The caller closes it.
	Sub(name string) (directory, error)
	// List returns the names in the directory, sorted.
	List() ([]string, error)
	MkdirAll(name string) error
	Rename(from, to string) error
	// Link gives a file a second name. If the name exists, the error wraps fs.ErrExist. If the file system has no hard links, the error
	// wraps errNoLinks.
	Link(from, to string) error
	Remove(name string) error
	RemoveAll(name string) error
	Chtimes(name string, modified time.Time) error
	// Size returns the size of a file. The error for anything else wraps ErrDamaged.
	Size(name string) (int64, error)
	// Sync makes the names in a directory durable.
	Sync(name string) error
	Close() error
}

// A file is an open file of a directory. Write appends, WriteAt writes at an offset.
type file interface {
	io.Writer
	io.WriterAt
	io.ReaderAt
	io.Closer
	Truncate(size int64) error
	Chmod(mode fs.FileMode) error
	Sync() error
	// Data returns the first range from off on that is not a hole; a range at pastEnd if there is none.
	Data(off int64) (from, to int64, err error)
	// Clone makes a range share its blocks with the same range of another file, until one of them is written to.
	Clone(from file, off, n int64) error
	// Forget drops a durable range from caches, as far as possible, so that reads go to the storage.
	Forget(off, n int64)
}

// errNoLinks means that the file system has no hard links, as some network file systems.
var errNoLinks = errors.New("no hard links")

// pastEnd is the offset that Data returns if there is no data.
const pastEnd = 1<<63 - 1

// readFile returns the content of a file.
func readFile(d directory, name string) ([]byte, error) { return readFrom(d, name, 0) }

// readFrom returns the content of a file from an offset on.
func readFrom(d directory, name string, off int64) (text []byte, err error) {
	f, err := d.Open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	text, err = io.ReadAll(io.NewSectionReader(f, off, pastEnd-off))
	return text, errors.Join(err, f.Close())
}

// A hostDir is a directory of a file system of the host.
type hostDir struct{ *os.Root }

// named returns an error with the whole path. The errors of an os.Root have only the path relative to the root.
func (d hostDir) named(err error) error {
	whole := func(name string) string {
		if filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(d.Name(), name)
	}
	switch e := err.(type) {
	case *fs.PathError:
		return &fs.PathError{Op: e.Op, Path: whole(e.Path), Err: e.Err}
	case *os.LinkError:
		return &os.LinkError{Op: e.Op, Old: whole(e.Old), New: whole(e.New), Err: e.Err}
	}
	return err
}

func (d hostDir) Open(name string, flags int, mode fs.FileMode) (file, error) {
	f, err := d.OpenFile(name, flags, mode)
	if err != nil {
		return nil, d.named(err)
	}
	return hostFile{f}, nil
}

func (d hostDir) Sub(name string) (directory, error) {
	sub, err := d.OpenRoot(name)
	if err != nil {
		return nil, d.named(err)
	}
	return hostDir{sub}, nil
}

func (d hostDir) List() (names []string, err error) {
	entries, err := fs.ReadDir(d.FS(), ".")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, d.named(err)
}

func (d hostDir) MkdirAll(name string) error { return d.named(d.Root.MkdirAll(name, 0o777)) }

func (d hostDir) Rename(from, to string) error { return d.named(d.Root.Rename(from, to)) }

func (d hostDir) Link(from, to string) error {
	err := d.named(d.Root.Link(from, to))
	for _, e := range []error{syscall.EPERM, syscall.ENOTSUP, syscall.ENOSYS, syscall.EMLINK} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errNoLinks, err)
		}
	}
	return err
}

func (d hostDir) Remove(name string) error { return d.named(d.Root.Remove(name)) }

func (d hostDir) RemoveAll(name string) error { return d.named(d.Root.RemoveAll(name)) }

func (d hostDir) Chtimes(name string, modified time.Time) error {
	return d.named(d.Root.Chtimes(name, modified, modified))
}

func (d hostDir) Size(name string) (int64, error) {
	info, err := d.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w: it is not a regular file", name, ErrDamaged)
	}
	if err != nil {
		return 0, d.named(err)
	}
	return info.Size(), nil
}

func (d hostDir) Sync(name string) error {
	f, err := d.Root.Open(name)
	if err != nil {
		return d.named(err)
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) {
		err = nil // some network file systems cannot sync a directory: its names are on their servers
	}
	return errors.Join(err, f.Close())
}

// changed returns when something in a directory was last changed.
func (d hostDir) changed(name string) (last time.Time, err error) {
	err = fs.WalkDir(d.FS(), name, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
		return err
	})
	return last, err
}

// A hostFile is a file of a file system of the host.
type hostFile struct{ *os.File }

func (f hostFile) Data(off int64) (from, to int64, err error) {
	from, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if err == nil {
		to, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	}
	switch {
	case errors.Is(err, syscall.ENXIO): // a hole up to the end
		return pastEnd, pastEnd, nil
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP): // a file system without holes
		return off, pastEnd, nil
	}
	return from, to, err
}

func (f hostFile) Clone(from file, off, n int64) error {
	other, ok := from.(hostFile)
	if !ok {
		return syscall.EXDEV
	}
	return unix.IoctlFileCloneRange(int(f.Fd()), &unix.FileCloneRange{
		Src_fd: int64(other.Fd()), Src_offset: uint64(off), Src_length: uint64(n), Dest_offset: uint64(off),
	})
}

func (f hostFile) Forget(off, n int64) { _ = unix.Fadvise(int(f.Fd()), off, n, unix.FADV_DONTNEED) }
