package posixshim

import (
	"sync"
	"sync/atomic"
	"syscall"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A Handle names an open file of a Process. The low 32 bits are the index of its slot, the 30 bits above are the generation of the
// slot. A generation is never 0, so the numbers of mounts are no handles.
type Handle int64

// lost is NV_LOST of shim/nv.h.
const lost Handle = -2

const (
	chunkFiles  = 256
	chunks      = 1024
	generations = 1<<30 - 1
)

// table maps handles to open files. A look-up takes no lock: a slot is set before its handle is returned, and cleared before it is
// used for another file.
type table struct {
	chunk [chunks]atomic.Pointer[[chunkFiles]slot]
	count atomic.Int64 // open files

	mu            sync.Mutex // guards the rest, and the generations of slots
	minGeneration uint32     // no handle has a lower one
	free          []uint32   // slots whose files have been closed
	used          uint32     // slots that have ever had a file
}

type slot struct {
	file       atomic.Pointer[openFile]
	generation uint32 // of the slot's last handle; guarded by table.mu
}

// An openFile is an open file description, which all duplicates of a descriptor share.
type openFile struct {
	handle Handle
	flags  atomic.Int32 // flags of open(2), as F_GETFL returns them
	refs   atomic.Int32 // references: descriptors, mappings, sharings; 0: the file is closed
	isDir  bool

	mountPoint *mountPoint
	// dir and path are what the file was opened by. When the mount is opened again, the file is opened again by them.
	dir  microfs.Ino
	path string

	predecessor    *predecessor          // if not nil, other processes use a handle of that for the file
	watch          atomic.Pointer[watch] // if not nil, the file is shared with other processes
	mappedFromView atomic.Bool           // the view needs the blocks of the file: see view.go
	relayErr       atomic.Pointer[error] // why relayed data was not written to the file (relay.go)

	// file is the file in the current mount. moveFiles replaces it when the mount is opened again. Until then it points to first.
	file  atomic.Pointer[vfs.File]
	first vfs.File
	// retired is the earlier mount that the file is still in, because the current one does not have it; mostly nil. Guarded by
	// Process.mu.
	retired *retiredMount

	mu        sync.Mutex // guards the rest
	offset    int64
	listing   []microfs.Dirent // names of a directory, read so far
	listedAll bool             // listing has all names
}

func (f *openFile) current() vfs.File { return *f.file.Load() }

// needsWriter says whether the process has to keep the mount open for writing because of the file: it is open for writing, the
// kernel reads its blocks by way of the view, or it has no name by which it could be opened in another mount.
func (f *openFile) needsWriter() bool {
	if f.flags.Load()&syscall.O_ACCMODE != syscall.O_RDONLY || f.mappedFromView.Load() {
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

// add gives f a handle. It fails with ENFILE if the table is full.
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
	s.generation = max(s.generation%generations, t.minGeneration) + 1
	f.handle = Handle(s.generation)<<32 | Handle(i)
	f.refs.Store(1)
	s.file.Store(f)
	t.count.Add(1)
	return f.handle, nil
}

// remove clears the slot of f.
func (t *table) remove(f *openFile) {
	i := uint32(f.handle)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chunk[i/chunkFiles].Load()[i%chunkFiles].file.Store(nil)
	t.free = append(t.free, i)
	t.count.Add(-1)
}

// any says whether such is true of an open file.
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
