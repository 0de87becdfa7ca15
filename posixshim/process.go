package posixshim

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"nvmecr/internal/vfs"
	"nvmecr/microfs"
)

// A Process is what POSIX keeps for one process, as far as it is ours: its
// open files and its mounts.
type Process struct {
	mounts []*mountPoint // by number; at least one
	logf   func(format string, args ...any)

	// Revalidate has every call look whether another process has changed something, also where it has looked a moment ago:
	// for a process that makes the calls of those who know that it was changed. Set before the first call.
	Revalidate bool
	// Used, if not nil, is called before the first call on a path or file of ours.
	Used func()
	used sync.Once
	// Ending, if not nil, is called when the process ends: before Alone looks.
	Ending func()
	// Successor, if not nil, connects to who goes on with what this process has open when it ends.
	Successor func() (Successor, error)
	// Relaying, if not nil, is called when this process begins or ends to write to files what others write past the shim. While it
	// does, others may ask for FinishRelayed.
	Relaying func(begins bool)
	// Await, if not nil, returns when other processes have written what they had so.
	Await func()
	// View, if not nil, returns where the kernel of this host has the files of this process.
	View func() View
	// Identify, if not nil, returns who this process is.
	Identify func() (microfs.Cred, error)
	// real is for whom access(2) asks: nil if that is who Identify returns.
	real atomic.Pointer[microfs.Cred]

	files  table
	locks  locks
	maps   mappings
	server server
	relays relays
	taking sync.Mutex                    // held by TakeOver
	kept   atomic.Pointer[[]microfs.Ino] // see Kept

	mu       sync.RWMutex // held for reading by calls that use a mount
	failed   error        // if not nil, no mount can be had any more
	finished bool

	keep atomic.Bool // MPI_Init has opened the first mount: never yield

	credMu sync.Mutex // held from asking who this is until the mounts know

	reportMu sync.Mutex
	reported string
	closing  atomic.Bool // by Finish: calls that come too late need no report
	crashed  atomic.Bool // set by the first panic, for good
}

// Credentials is told that the user or the groups of this process have changed.
func (p *Process) Credentials() error {
	p.findReal()
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.Identify == nil || !slices.ContainsFunc(p.mounts, (*mountPoint).mounted) {
		return nil // who opens one asks
	}
	// Of two threads that change something at once the last to ask knows both
	// changes: it has to be the last to set it too.
	p.credMu.Lock()
	defer p.credMu.Unlock()
	c, err := p.Identify()
	if err != nil {
		return err
	}
	for _, m := range p.mounts {
		if m.mounted() {
			err = errors.Join(err, m.mount.FS.SetCred(c))
		}
	}
	return err
}

// findReal notes for whom access(2) asks: whoever has started a set-user-ID program.
func (p *Process) findReal() {
	uid, gid := os.Getuid(), os.Getgid()
	if p.Identify == nil || uid == os.Geteuid() && gid == os.Getegid() {
		p.real.Store(nil)
		return
	}
	if c, err := p.Identify(); err == nil {
		c.UID, c.GID = uint32(uid), uint32(gid)
		p.real.Store(&c)
	}
}

// New returns a process whose first mount, number 0, is its partition, which it opens with open: for writing, or
// for reading only, in which case it may nevertheless return one for writing.
// logf gets what the user has to know.
func New(open func(write bool) (*vfs.Mount, error), logf func(format string, args ...any)) *Process {
	p := &Process{logf: logf, server: server{askTime: askTime}}
	p.mounts = []*mountPoint{{p: p, open: open}}
	return p
}
