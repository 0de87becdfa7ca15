package filedev

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"nvmecr/nvmf"
)

// chunk is the size of the unit in which a file on tmpfs is allocated and mapped.
const chunk = 64 << 10

// mapped is a file on tmpfs, mapped into this process. Copying through the mapping
// takes half the time of a system call, which looks up and locks each page. Memory is
// allocated before bytes are copied to it, so that a lack of memory is an error, not a
// signal.
type mapped struct {
	fd    uintptr
	bytes []byte // the whole file; all processes that map it share the memory

	// ready has a bit for each chunk whose memory is allocated and mapped in this
	// process. A write to a chunk sets its bit, and a deallocation clears it. The bits
	// only save time. Accessing missing memory whose bit is set causes a fault, which
	// fails the command.
	ready []atomic.Uint64
}

// mapMemory maps a file of size bytes. It returns nil if the file is not on tmpfs, or
// cannot be mapped.
func mapMemory(f *os.File, size nvmf.Bytes) *mapped {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return nil
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil // for example with a limited address space
	}
	// Children and core dumps do not need the mapping. A failure does no harm.
	_ = unix.Madvise(b, unix.MADV_DONTFORK)
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	chunks := (int(size) + chunk - 1) / chunk
	return &mapped{fd: f.Fd(), bytes: b, ready: make([]atomic.Uint64, (chunks+63)/64)}
}

func (m *mapped) close() error {
	if m == nil {
		return nil
	}
	return unix.Munmap(m.bytes)
}

// write executes c. It returns done false if memory for whole chunks cannot be
// allocated. The caller then uses a system call, which allocates memory only for the
// bytes of c.
func (m *mapped) write(c *nvmf.Command, offset, length int64) (done bool, err error) {
	if m == nil || !m.prepare(offset, offset+length) {
		return false, nil
	}
	defer m.fault(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	area := m.bytes[offset : offset+length]
	for _, d := range c.Data {
		area = area[copy(area, d):]
	}
	return true, nil
}

// read executes c if all its chunks are ready, and returns done false otherwise: reading
// a hole through the mapping would allocate memory.
func (m *mapped) read(c *nvmf.Command, offset, length int64) (done bool, err error) {
	if m == nil || !m.isReady(offset, offset+length) {
		return false, nil
	}
	defer m.fault(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	area := m.bytes[offset : offset+length]
	for _, d := range c.Data {
		area = area[copy(d, area):]
	}
	return true, nil
}

// fault converts the panic of a memory fault into an error. The address of the fault is
// in the mapping if another program has truncated or deallocated the file. Otherwise it
// is in the caller's memory.
func (m *mapped) fault(err *error) {
	r := recover()
	if r == nil {
		return
	}
	at, ok := r.(interface{ Addr() uintptr })
	if !ok {
		panic(r)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes)))
	if at.Addr()-start >= uintptr(len(m.bytes)) {
		*err = unix.EFAULT
		return
	}
	*err = fmt.Errorf("no memory at byte %d, was the file truncated?: %w", at.Addr()-start, unix.EIO)
}

func (m *mapped) isReady(start, end int64) bool {
	for i := start / chunk; i*chunk < end; i++ {
		if m.ready[i/64].Load()>>(i%64)&1 == 0 {
			return false
		}
	}
	return true
}

// prepare allocates the memory of the chunks of [start, end), and returns false if that
// fails.
func (m *mapped) prepare(start, end int64) bool {
	if m.isReady(start, end) {
		return true
	}
	from := start &^ (chunk - 1)
	to := min((end+chunk-1)&^(chunk-1), int64(len(m.bytes)))
	for {
		err := unix.Fallocate(int(m.fd), unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return false
		}
	}
	// One call instead of a fault for each page. Before Linux 5.14 the call fails, and
	// each page faults at its first access.
	_ = unix.Madvise(m.bytes[from:to], unix.MADV_POPULATE_WRITE)
	for i := from / chunk; i*chunk < to; i++ {
		m.ready[i/64].Or(1 << (i % 64))
	}
	return true
}

// forget clears the bits of [start, end), before its memory is freed.
func (m *mapped) forget(start, end int64) {
	if m == nil {
		return
	}
	for i := start / chunk; i*chunk < end; i++ {
		m.ready[i/64].And(^(uint64(1) << (i % 64)))
	}
}
