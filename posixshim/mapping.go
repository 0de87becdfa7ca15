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

// A file that is mapped shared is copied into a memfd. All mappings of the file show that memory: those of this process, of its
// forked children, and of the processes that it serves (remotemap.go). Writes to the file through descriptors are copied to the
// memory. Changes of the memory (changes.go) are written to the file by msync, munmap, MPI_Finalize and at the end of the
// process, and at no other time. A file that is not written by way of memory may be mapped from the view instead (view.go).
type mapping struct {
	memory
	clean  memory     // a copy of the memory as it was when it was last read or written back, if there is a writer
	mu     sync.Mutex // guards the fields but refs; also held while the file is written through descriptors
	refs   int        // mappings; guarded by mappings.mu
	size   int64      // of the file and of the memory
	loaded []bool     // which chunks have been read from the file

	writer *openFile // the open file by which changes are written; nil: no mapping is writable

	view int // descriptor of the file in the view; -1: none
}

// mapChunk is how much is read at a time when a part of a file is mapped.
const mapChunk = 1 << 20

const page = 4096

// mappings has the mapped files of a process.
type mappings struct {
	count atomic.Int32 // len(files); mostly 0, which is read without mu
	mu    sync.Mutex   // taken before mapping.mu
	files map[microfs.Ino]*mapping
}

// The bits of how in Map: NV_MAP_* of shim/wire.h.
const (
	MapShared = 1
	MapWrite  = 2
)

// Map prepares a mapping of [off, off+n) and returns the descriptor to map. The descriptor of a shared mapping stays open until
// Unmap. The caller closes that of a private mapping, unless the result has the bit MapKept: then it stays open until Unmap too.
// Errors are EBADF, EACCES, ENODEV and EINVAL.
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
		if err := m.allocate(f); err != nil {
			return 0, err
		}
	}
	err = m.load(p, f, off, n)
	if err == nil && access == syscall.O_RDWR {
		err = m.allocateClean()
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
	err := m.allocate(f)
	if err == nil {
		err = m.load(p, f, off, n)
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

// allocate makes memory of the size of a file. No chunk is loaded.
func (m *mapping) allocate(f *openFile) error {
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
		m.freeMemory()
		return err
	}
	return nil
}

// allocateClean makes the copy by which changes are found. It is called before the memory can be written.
func (m *mapping) allocateClean() (err error) {
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

// freeMemory frees the memory and the copy.
func (m *mapping) freeMemory() {
	m.memory.free()
	m.clean.free()
	m.size, m.loaded = 0, nil
}

// free frees the memory and closes the descriptor of the view.
func (m *mapping) free() {
	if m.fd >= 0 {
		m.freeMemory()
	}
	if m.view >= 0 {
		_ = ownfd.Close(m.view) // it was only read
		m.view = -1
	}
}

// resize gives the memory the size of the file. loaded says that new chunks are zero in the file and need not be read.
func (m *mapping) resize(size int64, loaded bool) error {
	if size == m.size {
		return nil
	}
	var limit unix.Rlimit // RLIMIT_FSIZE applies to a memfd: ftruncate would raise SIGXFSZ, which no program expects here
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && size > m.size && uint64(size) > limit.Cur {
		return fmt.Errorf("memory for a mapped file (ulimit -f): %w", syscall.EFBIG)
	}
	if err := errors.Join(m.memory.resize(size), m.clean.resize(size)); err != nil {
		return err
	}
	m.size = size
	chunks := int((size + mapChunk - 1) / mapChunk)
	for len(m.loaded) < chunks {
		m.loaded = append(m.loaded, loaded)
	}
	m.loaded = m.loaded[:chunks]
	return nil
}

// chunks calls do for the chunks of [off, off+n) up to the end of the file.
func (m *mapping) chunks(off, n int64, do func(i int, start, end int64) error) error {
	end := min(m.size, off+n)
	for i := off / mapChunk; i*mapChunk < end; i++ {
		if err := do(int(i), i*mapChunk, min(m.size, (i+1)*mapChunk)); err != nil {
			return err
		}
	}
	return nil
}

// inHole returns a function that says whether [start, end) is a hole both in the memory and in the file of seekData. It is called
// with ascending ranges. It makes sparse files cheap: LMDB maps a large file with little data.
func (m *mapping) inHole(seekData func(int64) (int64, error)) func(start, end int64) bool {
	data := int64(-1)
	return func(start, end int64) bool {
		if data < start {
			data = min(nextData(start, seekData), nextData(start, m.seekData))
		}
		return data >= end
	}
}

// nextData returns the offset of the first data from at on: MaxInt64 if there is none, at if seek fails.
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

// load reads the chunks of [off, off+n) that have not been read yet.
func (m *mapping) load(p *Process, f *openFile, off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	hole := m.inHole(f.current().SeekData)
	return m.chunks(off, n, func(i int, start, end int64) error {
		if m.loaded[i] || hole(start, end) {
			m.loaded[i] = true
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
		m.loaded[i] = true
		return nil
	})
}

// Unmap drops a mapping that Map has prepared.
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
			f.mappedFromView.Store(false)
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
	if err := m.writeBack(off, n); err != nil {
		return err
	}
	return f.current().Sync()
}

// writeBackMapping writes all changes of the memory of a file to the file.
func (p *Process) writeBackMapping(h Handle) error {
	f, err := p.files.get(h)
	if err != nil {
		return err
	}
	if m := p.mapped(f); m != nil && m.writer != nil {
		return m.writeBack(0, math.MaxInt64)
	}
	return nil
}

// SyncMappings writes the changes of the memory of all mapped files to the files.
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
			errs = append(errs, m.writeBack(0, math.MaxInt64))
		}
	}
	return errors.Join(errs...)
}

// writeBack writes the changes in [off, off+n) to the file.
func (m *mapping) writeBack(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writeBackLocked(off, n)
}

// writeBackLocked is writeBack. The caller holds m.mu.
func (m *mapping) writeBackLocked(off, n int64) error {
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
		if !m.loaded[i] || hole(start, end) {
			return nil
		}
		copy(now, m.data[start:end]) // the application may be writing to the memory
		return m.writeBackChunk(start, m.clean.data[start:end], now[:end-start])
	})
	if err != nil {
		return fmt.Errorf("what was written to the memory of %s, which is mapped, cannot be written to the file: %w", m.writer.path, err)
	}
	return nil
}

// writeBackChunk writes the changes of a chunk at start of the file, and updates clean.
func (m *mapping) writeBackChunk(start int64, clean, now []byte) error {
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

// mapped returns the mapping of a file; nil if it has none.
func (p *Process) mapped(f *openFile) *mapping {
	t := &p.maps
	if t.count.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files[f.current().Ino()]
}

// changeMapped calls do, which changes a file by another call than write. If the file is mapped it then updates the memory.
func (p *Process) changeMapped(f *openFile, do func() error) error {
	m := p.mapped(f)
	if m == nil {
		return do()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writer != nil { // changes of the memory have to be in the file before do
		if err := m.writeBackLocked(0, m.size); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	m.refreshView(f)
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
		if !m.loaded[i] || hole(start, end) {
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

// mirror copies to the memory the n bytes of bufs that were written to f at off.
func (m *mapping) mirror(f *openFile, bufs [][]byte, off, n int64) error {
	if n <= 0 {
		return nil
	}
	m.refreshView(f)
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
		copy(m.data[off:], b) // a chunk that is not loaded is read from the file later, with these bytes
		if m.clean.fd >= 0 {
			copy(m.clean.data[off:], b)
		}
		off += int64(len(b))
		n -= int64(len(b))
	}
	return nil
}
