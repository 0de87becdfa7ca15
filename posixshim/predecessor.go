package posixshim

import (
	"os"
	"sync/atomic"

	"nvmecr/internal/ownfd"
	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A predecessor is what a process has become that has handed over what it had open: a number that others know, where
// this process listens now, and the handles that they know. Those of this process itself have greater
// generations.
type predecessor struct {
	number  uint64
	listen  *os.File
	handles map[Handle]Handle // to those of this process; not changed any more

	uses atomic.Int32 // files and connections that others know by the number
}

// takeoverGeneration is the least generation of handles in a process that takes over. No other process gives
// a slot so often.
const takeoverGeneration = 1 << 29

// NewForTakeover is New for a process that takes over what others have had open.
func NewForTakeover(open func(write bool) (*vfs.Mount, error), logf func(format string, args ...any)) *Process {
	p := New(open, logf)
	p.files.above = takeoverGeneration
	return p
}

// handle returns what is behind a handle that another process uses.
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
		h.uses.Add(1)
	}
}

// openedFor notes that others know an open file by the number of h.
func (p *Process) openedFor(h *predecessor, file Handle) {
	if f, err := p.files.get(file); err == nil && h != nil {
		h.acquire()
		f.predecessor = h
	}
}

// releasePredecessor is called when something has ended that others know by the number of h. After the last nobody
// is let in there any more, and the partition is given up if nothing is open. Who has connected before, to hear what
// the close of a file comes to, is let in yet, and disuse is called again when that one has gone.
func (p *Process) releasePredecessor(h *predecessor) {
	if h == nil || h.uses.Add(-1) > 0 || hasPending(h.listen) {
		return
	}
	_ = ownfd.CloseFile(h.listen) // a process that connects from now on opens the partition itself
	if p.files.count.Load() == 0 {
		p.Yield()
	}
}

// Serves says whether other processes have files of this one open, or are connected with it.
func (p *Process) Serves() bool { return p.files.count.Load() > 0 || p.server.connections.Load() > 0 }

// Kept returns the files that are being taken over: who opens the partition for writing keeps
// what they have though they may have no name any more.
func (p *Process) Kept() []microfs.Ino {
	if kept := p.kept.Load(); kept != nil {
		return *kept
	}
	return nil
}
