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

// scratch holds what a call hands to microfs, so that none allocates. A call
// owns it from Get to Put; the buffers are the application's and are let go
// before Put.
type scratch struct {
	one [1][]byte
	vec [][]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func takeScratch(buf []byte) *scratch {
	s := scratches.Get().(*scratch)
	s.one[0] = buf
	return s
}

func (s *scratch) give() {
	s.one[0] = nil
	clear(s.vec)
	scratches.Put(s)
}

// reader and writer return the open file if it was opened for that.
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

// readAt reads from the mount there is now. Where another process writes, the
// end of the file, or blocks that are not what they were, are a reason to look
// again.
func (p *Process) readAt(f *openFile, bufs [][]byte, off int64) (int, error) {
	f.at.revalidate()
	n, moved, err := p.readOnce(f, bufs, off)
	if moved {
		n, _, err = p.readOnce(f, bufs, off)
	}
	// A page of a mapping that cannot be read is SIGBUS: the writer may change the file as often as it likes.
	for begin := time.Now(); n == 0 && Errno(err) == syscall.ESTALE && p.moves(f) && time.Since(begin) < movingTime; {
		n, _, err = p.readOnce(f, bufs, off)
	}
	return n, err
}

// movingTime is how long a process that revalidates tries to read what is being changed.
const movingTime = 10 * time.Second

// moves says of a file that could not be read where it was that it is somewhere else: it has not stayed in a mount
// that was replaced, nor is it gone. What other ranks have says so itself.
func (p *Process) moves(f *openFile) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, gone := f.current().(staleFile)
	return p.Revalidate && !gone && f.retired == nil && f.current().Ino()>>ViewShift == 0
}

// readOnce reads from the mount there is now. moved says that there is another one by then, where nothing was read.
func (p *Process) readOnce(f *openFile, bufs [][]byte, off int64) (n int, moved bool, err error) {
	file := f.file.Load()
	n, err = readFrom(*file, bufs, off)
	if n > 0 || f.at.writes() {
		return n, false, err
	}
	if errors.Is(err, syscall.ESTALE) { // the writer has used the place for something else
		f.at.stale.Store(true)
	}
	if _, e := f.at.acquire(false); e != nil {
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

// Advise is posix_fadvise(2): what will be read, of n bytes at off; n of 0 is all that
// follows.
func (p *Process) Advise(h Handle, off, n int64, advice int) error {
	f, err := p.described(h)
	if err != nil {
		return err
	}
	if n < 0 || advice < unix.FADV_NORMAL || advice > unix.FADV_NOREUSE {
		return syscall.EINVAL
	}
	return f.current().Advise(off, n, advice)
}

// Read reads at the offset and moves it on. 0 is the end of the file.
func (p *Process) Read(h Handle, buf []byte) (int, error) {
	s := takeScratch(buf)
	n, err := p.read(h, s.one[:], -1)
	s.give()
	return n, err
}

// Pread reads at off.
func (p *Process) Pread(h Handle, buf []byte, off int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	s := takeScratch(buf)
	n, err := p.read(h, s.one[:], off)
	s.give()
	return n, err
}

// Readv reads into several buffers at off, or at the offset if off is -1.
func (p *Process) Readv(h Handle, iov []syscall.Iovec, off int64) (int, error) {
	s := takeScratch(nil)
	bufs, err := s.vectors(iov)
	n := 0
	if err == nil {
		n, err = p.read(h, bufs, off)
	}
	s.give()
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

// Write writes at the offset, or at the end with O_APPEND, and moves the
// offset on. What would make the file larger than limit is not written: ErrFileTooLarge if
// that is where it begins.
func (p *Process) Write(h Handle, buf []byte, limit int64) (int, error) {
	s := takeScratch(buf)
	n, err := p.write(h, s.one[:], -1, limit)
	s.give()
	return n, err
}

// Pwrite writes at off. With O_APPEND it appends, as Linux does.
func (p *Process) Pwrite(h Handle, buf []byte, off, limit int64) (int, error) {
	if off < 0 {
		return 0, syscall.EINVAL
	}
	s := takeScratch(buf)
	n, err := p.write(h, s.one[:], off, limit)
	s.give()
	return n, err
}

// Writev writes several buffers at off, or at the offset if off is -1.
func (p *Process) Writev(h Handle, iov []syscall.Iovec, off, limit int64) (int, error) {
	s := takeScratch(nil)
	bufs, err := s.vectors(iov)
	n := 0
	if err == nil {
		n, err = p.write(h, bufs, off, limit)
	}
	s.give()
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
			return written(p.writeBelow(f, bufs, off, limit))
		}
		n, _, err := p.append(f, bufs, limit)
		return written(n, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if atEnd {
		n, end, err := p.append(f, bufs, limit)
		if n > 0 {
			f.offset = end
		}
		return written(n, err)
	}
	n, err := p.writeBelow(f, bufs, f.offset, limit)
	f.offset += int64(n)
	return written(n, err)
}

// writeBelow is writeAt before limit.
func (p *Process) writeBelow(f *openFile, bufs [][]byte, off, limit int64) (int, error) {
	bufs, err := microfs.Below(bufs, off, limit)
	if err != nil {
		return 0, err
	}
	return p.writeAt(f, bufs, off)
}

// NoLimit is the limit of a process that has none for the size of files.
const NoLimit int64 = vfs.NoLimit

// mayGrow says whether a file of these attributes may become so large: ErrFileTooLarge if
// not. A larger one may stay what it is.
func mayGrow(stat func() (microfs.Attr, error), size, limit int64) error {
	if size <= limit {
		return nil
	}
	attr, err := stat()
	if err == nil && size > attr.Size {
		err = microfs.ErrFileTooLarge
	}
	return err
}

// written is the result of a write: a short one tells of the error next time.
func written(n int, err error) (int, error) {
	if n > 0 {
		return n, nil
	}
	return n, err
}

// overflows says that there is no offset behind the last of the bytes at off.
func overflows(bufs [][]byte, off int64) bool {
	for _, b := range bufs {
		if off > math.MaxInt64-int64(len(b)) {
			return true
		}
		off += int64(len(b))
	}
	return false
}

// vectors turns an iovec into slices, in memory of s.
func (s *scratch) vectors(iov []syscall.Iovec) ([][]byte, error) {
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

// Seek is lseek(2). In a directory the offset counts names.
func (p *Process) Seek(h Handle, off int64, whence int) (int, error) {
	f, err := p.described(h)
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
		f.listing, f.whole = nil, false
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
