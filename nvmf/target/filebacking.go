package target

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
	"nvmecr/nvmf/filedev"
)

// file is a Backing over a mapped file or block device. The mapping and the
// file calls below see the same page cache. Go code never touches the mapping
// (see the package comment).
type file struct {
	f        *os.File
	mapping  []byte
	identity nvmf.Identity

	// damaged is set by the first failed sync: the kernel reports such a
	// failure once and forgets the pages, so no later one can be believed.
	damaged atomic.Pointer[error]
}

// OpenFile returns a Backing over an existing file or block device. Its UUID is the one that
// filedev gives the file. A completed write is in the page cache. So the namespace reports a
// volatile write cache, and its data survives the end of the target's process.
//
// It fails with EBUSY if the file is a Backing already, here or in another
// process: as two namespaces it would be formatted twice.
func OpenFile(path string, lbaSize nvmf.Bytes) (Backing, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("namespace file: %w", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b, err := newFile(f, lbaSize)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("namespace file %s: %w", path, err), f.Close())
	}
	return b, nil
}

// lockFile takes the lock that a target holds on a file it serves. It ends with the file's last
// descriptor.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("namespace file %s is served already, by another target or under another name: serve it once: %w", f.Name(), unix.EBUSY)
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return nil // a file system without locks
	case err != nil:
		return fmt.Errorf("namespace file %s: lock: %w", f.Name(), err)
	}
	return nil
}

func newFile(f *os.File, lbaSize nvmf.Bytes) (*file, error) {
	size, err := filedev.Size(f)
	if err != nil {
		return nil, err
	}
	if err := checkGeometry(size, lbaSize); err != nil {
		return nil, err
	}
	size = size.AlignDown(lbaSize)
	id, err := filedev.UUID(f)
	if err != nil {
		return nil, err
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return &file{f: f, mapping: mapping, identity: nvmf.Identity{
		UUID: id, LBASize: lbaSize, Blocks: nvmf.LBA(size / lbaSize),
		VolatileWriteCache: true, CanDeallocate: filedev.CanDeallocate(f, size),
	}}, nil
}

func (b *file) Identity() *nvmf.Identity { return &b.identity }
func (b *file) Memory() []byte           { return b.mapping }

func (b *file) ReadAt(p []byte, offset int64) error {
	_, err := b.f.ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("file %s ends before byte %d, was it truncated?: %w", b.f.Name(), offset+int64(len(p)), unix.EIO)
	}
	return err
}

func (b *file) WriteAt(p []byte, offset int64) error {
	_, err := b.f.WriteAt(p, offset)
	return err
}

func (b *file) Sync(offset, length int64) error {
	if e := b.damaged.Load(); e != nil {
		return *e
	}
	var err error
	if length == 0 {
		err = unix.Fdatasync(int(b.f.Fd()))
	} else {
		// msync wants whole pages and does not touch them.
		start := offset &^ 4095
		err = unix.Msync(b.mapping[start:offset+length], unix.MS_SYNC)
	}
	if err != nil {
		err = fmt.Errorf("sync of %s, writes since the last one may be lost: %w", b.f.Name(), err)
		b.damaged.CompareAndSwap(nil, &err)
	}
	return err
}

const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

func (b *file) Zero(offset, length int64) error {
	err := unix.Fallocate(int(b.f.Fd()), punch, offset, length)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	zeros := make([]byte, min(length, 1<<20))
	for length > 0 {
		n := min(length, int64(len(zeros)))
		if err := b.WriteAt(zeros[:n], offset); err != nil {
			return err
		}
		offset, length = offset+n, length-n
	}
	return nil
}

func (b *file) Deallocate(offset, length int64) error {
	err := unix.Fallocate(int(b.f.Fd()), punch, offset, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // it was advice
	}
	return err
}

// explain allocates the range, so that the file system gives the reason for a page fault that
// failed.
func (b *file) explain(offset, length int64) error {
	err := unix.Fallocate(int(b.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, offset, length)
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("page fault in %s, was it truncated?: %w", b.f.Name(), unix.EIO)
	}
	return err
}

func (b *file) Close() error {
	return errors.Join(unix.Munmap(b.mapping), b.f.Close())
}
