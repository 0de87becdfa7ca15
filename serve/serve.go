// Package serve is the server behind `nvmecr serve`, one process for each run and host. It does work for all processes of the run on
// the host, each of which may end at any time. `nvmecr run` starts the server on its own host, where it ends with the run. On another
// host the first process that uses the mount starts it, and the server ends after the last process.
//
// The server exports the files of the run to the kernel (view.go), takes over the open files that an ending process shares with
// others (takeover.go), and makes the calls of forked children whose parent has ended (children.go). In a run with one tree the server on the host of `nvmecr run` has the index (index.go).
//
// The server never requests data from a process of the job: it reads the store, as
// readers from outside do. It opens no path under the mount or in its own view, so it never waits for itself.
//
// All methods are safe for concurrent use.
package serve

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"nvmecr/fuseview"
	"nvmecr/internal/config"
	"nvmecr/internal/processfs"
	"nvmecr/internal/store"
	"nvmecr/posixshim"
)

// A Server serves the processes of a run on this host.
type Server struct {
	// Copy is passed to the index as index.Options.Copy; nil if there are no copies. It is set before ServeTree.
	Copy func(path string, size int64, modified time.Time, b []byte, off int64) error

	cfg  *config.Config
	logf func(format string, args ...any)

	mu        sync.Mutex
	processes map[store.Proc]*posixshim.Process
	views     []*fuseview.View

	children  *posixshim.Referrer
	takeovers takeovers
	index     treeIndex
}

// New returns a server for the run of cfg. It opens nothing yet. logf prints a message to the user, on one line.
func New(cfg *config.Config, logf func(format string, args ...any)) *Server {
	return &Server{cfg: cfg, logf: logf, processes: make(map[store.Proc]*posixshim.Process)}
}

// Process returns the posixshim.Process that executes calls for a rank of the job, with the same files under the mount. The first call
// opens it. It yields the partition to a process of that rank.
func (s *Server) Process(proc store.Proc) *posixshim.Process {
	proc.From = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.processes[proc]
	if !ok {
		o := &processfs.Opener{
			Config: s.cfg,
			Proc:   func() (store.Proc, error) { return proc, nil },
			Logf: func(format string, args ...any) {
				s.logf("nvmecr serve, process %d: %s", os.Getpid(), fmt.Sprintf(format, args...))
			},
		}
		p = posixshim.NewForTakeover(o.Open, o.Logf)
		p.Identify, p.Revalidate = store.Cred, true
		processfs.AwaitRelays(p, s.cfg)
		o.Process = p
		if err := o.Mount(); err != nil {
			o.Logf("%v", err)
		}
		s.processes[proc] = p
	}
	return p
}

// Close closes the store and all views. Calls on files of a view that are still open fail from then on.
func (s *Server) Close() error {
	var errs []error
	if s.children != nil { // before takeovers: the next server of the run listens at the same address
		errs = append(errs, s.children.Close())
	}
	s.takeovers.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.views {
		// nvmecr run removes the directory, unless it was killed.
		errs = append(errs, v.Detach(), os.Remove(v.Dir()))
	}
	for _, p := range s.processes {
		errs = append(errs, p.Finish())
	}
	return errors.Join(append(errs, s.index.close())...)
}
