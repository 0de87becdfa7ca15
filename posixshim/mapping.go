package posixshim

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"nvmecr/internal/ownfd"
	"nvmecr/microfs"
)

// A file that is mapped shared is copied into memory of the kernel (a memfd),
// which all mappings of the file in this process, in its forked children, and in
// processes that it serves (remotemap.go) show. What is written to the file through descriptors goes there as well;
// what is written to the memory goes to the file with msync, munmap,
// MPI_Finalize and the end of the process: what was changed (changes.go). What is in
// the file is always what was there at one of those points, or was written. Of a file
// that nobody writes to by memory the kernel may show the file itself instead (view.go).
type mapping struct {
	memory
	clean memory     // what the memory was when it was read or saved, if there is a writer
	mu    sync.Mutex // in front of what is written to the file, too
	refs  int
	size  int64  // of the file and of the memory
	have  []bool // which chunks have been read from the file

	writer *openFile // what the memory is written through; nil if it may not be written

	view int // descriptor of the kernel's file; -1 if that is not mapped
}

// mapChunk is how much is read at a time when a part of a file is mapped.
const mapChunk = 1 << 20

const page = 4096

// mappings are those of a process.
type mappings struct {
	count atomic.Int32 // mostly 0
	mu    sync.Mutex   // in front of mapping.mu
	files map[microfs.Ino]*mapping
}

// What Map is asked for: NV_MAP_* of shim/wire.h.
const (
	MapShared = 1
	MapWrite  = 2
)

// Map prepares a mapping of [off, off+n) and returns the descriptor to map: for
// a shared one it is the runtime's, until Unmap; for a private one the caller's
// to close. With the bit MapKept it is the runtime's for a private one, too. EBADF, EACCES, ENODEV, EINVAL.
func (p *Process) Map(h Handle, how int, off, n int64) (int, error) {
	f, err := p.files.get(h)
	if err != nil {
		return 0, err
	}
	access := int(f.flags.Load()) & (syscall.O_ACCMODE | unix.O_PATH)
	switch {
	case access&unix.O_PATH != 0:
		return 0, syscall.EBADF
	case access == syscall.O_WRONLY, how == MapShared|MapWrite && access != syscall.O_RDWR:
		return 0, syscall.EACCES
	case f.isDir:
		return 0, syscall.ENODEV
	case off < 0 || off%page != 0 || n <= 0 || off+n < off:
		return 0, syscall.EINVAL
	}
	if fd, ok := p.mapView(f, how, n); ok {
		return fd | MapKept, nil
	}
	if how&MapShared == 0 {
		return p.mapPrivate(f, off, n)
	}
	t := &p.maps
	t.mu.Lock()
	defer t.mu.Unlock()
	ino := f.current().Ino()
	m := t.files[ino]
	if m == nil {
		m = newMapping()
	}
	if m.fd < 0 {
		if err := m.remember(f); err != nil {
			return 0, err
		}
	}
	err = m.fill(p, f, off, n)
	if err == nil && access == syscall.O_RDWR {
		err = m.keepClean()
	}
	if err == nil {
		err = p.Retain(h)
	}
	if err != nil {
		if m.refs == 0 {
			m.free()
		}
		return 0, err
	}
	if access == syscall.O_RDWR && m.writer == nil {
		if err := p.Retain(h); err == nil {
			m.writer = f
		}
	}
	t.add(ino, m)
	return m.fd, nil
}

// add counts one more mapping of a file. The caller holds t.mu.
func (t *mappings) add(ino microfs.Ino, m *mapping) {
	m.refs++
	if t.files == nil {
		t.files = make(map[microfs.Ino]*mapping)
	}
	t.files[ino] = m
	t.count.Store(int32(len(t.files)))
}

func (p *Process) mapPrivate(f *openFile, off, n int64) (int, error) {
	m := newMapping()
	err := m.remember(f)
	if err == nil {
		err = m.fill(p, f, off, n)
	}
	if err != nil {
		m.free()
		return 0, err
	}
	ownfd.Drop(m.fd)
	return m.fd, m.unmap()
}

func newMapping() *mapping {
	return &mapping{memory: memory{fd: -1}, clean: memory{fd: -1}, view: -1}
}

// remember makes memory of the size of a file, with nothing of it yet.
func (m *mapping) remember(f *openFile) error {
	attr, err := f.current().Stat()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.memory, err = newMemory(); err != nil {
		return err
	}
	if err := m.resize(attr.Size, false); err != nil {
		m.forget()
		return err
	}
	return nil
}

// keepClean makes the copy that changes are told by. Until now the memory could not be written.
func (m *mapping) keepClean() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clean.fd >= 0 {
		return nil
	}
	if m.clean, err = newMemory(); err == nil {
		err = m.clean.resize(m.size)
	}
	if err != nil {
		m.clean.free()
		return err
	}
	hole := m.inHole(m.clean.seekData)
	return m.chunks(0, m.size, func(_ int, start, end int64) error {
		if !hole(start, end) {
			copy(m.clean.data[start:end], m.data[start:end])
		}
		return nil
	})
}

// forget gives the memory back.
func (m *mapping) forget() {
	m.memory.free()
	m.clean.free()
	m.size, m.have = 0, nil
}

// free gives everything back.
func (m *mapping) free() {
	if m.fd >= 0 {
		m.forget()
	}
	if m.view >= 0 {
		_ = ownfd.Close(m.view) // it was only read
		m.view = -1
	}
}

// resize makes the memory as long as the file is now. have says that what is
// new is zeros in the file.
func (m *mapping) resize(size int64, have bool) error {
	if size == m.size {
		return nil
	}
	var limit unix.Rlimit // the memory is a file to the kernel, and no program expects SIGXFSZ here
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && size > m.size && uint64(size) > limit.Cur {
		return fmt.Errorf("memory for a mapped file (ulimit -f): %w", syscall.EFBIG)
	}
	if err := errors.Join(m.memory.resize(size), m.clean.resize(size)); err != nil {
		return err
	}
	m.size = size
	chunks := int((size + mapChunk - 1) / mapChunk)
	for len(m.have) < chunks {
		m.have = append(m.have, have)
	}
	m.have = m.have[:chunks]
	return nil
}

// chunks calls do for the chunks of [off, off+n) that the file has.
func (m *mapping) chunks(off, n int64, do func(i int, start, end int64) error) error {
	end := min(m.size, off+n)
	for i := off / mapChunk; i*mapChunk < end; i++ {
		if err := do(int(i), i*mapChunk, min(m.size, (i+1)*mapChunk)); err != nil {
			return err
		}
	}
	return nil
}

// inHole returns a function that says whether there is nothing in [start, end),
// neither in the memory nor in what seekData is of, when it is called with rising ones: of
// a large file with little in it, as LMDB maps, only that little is looked at.
func (m *mapping) inHole(seekData func(int64) (int64, error)) func(start, end int64) bool {
	data := int64(-1)
	return func(start, end int64) bool {
		if data < start {
			data = min(nextData(start, seekData), nextData(start, m.seekData))
		}
		return data >= end
	}
}

// nextData is where seek finds data: behind everything if there is none, and at
// once if that cannot be told.
func nextData(at int64, seek func(int64) (int64, error)) int64 {
	switch data, err := seek(at); {
	case err == nil:
		return data
	case errors.Is(err, syscall.ENXIO):
		return math.MaxInt64
	default:
		return at
	}
}

// fill reads what is not there yet of [off, off+n).
func (m *mapping) fill(p *Process, f *openFile, off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	hole := m.inHole(f.current().SeekData)
	return m.chunks(off, n, func(i int, start, end int64) error {
		if m.have[i] || hole(start, end) {
			m.have[i] = true
			return nil
		}
		to := m.data[start:end]
		if m.clean.fd >= 0 {
			to = m.clean.data[start:end]
		}
		for got := 0; got < len(to); {
			n, err := p.readAt(f, [][]byte{to[got:]}, start+int64(got))
			if err != nil {
				return err
			}
			if n == 0 {
				break // the file has become shorter
			}
			got += n
		}
		copy(m.data[start:end], to)
		m.have[i] = true
		return nil
	})
}

// Unmap notes that one of the mappings that Map was asked for is gone.
func (p *Process) Unmap(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	t := &p.maps
	t.mu.Lock()
	ino := f.current().Ino()
	m := t.files[ino]
	var writer *openFile
	if m != nil {
		if m.refs--; m.refs == 0 {
			delete(t.files, ino)
			t.count.Store(int32(len(t.files)))
			writer = m.writer
			m.free()
			f.viewed.Store(false)
		}
	}
	t.mu.Unlock()
	if writer != nil {
		err = p.release(writer)
	}
	return errors.Join(err, p.release(f))
}

// Msync writes what has changed in [off, off+n) of the memory of a mapped file
// to the file, and makes it durable.
func (p *Process) Msync(h Handle, off, n int64) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	m := p.mapped(f)
	if m == nil || m.writer == nil {
		return nil
	}
	if err := m.save(off, n); err != nil {
		return err
	}
	return f.current().Sync()
}

// saveMapping writes all that has changed in the memory of a file.
func (p *Process) saveMapping(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	if m := p.mapped(f); m != nil && m.writer != nil {
		return m.save(0, math.MaxInt64)
	}
	return nil
}

// SyncMappings does so for all mapped files.
func (p *Process) SyncMappings() error {
	t := &p.maps
	if t.count.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, m := range t.files {
		if m.writer != nil {
			errs = append(errs, m.save(0, math.MaxInt64))
		}
	}
	return errors.Join(errs...)
}

// save writes what was changed.
func (m *mapping) save(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saveLocked(off, n)
}

func (m *mapping) saveLocked(off, n int64) error {
	attr, err := m.writer.current().Stat()
	if err == nil {
		err = m.resize(attr.Size, true) // it may have been truncated by its path
	}
	if err != nil {
		return err
	}
	hole := m.inHole(m.clean.seekData)
	now := make([]byte, min(mapChunk, m.size))
	err = m.chunks(off, n, func(i int, start, end int64) error {
		if !m.have[i] || hole(start, end) {
			return nil
		}
		copy(now, m.data[start:end]) // others may be writing there
		return m.saveChunk(start, m.clean.data[start:end], now[:end-start])
	})
	if err != nil {
		return fmt.Errorf("what was written to the memory of %s, which is mapped, cannot be written to the file: %w", m.writer.path, err)
	}
	return nil
}

// saveChunk writes what in a chunk at start of the file was changed, and notes that in clean.
func (m *mapping) saveChunk(start int64, clean, now []byte) error {
	for _, c := range changes(clean, now) {
		n, err := m.writer.current().WriteAt([][]byte{now[c.start:c.end]}, start+int64(c.start))
		copy(clean[c.start:], now[c.start:c.start+max(n, 0)])
		if err == nil && n < c.end-c.start {
			err = syscall.ENOSPC
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mapped returns the mapping of a file, nil if it has none.
func (p *Process) mapped(f *openFile) *mapping {
	t := &p.maps
	if t.count.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files[f.current().Ino()]
}

// besideMapping calls do, which changes a file in another way than writing to
// it, and brings the memory of one that is mapped up to date.
func (p *Process) besideMapping(f *openFile, do func() error) error {
	m := p.mapped(f)
	if m == nil {
		return do()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writer != nil { // what do leaves of it is what the memory is to have
		if err := m.saveLocked(0, m.size); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	m.renew(f)
	if m.fd < 0 {
		return nil
	}
	attr, err := f.current().Stat()
	if err == nil {
		err = m.resize(attr.Size, true)
	}
	if err != nil {
		return err
	}
	hole := m.inHole(f.current().SeekData)
	return m.chunks(0, m.size, func(i int, start, end int64) error {
		if !m.have[i] || hole(start, end) {
			return nil
		}
		_, err := f.current().ReadAt([][]byte{m.data[start:end]}, start)
		if m.clean.fd >= 0 {
			copy(m.clean.data[start:end], m.data[start:end])
		}
		return err
	})
}

// writeAt writes to a file, and to its memory if it is mapped.
func (p *Process) writeAt(f *openFile, bufs [][]byte, off int64) (int, error) {
	m := p.mapped(f)
	if m == nil {
		return f.current().WriteAt(bufs, off)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := f.current().WriteAt(bufs, off)
	return n, errors.Join(err, m.mirror(f, bufs, off, int64(n)))
}

// append is writeBelow at the end of the file.
func (p *Process) append(f *openFile, bufs [][]byte, limit int64) (int, int64, error) {
	m := p.mapped(f)
	if m == nil {
		return f.current().AppendBelow(bufs, limit)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, end, err := f.current().AppendBelow(bufs, limit)
	return n, end, errors.Join(err, m.mirror(f, bufs, end-int64(n), int64(n)))
}

// mirror takes the n bytes of bufs that were written to f at off into the memory.
func (m *mapping) mirror(f *openFile, bufs [][]byte, off, n int64) error {
	if n <= 0 {
		return nil
	}
	m.renew(f)
	if m.fd < 0 {
		return nil
	}
	if off+n > m.size {
		if err := m.resize(off+n, true); err != nil {
			return err
		}
	}
	for _, b := range bufs {
		b = b[:min(int64(len(b)), n)]
		copy(m.data[off:], b) // of a chunk that was not read it will be read again
		if m.clean.fd >= 0 {
			copy(m.clean.data[off:], b)
		}
		off += int64(len(b))
		n -= int64(len(b))
	}
	return nil
}
