package posixshim

import (
	"os"
	"sync/atomic"

	"nvmecr/internal/ownfd"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A predecessor is a process that has handed over its open files to this one. Other processes still use its number and its
// handles. This process listens at the address of that number, and translates the handles. The handles of this process itself
// have greater generations, so that the two kinds do not collide.
type predecessor struct {
	number  uint64
	listen  *os.File
	handles map[Handle]Handle // from handles of the predecessor to those of this process; not changed after the takeover

	refs atomic.Int32 // files and connections of other processes that use the number
}

// takeoverGeneration is the lowest generation of handles in a process that takes over. Slots of other processes are not reused so
// often.
const takeoverGeneration = 1 << 29

// NewForTakeover is New for a process that takes over open files of other processes.
func NewForTakeover(open func(write bool) (*vfs.Mount, error), logf func(format string, args ...any)) *Process {
	p := New(open, logf)
	p.files.minGeneration = takeoverGeneration
	return p
}

// handle returns the handle of this process for a handle that another process uses. h may be nil.
func (h *predecessor) handle(theirs Handle) Handle {
	if h == nil || theirs <= 0 {
		return theirs
	}
	if ours, ok := h.handles[theirs&^Itself]; ok {
		return ours | theirs&Itself
	}
	return theirs
}

func (h *predecessor) acquire() {
	if h != nil {
		h.refs.Add(1)
	}
}

// openedFor records that other processes address an open file by the number of h.
func (p *Process) openedFor(h *predecessor, file Handle) {
	if f, err := p.files.get(file); err == nil && h != nil {
		h.acquire()
		f.predecessor = h
	}
}

// releasePredecessor drops a reference of h. After the last one this process does not listen for h any more, and gives up the
// partition if no file is open. If a process has connected and was not accepted yet, which may ask for the result of closing a
// file, that is left to the end of its connection.
func (p *Process) releasePredecessor(h *predecessor) {
	if h == nil || h.refs.Add(-1) > 0 || hasPending(h.listen) {
		return
	}
	_ = ownfd.CloseFile(h.listen) // processes that find nobody there open the partition themselves
	if p.files.count.Load() == 0 {
		p.Yield()
	}
}

// Serves says whether other processes have files of this one open, or are connected to it.
func (p *Process) Serves() bool { return p.files.count.Load() > 0 || p.server.connections.Load() > 0 }

// Kept returns the inodes of the files that are being taken over. Opening the partition for writing keeps them, though they may
// have no name.
func (p *Process) Kept() []microfs.Ino {
	if kept := p.kept.Load(); kept != nil {
		return *kept
	}
	return nil
}
