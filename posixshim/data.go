package posixshim

import (
	"errors"
	"io"
	"math"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// scratch has the slices that a call passes to microfs, so that no call allocates memory. A call has it from getScratch to put. The
// buffers are the application's; put drops the references to them.
type scratch struct {
	one [1][]byte
	vec [][]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func getScratch(buf []byte) *scratch {
	s := scratches.Get().(*scratch)
	s.one[0] = buf
	return s
}

func (s *scratch) put() {
	s.one[0] = nil
	clear(s.vec)
	scratches.Put(s)
}

// reader and writer return the open file of a handle if it was opened for reading or writing; EBADF if not.
func (p *Process) reader(h Handle) (*openFile, error) {
	f, err := p.files.get(h)
	if err == nil && f.flags.Load()&syscall.O_ACCMODE == syscall.O_WRONLY {
		return nil, syscall.EBADF
	}
	return f, err
}

func (p *Process) writer(h Handle) (*openFile, error) {
	f, err := p.files.get(h)
	if err == nil && f.flags.Load()&syscall.O_ACCMODE == syscall.O_RDONLY {
		return nil, syscall.EBADF
	}
	return f, err
}

// readAt reads from the current mount. If that is a mount for reading and nothing was read, it checks whether another process has
// changed the partition, and reads once more: the file may have become longer, or its blocks may have moved.
func (p *Process) readAt(f *openFile, bufs [][]byte, off int64) (int, error) {
	f.mountPoint.revalidate()
	n, moved, err := p.readOnce(f, bufs, off)
	if moved {
		n, _, err = p.readOnce(f, bufs, off)
	}
	// The writer may move the blocks again and again. An error would be SIGBUS to a process that reads a mapped page.
	for begin := time.Now(); n == 0 && Errno(err) == syscall.ESTALE && p.hasMoved(f) && time.Since(begin) < rereadTime; {
		n, _, err = p.readOnce(f, bufs, off)
	}
	return n, err
}

// rereadTime is how long a process with Revalidate tries to read a file that is being changed.
const rereadTime = 10 * time.Second

// hasMoved says whether a file whose blocks could not be read may be elsewhere in the partition: it exists, and is open in the
// current mount. Files of other ranks report that themselves.
func (p *Process) hasMoved(f *openFile) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, gone := f.current().(staleFile)
	return p.Revalidate && !gone && f.retired == nil && f.current().Ino()>>ViewShift == 0
}

// readOnce reads from the current mount. moved says that nothing was read, and that the mount has been replaced since.
func (p *Process) readOnce(f *openFile, bufs [][]byte, off int64) (n int, moved bool, err error) {
	file := f.file.Load()
	n, err = readFrom(*file, bufs, off)
	if n > 0 || f.mountPoint.isWriter() {
		return n, false, err
	}
	if errors.Is(err, syscall.ESTALE) { // the writer has reused the blocks
		f.mountPoint.stale.Store(true)
	}
	if _, e := f.mountPoint.acquire(false); e != nil {
		return n, false, err
	}
	p.mu.RUnlock()
	return n, f.file.Load() != file, err
}

// readFrom reads into memory of the application.
func readFrom(file vfs.File, bufs [][]byte, off int64) (int, error) {
	size, err := file.Size()
	if err != nil {
		return 0, err
	}
	if bufs, err = writable(bufs, size-off); err != nil {
		return 0, err
	}
	return file.ReadAt(bufs, off)
}

// Advise is posix_fadvise(2) for n bytes at off; if n is 0, up to the end of the file.
func (p *Process) Advise(h Handle, off, n int64, advice int) error {
	f, err := p.getForIO(h)
	if err != nil {
		return err
	}
	if n < 0 || advice < unix.FADV_NORMAL || advice > unix.FADV_NOREUSE {
		return syscall.EINVAL
	}
	return f.current().Advise(off, n, advice)
}

// Read reads at the offset and advances it. It returns 0 at the end of the file.
func (p *Process) Read(h Handle, buf []byte) (int, error) {
	s := getScratch(buf)
	n, err := p.read(h, s.one[:], -1)
	s.put()
	return n, err
}

// Pread reads at off.
func (p *Process) Pread(h Handle, buf []byte, off int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	s := getScratch(buf)
	n, err := p.read(h, s.one[:], off)
	s.put()
	return n, err
}

// Readv reads into several buffers at off, or at the offset if off is -1.
func (p *Process) Readv(h Handle, iov []syscall.Iovec, off int64) (int, error) {
	s := getScratch(nil)
	bufs, err := s.slices(iov)
	n := 0
	if err == nil {
		n, err = p.read(h, bufs, off)
	}
	s.put()
	return n, err
}

func (p *Process) read(h Handle, bufs [][]byte, off int64) (int, error) {
	f, err := p.reader(h)
	switch {
	case err != nil:
		return 0, err
	case f.isDir:
		return 0, syscall.EISDIR
	case overflows(bufs, off):
		return 0, syscall.EINVAL
	case off >= 0:
		return p.readAt(f, bufs, off)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := p.readAt(f, bufs, f.offset)
	f.offset += int64(n)
	if n > 0 {
		return n, nil
	}
	return n, err
}

// Write writes at the offset, or at the end with O_APPEND, and advances the offset. It writes no bytes beyond limit. It fails with
// microfs.ErrFileTooLarge if the first byte is beyond limit.
func (p *Process) Write(h Handle, buf []byte, limit int64) (int, error) {
	s := getScratch(buf)
	n, err := p.write(h, s.one[:], -1, limit)
	s.put()
	return n, err
}

// Pwrite writes at off. With O_APPEND it appends, as Linux does.
func (p *Process) Pwrite(h Handle, buf []byte, off, limit int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	s := getScratch(buf)
	n, err := p.write(h, s.one[:], off, limit)
	s.put()
	return n, err
}

// Writev writes several buffers at off, or at the offset if off is -1.
func (p *Process) Writev(h Handle, iov []syscall.Iovec, off, limit int64) (int, error) {
	s := getScratch(nil)
	bufs, err := s.slices(iov)
	n := 0
	if err == nil {
		n, err = p.write(h, bufs, off, limit)
	}
	s.put()
	return n, err
}

func (p *Process) write(h Handle, bufs [][]byte, off, limit int64) (int, error) {
	f, err := p.writer(h)
	if err != nil {
		return 0, err
	}
	if overflows(bufs, off) {
		return 0, syscall.EINVAL
	}
	if bufs, err = readable(bufs); err != nil {
		return 0, err
	}
	atEnd := f.flags.Load()&syscall.O_APPEND != 0
	if off >= 0 {
		if !atEnd {
			return shortWrite(p.writeBelow(f, bufs, off, limit))
		}
		n, _, err := p.append(f, bufs, limit)
		return shortWrite(n, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if atEnd {
		n, end, err := p.append(f, bufs, limit)
		if n > 0 {
			f.offset = end
		}
		return shortWrite(n, err)
	}
	n, err := p.writeBelow(f, bufs, f.offset, limit)
	f.offset += int64(n)
	return shortWrite(n, err)
}

// writeBelow is writeAt without the bytes beyond limit.
func (p *Process) writeBelow(f *openFile, bufs [][]byte, off, limit int64) (int, error) {
	bufs, err := microfs.Below(bufs, off, limit)
	if err != nil {
		return 0, err
	}
	return p.writeAt(f, bufs, off)
}

// NoLimit is the limit of a process whose RLIMIT_FSIZE is RLIM_INFINITY.
const NoLimit int64 = vfs.NoLimit

// checkGrowth fails with ErrFileTooLarge if size is above limit and above the size of the file: a file that is larger already may
// be truncated.
func checkGrowth(stat func() (microfs.Attr, error), size, limit int64) error {
	if size <= limit {
		return nil
	}
	attr, err := stat()
	if err == nil && size > attr.Size {
		err = microfs.ErrFileTooLarge
	}
	return err
}

// shortWrite returns the result of a write. After a short write the error is left to the next call.
func shortWrite(n int, err error) (int, error) {
	if n > 0 {
		return n, nil
	}
	return n, err
}

// overflows says whether the end of bufs at off exceeds the largest offset.
func overflows(bufs [][]byte, off int64) bool {
	for _, b := range bufs {
		if off > math.MaxInt64-int64(len(b)) {
			return true
		}
		off += int64(len(b))
	}
	return false
}

// slices turns an iovec into slices, in memory of s.
func (s *scratch) slices(iov []syscall.Iovec) ([][]byte, error) {
	s.vec = s.vec[:0]
	var total uint64
	for i := range iov {
		n := uint64(iov[i].Len)
		if n > math.MaxInt64 || total+n > math.MaxInt64 {
			return nil, syscall.EINVAL
		}
		n = min(n, maxTransfer-total)
		total += n
		if n > 0 && iov[i].Base == nil {
			return nil, syscall.EFAULT
		}
		if n > 0 {
			s.vec = append(s.vec, sliceOf(iov[i].Base, int(n)))
		}
	}
	return s.vec, nil
}

// Seek is lseek(2). The offset of a directory is an index of names.
func (p *Process) Seek(h Handle, off int64, whence int) (int, error) {
	f, err := p.getForIO(h)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		off, err = add(f.offset, off)
	case io.SeekEnd:
		attr, e := f.current().Stat()
		if e != nil {
			return 0, e
		}
		off, err = add(attr.Size, off)
	case unix.SEEK_DATA:
		off, err = f.current().SeekData(off)
	case unix.SEEK_HOLE:
		off, err = f.current().SeekHole(off)
	default:
		return 0, syscall.EINVAL
	}
	switch {
	case err != nil:
		return 0, err
	case off < 0:
		return 0, syscall.EINVAL
	case f.isDir && off == 0:
		f.listing, f.listedAll = nil, false
	}
	f.offset = off
	return int(off), nil
}

func add(base, off int64) (int64, error) {
	sum := base + off
	if off > 0 && sum < base {
		return 0, syscall.EINVAL // as on Linux; EOVERFLOW in POSIX
	}
	return sum, nil
}
