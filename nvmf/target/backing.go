package target

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/google/uuid"

	"nvmecr/nvmf"
)

// Backing holds the data of a namespace. Offsets and lengths are in bytes, whole logical blocks,
// and inside the namespace. All methods may be called concurrently. If writes overlap, the bytes of
// any of them may remain. Errors become statuses: ENOSPC is Capacity Exceeded, EROFS is Namespace
// is Write Protected, a *nvmf.StatusError is itself, anything else is Write Fault, Unrecovered Read
// Error or Internal Error.
type Backing interface {
	// Identity returns the same values for the life of the Backing. MaxTransfer is ignored.
	Identity() *nvmf.Identity
	// Memory returns the whole namespace as memory that the kernel receives into and sends from, or
	// nil if the Backing has no such memory. It stays valid until Close.
	Memory() []byte
	// ReadAt fills p.
	ReadAt(p []byte, offset int64) error
	// WriteAt stores p; p may be any part of a block.
	WriteAt(p []byte, offset int64) error
	// Sync makes what was written to a range durable, however it was
	// written; a length of 0 means everything. It does nothing where there
	// is no volatile write cache.
	Sync(offset, length int64) error
	// Zero makes a range read as zeros.
	Zero(offset, length int64) error
	// Deallocate gives the storage of a range back.
	Deallocate(offset, length int64) error
	Close() error
}

// faultExplainer is a Backing with a Memory of which pages may be missing.
type faultExplainer interface {
	// explain returns why the kernel could not write to a range of Memory.
	explain(offset, length int64) error
}

// memory is a Backing in anonymous memory of this process.
type memory struct {
	identity nvmf.Identity
	bytes    []byte
}

// NewMemory returns a sparse Backing of size bytes in memory, with a random UUID. It lives as long
// as the process. Writes allocate the memory, in pieces of up to 2 MiB. lbaSize is a power of two
// from 512 to 4096.
func NewMemory(size, lbaSize nvmf.Bytes) (Backing, error) {
	if err := checkGeometry(size, lbaSize); err != nil {
		return nil, fmt.Errorf("memory namespace: %w", err)
	}
	size = size.AlignDown(lbaSize)
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory namespace of %s: %w", size, err)
	}
	// Large pages gain a tenth of the bandwidth; a kernel without them is fine.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return &memory{bytes: b, identity: nvmf.Identity{
		UUID: uuid.New(), LBASize: lbaSize, Blocks: nvmf.LBA(size / lbaSize), CanDeallocate: true,
	}}, nil
}

func checkGeometry(size, lbaSize nvmf.Bytes) error {
	if lbaSize < 512 || lbaSize > 4096 || lbaSize&(lbaSize-1) != 0 {
		return fmt.Errorf("LBA size %d is not a power of two from 512 to 4096: %w", uint64(lbaSize), nvmf.ErrUnsupported)
	}
	if size < lbaSize || size > 64*nvmf.TiB {
		return fmt.Errorf("size %s is not between one block of %s and 64 TiB: %w", size, lbaSize, nvmf.ErrUnsupported)
	}
	return nil
}

func (m *memory) Identity() *nvmf.Identity { return &m.identity }
func (m *memory) Memory() []byte           { return m.bytes }

func (m *memory) ReadAt(p []byte, offset int64) error {
	copy(p, m.bytes[offset:])
	return nil
}

func (m *memory) WriteAt(p []byte, offset int64) error {
	copy(m.bytes[offset:], p)
	return nil
}

func (m *memory) Sync(offset, length int64) error { return nil }

// Zero gives whole pages back to the system, which returns zeroed ones.
func (m *memory) Zero(offset, length int64) error {
	const page = 4096
	start, end := offset, offset+length
	first, last := (start+page-1)&^(page-1), end&^(page-1)
	if first >= last {
		clear(m.bytes[start:end])
		return nil
	}
	clear(m.bytes[start:first])
	clear(m.bytes[last:end])
	return unix.Madvise(m.bytes[first:last], unix.MADV_DONTNEED)
}

func (m *memory) Deallocate(offset, length int64) error { return m.Zero(offset, length) }

func (m *memory) Close() error { return unix.Munmap(m.bytes) }
