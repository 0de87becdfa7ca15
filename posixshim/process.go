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

// A Process has the state that POSIX keeps for one process, for files of mounts: open files, locks, mappings, and the mounts.
// The functions in its exported fields are set before the first call and not changed after that.
type Process struct {
	mounts []*mountPoint // by number; at least one
	logf   func(format string, args ...any)

	// Revalidate makes every call check whether another process has changed the partition. Otherwise a mount for reading is not
	// checked again within defaultMaxAge. nvmecr serve sets it: its callers may know of a change.
	Revalidate bool
	// Used, if not nil, is called before the first call on a path or file of a mount.
	Used func()
	used sync.Once
	// Forks, if not nil, is called before this process first forks, or executes a program.
	Forks func()
	forks sync.Once
	// Referrer, if not nil, returns the number of nvmecr serve of this host, which refers children of this process to a server after the
	// end of this process (Refer); 0: it is not known.
	Referrer func() uint64
	// Ending, if not nil, is called when the process ends, before Alone counts the files that other processes have.
	Ending func()
	// Successor, if not nil, connects to the process that takes over the open files that this process shares.
	Successor func() (Successor, error)
	// Relaying, if not nil, is called when this process has its first relay (relay.go), and when it has no relay any more. In
	// between other processes may call FinishRelayed.
	Relaying func(begins bool)
	// Await, if not nil, waits until other processes have written the data in their relays to the files.
	Await func()
	// View, if not nil, returns where the kernel of this host has the files of this process.
	View func() View
	// Identify, if not nil, returns the user and the groups of this process.
	Identify func() (microfs.Cred, error)
	// real has the real user and group, which access(2) checks; nil: they are the effective ones.
	real atomic.Pointer[microfs.Cred]

	files      table
	locks      locks
	maps       mappings
	server     server
	relays     relays
	takeoverMu sync.Mutex                    // held by TakeOver
	kept       atomic.Pointer[[]microfs.Ino] // see Kept

	mu       sync.RWMutex // guards the mounts; held for reading by calls that use a mount
	failed   error        // if not nil, every call that opens a mount fails with it
	finished bool         // Finish has closed the mounts

	keep atomic.Bool // MPI_Init has opened the first mount: Yield keeps it

	credMu sync.Mutex // held by Credentials

	reportMu sync.Mutex
	reported string      // the last message of report
	closing  atomic.Bool // Finish is closing the mounts: errors of other calls are not reported
	crashed  atomic.Bool // a call has panicked
}

// Credentials is called when the user or the groups of this process have changed. It gives the new ones to the mounts.
func (p *Process) Credentials() error {
	p.findReal()
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.Identify == nil || !slices.ContainsFunc(p.mounts, (*mountPoint).mounted) {
		return nil // a mount that is opened later calls Identify itself
	}
	// If two threads change their credentials at once, the last one to call Identify sees both changes. The mutex makes it the last
	// one to call SetCred too.
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

// findReal sets p.real. The real and the effective user differ in set-user-ID programs.
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

// New returns a process whose first mount, number 0, is its partition. The process opens the partition with open, for writing or
// for reading. If it is asked for a mount for reading, open may return one for writing. logf prints messages for the user.
func New(open func(write bool) (*vfs.Mount, error), logf func(format string, args ...any)) *Process {
	p := &Process{logf: logf, server: server{closeQueryTime: closeQueryTime}}
	p.mounts = []*mountPoint{{p: p, open: open}}
	return p
}
