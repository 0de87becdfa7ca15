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

// chunk is the unit in which a file in memory is allocated and mapped.
const chunk = 64 << 10

// mapped is a file whose storage is memory (tmpfs), mapped into this process.
// A copy of its bytes costs half of what the kernel's takes, which looks up and
// locks each page. Where the memory is not there yet the kernel gives it, or
// says that there is no more, before anything is copied.
type mapped struct {
	fd    uintptr
	bytes []byte // the whole file, shared with all processes that have it open

	// ready has a bit for each chunk that has its memory, mapped here. Who
	// writes to a chunk sets it, who deallocates some of it clears it. It saves
	// time and decides nothing: memory that is gone all the same is a fault,
	// which fails the command.
	ready []atomic.Uint64
}

// mapMemory maps a file of size bytes; nil if it is not in memory, or if it
// cannot be mapped.
func mapMemory(f *os.File, size nvmf.Bytes) *mapped {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return nil
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil // of a process with little address space, for example
	}
	// Nothing for children, nor for core dumps; as advice it may fail.
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

// write executes c, and reports whether it could: a file system that is full
// is left to the kernel's call, which needs no more than it writes.
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

// read executes c if all that it reads has been written here: reading a hole
// through a mapping would fill it.
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

// fault turns the panic of a memory fault into an error: of the file, which
// somebody truncated or deallocated, or of the caller's memory, as the kernel
// would find it.
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

// prepare sees to it that the chunks of [start, end) have their memory.
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
	// In one go instead of a fault for each page; before Linux 5.14 it is those.
	_ = unix.Madvise(m.bytes[from:to], unix.MADV_POPULATE_WRITE)
	for i := from / chunk; i*chunk < to; i++ {
		m.ready[i/64].Or(1 << (i % 64))
	}
	return true
}

// forget is called before memory of [start, end) is given back.
func (m *mapped) forget(start, end int64) {
	if m == nil {
		return
	}
	for i := start / chunk; i*chunk < end; i++ {
		m.ready[i/64].And(^(uint64(1) << (i % 64)))
	}
}
