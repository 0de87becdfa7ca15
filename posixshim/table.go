package posixshim

import (
	"sync"
	"sync/atomic"
	"syscall"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A Handle names an open file of a Process: the number of its slot in the low
// 32 bits, the generation of the slot in the 30 above, which is never 0: smaller handles are the numbers of mounts.
type Handle int64

// lost is NV_LOST of shim/nv.h.
const lost Handle = -2

const (
	chunkFiles  = 256
	chunks      = 1024
	generations = 1<<30 - 1
)

// table maps handles to open files. Looking up takes no lock: a slot is filled
// before its handle is given away, and emptied before it is used again.
type table struct {
	chunk [chunks]atomic.Pointer[[chunkFiles]slot]
	count atomic.Int64 // open files

	mu    sync.Mutex
	above uint32   // no handle has a lower generation
	free  []uint32 // slots to use again
	used  uint32   // slots ever used
}

type slot struct {
	file       atomic.Pointer[openFile]
	generation uint32 // of the handle given out last; guarded by table.mu
}

// An openFile is an open file description: what descriptors that were
// duplicated from each other share.
type openFile struct {
	handle Handle
	flags  atomic.Int32 // of open(2), as F_GETFL and F_SETFL see them
	refs   atomic.Int32 // descriptors; 0 is closed
	isDir  bool
	at     *mountPoint

	// dir and path are where it was opened, for the move to another mount.
	dir  microfs.Ino
	path string

	predecessor *predecessor          // if others know it by what that has left
	watch       atomic.Pointer[watch] // if other processes share it
	viewed      atomic.Bool           // it is mapped from the view, which needs its place: see view.go
	lost        atomic.Pointer[error] // why what was written past the shim is not in it

	// file is the file in the mount. It is replaced when the process moves
	// from the mount it reads to one it writes; until then it is the first.
	file  atomic.Pointer[vfs.File]
	first vfs.File
	// retired is the mount that it has stayed in, because no later one has it; nil as a rule. Guarded by Process.mu.
	retired *retiredMount

	mu      sync.Mutex // offset and listing
	offset  int64
	listing []microfs.Dirent // names read so far of a directory
	whole   bool             // listing is all there is
}

func (f *openFile) current() vfs.File { return *f.file.Load() }

// needsWriter says that the file is open for writing, is read by the kernel from where it is, or would be lost in
// another mount because it has no name any more.
func (f *openFile) needsWriter() bool {
	if f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY || f.viewed.Load() {
		return true
	}
	attr, err := f.current().Stat()
	return err != nil || attr.Nlink == 0
}

// get returns the open file of a handle or EBADF.
func (t *table) get(h Handle) (*openFile, error) {
	if h == lost {
		return nil, errLost
	}
	i := uint32(h)
	if i < chunks*chunkFiles {
		if c := t.chunk[i/chunkFiles].Load(); c != nil {
			if f := c[i%chunkFiles].file.Load(); f != nil && f.handle == h {
				return f, nil
			}
		}
	}
	return nil, syscall.EBADF
}

// add gives f a handle. ENFILE if there are too many.
func (t *table) add(f *openFile) (Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.used
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if i == chunks*chunkFiles {
			return 0, syscall.ENFILE
		}
		t.used++
	}
	c := t.chunk[i/chunkFiles].Load()
	if c == nil {
		c = new([chunkFiles]slot)
		t.chunk[i/chunkFiles].Store(c)
	}
	s := &c[i%chunkFiles]
	s.generation = max(s.generation%generations, t.above) + 1
	f.handle = Handle(s.generation)<<32 | Handle(i)
	f.refs.Store(1)
	s.file.Store(f)
	t.count.Add(1)
	return f.handle, nil
}

// remove takes away the handle of f.
func (t *table) remove(f *openFile) {
	i := uint32(f.handle)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chunk[i/chunkFiles].Load()[i%chunkFiles].file.Store(nil)
	t.free = append(t.free, i)
	t.count.Add(-1)
}

// any says whether an open file is such a one.
func (t *table) any(such func(*openFile) bool) bool {
	found := false
	t.each(func(f *openFile) { found = found || such(f) })
	return found
}

// each calls do for every open file.
func (t *table) each(do func(*openFile)) {
	for i := range t.chunk {
		c := t.chunk[i].Load()
		if c == nil {
			return
		}
		for j := range c {
			if f := c[j].file.Load(); f != nil {
				do(f)
			}
		}
	}
}
